// SPDX-License-Identifier: Apache-2.0
// CLI11's own conversions are not used for numbers: they read 010 as octal, wrap negative words for unsigned values and
// drop empty elements of lists.
#include "cli/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"

namespace quern::cli {
namespace {

std::vector<std::string_view> split_at_commas(std::string_view word) {
  std::vector<std::string_view> parts;
  for (size_t comma = 0; (comma = word.find(',')) != std::string_view::npos; word.remove_prefix(comma + 1)) {
    parts.push_back(word.substr(0, comma));
  }
  parts.push_back(word);
  return parts;
}

bool is_decimal(std::string_view word) {
  if (!word.empty() && word.front() == '-') word.remove_prefix(1);
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

const CLI::App* command_called(const CLI::App& app, const std::string& name) {
  const auto found = app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

bool takes_value(const CLI::App* command, std::string_view name) {
  if (command == nullptr) return false;
  const CLI::Option* option = command->get_option_no_throw(std::string(name));
  return option != nullptr && option->nonpositional() && option->get_items_expected_max() > 0;
}

}  // namespace

void refuse_word(const std::string& option, std::string_view word, std::string_view allowed) {
  throw CLI::ValidationError(option, fmt::format("{} is not allowed, {} are", quote_name(word), allowed));
}

CLI::Option* add_whole_list(CLI::App& app, const std::string& name, std::vector<int32_t>& to, const std::string& text,
                            int32_t least, int32_t most) {
  const auto read = [name, &to, least, most](const std::string& word) {
    to.clear();
    for (const std::string_view part : split_at_commas(word)) to.push_back(read_whole(name, part, least, most));
  };
  return app.add_option_function<std::string>(name, read, text)->type_name("N,N,...");
}

float read_number(const std::string& option, std::string_view word, const NumberRange& range) {
  double value = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool whole_word = failure == std::errc() && end == word.data() + word.size();
  // Narrowed only where it fits; false for a NaN.
  const bool fits = whole_word && value >= static_cast<double>(range.least) && value <= static_cast<double>(range.most);
  if (fits && !(range.above_least && static_cast<float>(value) == range.least)) return static_cast<float>(value);
  refuse_word(option, word,
              range.above_least ? fmt::format("numbers above {} and up to {}", range.least, range.most)
                                : fmt::format("numbers from {} to {}", range.least, range.most));
}

CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<float>& to, const std::string& text,
                        const NumberRange& range) {
  const auto read = [name, &to, range](const std::string& word) { to = read_number(name, word, range); };
  return app.add_option_function<std::string>(name, read, text)->type_name("X");
}

CLI::Option* add_context(CLI::App& app, int32_t& to) {
  return add_whole<int32_t>(app, "--ctx", to,
                            "Tokens that the context holds; without it, as many as the model has positions for and "
                            "memory has room for",
                            1);
}

void add_opening(CLI::App& app, engine::EngineOptions& to) {
  const auto add_type = [&](const char* name, std::string& type, std::vector<std::string_view> types,
                            std::string_view text) {
    const std::string known = fmt::format("{}", fmt::join(types, ", "));
    const auto read = [name, &type, types, known](const std::string& word) {
      if (std::ranges::find(types, word) == types.end()) refuse_word(name, word, fmt::format("one of {}", known));
      type = word;
    };
    app.add_option_function<std::string>(name, read, fmt::format("{} ({})", text, known))->type_name("TYPE");
  };
  add_type("--compute", to.compute, {"fp32", "bf16"},
           "What a safetensors model is computed in; what its authors intend without it");
  const auto kinds = engine::kv_types();
  add_type("--kv", to.kv, {kinds.begin(), kinds.end()},
           "What an ONNX model's keys and values are kept as; fp16 without it");
  const auto leave_out = [&to](const std::vector<std::string>& names) { to.no_fuse = names; };
  app.add_option_function<std::vector<std::string>>("--no-fuse", leave_out, "Leave out the graph pass of this name")
      ->type_name("NAME")
      ->allow_extra_args(false);
}

std::vector<std::string> split_ids(const std::string& option, std::string_view word) {
  std::vector<std::string> ids;
  for (const std::string_view part : split_at_commas(word)) {
    if (!is_decimal(part)) refuse_word(option, word, "token ids in decimal with single commas between them");
    ids.emplace_back(part);
  }
  return ids;
}

Result<std::vector<int32_t>> read_ids(const std::vector<std::string>& words, std::string_view what, int64_t limit) {
  std::vector<int32_t> ids;
  for (const std::string& word : words) {
    int32_t id = 0;
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (failure != std::errc() || id < 0 || id >= limit) {
      constexpr size_t kMaxShown = 40;
      const std::string shown = word.size() <= kMaxShown ? word : word.substr(0, kMaxShown) + "...";
      return bad_request(fmt::format("{} {}", what, ids.size()),
                         fmt::format("has id {}, allowed are 0 to {}", shown, limit - 1));
    }
    ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> words_of(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> words;
  const CLI::App* command = argc > 1 ? command_called(app, argv[1]) : nullptr;
  bool is_value = false;  // of the option before it
  bool options_end = false;
  for (int i = 1; i < argc; i++) {
    const std::string_view word = argv[i];
    options_end = options_end || (!is_value && word == "--");
    const bool option = !options_end && !is_value && word.substr(0, 1) == "-";
    if (option && word.size() > 3 && word.back() == '=' && takes_value(command, word.substr(0, word.size() - 1))) {
      words.emplace_back(word.substr(0, word.size() - 1));
      words.emplace_back();
      continue;
    }
    is_value = option && takes_value(command, word);
    words.emplace_back(word);
  }
  return words;
}

}  // namespace quern::cli
