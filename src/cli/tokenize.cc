// SPDX-License-Identifier: Apache-2.0
// quern tokenize and detokenize: text to ids and back with a model's tokenizer. Nothing of the model itself is loaded.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/model_part.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "formats/genai_config.h"
#include "text/tokenizer.h"

namespace quern::cli {
namespace {

namespace fs = std::filesystem;

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  bool json = false;
};

struct DetokenizeOptions {
  std::string model;
  std::vector<std::string> ids;
  bool skip_special = false;
  bool json = false;
};

Result<text::Tokenizer> load(const std::string& model) {
  QUERN_TRY_VOID(check_folder(model));
  return text::Tokenizer::load(model);
}

Result<int> tokenize(const TokenizeOptions& options) {
  QUERN_TRY(const text::Tokenizer tokenizer, load(options.model));
  std::string text;
  if (options.text && *options.text != "-") {
    text = *options.text;
  } else {
    QUERN_TRY(text, read_all("-"));
  }
  QUERN_TRY(const std::vector<int32_t> ids, tokenizer.encode(text));
  if (!options.json) {
    QUERN_TRY_VOID(write_out(fmt::format("{}\n", fmt::join(ids, " "))));
    return 0;
  }
  Json pieces = Json::array();
  for (const int32_t id : ids) pieces.push_back(json_text(tokenizer.bytes_of(id)));
  QUERN_TRY_VOID(write_json({{"ids", ids}, {"pieces", std::move(pieces)}}));
  return 0;
}

// Ids that the model's logits have: some of them may have no text.
Result<int64_t> id_limit(const std::string& model, const text::Tokenizer& tokenizer) {
  const fs::path config_path = fs::path(model) / "genai_config.json";
  if (!has_part(config_path)) return tokenizer.id_limit();
  QUERN_TRY(const formats::GenaiConfig config, formats::GenaiConfig::load(config_path));
  return std::max(config.vocab_size, tokenizer.id_limit());
}

Result<int> detokenize(const DetokenizeOptions& options) {
  QUERN_TRY(const text::Tokenizer tokenizer, load(options.model));
  QUERN_TRY(const int64_t limit, id_limit(options.model, tokenizer));
  QUERN_TRY(const std::vector<int32_t> ids, read_ids(options.ids, "token", limit));
  const std::string text = tokenizer.decode(ids, options.skip_special);
  if (options.json) {
    QUERN_TRY_VOID(write_json({{"text", text}, {"ids", ids}}));
    return 0;
  }
  QUERN_TRY_VOID(write_out(text));
  QUERN_TRY_VOID(end_text());
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& chosen) {
  auto forward = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Print the token ids of a text");
  command->add_option("MODEL", forward->model, "The model's folder")->required();
  command->add_option("TEXT", forward->text, "The text; standard input without it");
  command->add_flag("--json", forward->json, "One JSON object with the ids and the text of each");
  command->callback([forward, &chosen] { chosen = [forward] { return tokenize(*forward); }; });

  auto backward = std::make_shared<DetokenizeOptions>();
  command = app.add_subcommand("detokenize", "Print the text of token ids");
  command->add_option("MODEL", backward->model, "The model's folder")->required();
  const auto read = [backward](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      for (std::string& id : split_ids("IDS", word)) backward->ids.push_back(std::move(id));
    }
  };
  command->add_option_function<std::vector<std::string>>("IDS", read, "Token ids, separated by blanks or commas")
      ->required()
      ->type_name("N");
  command->add_flag("--skip-special", backward->skip_special, "Leave out special tokens");
  command->add_flag("--json", backward->json, "One JSON object");
  command->callback([backward, &chosen] { chosen = [backward] { return detokenize(*backward); }; });
}

}  // namespace quern::cli
