// SPDX-License-Identifier: Apache-2.0
// The order of the reference: added tokens that are not normalized, normalization, added tokens that are, splitting,
// BPE.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/model_part.h"
#include "base/quote_name.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/model_file.h"
#include "text/nfc.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace quern::text {
namespace {

using nlohmann::json;

constexpr size_t kMaxTextBytes = INT32_MAX;
constexpr size_t kMemoFromBytes = size_t{4} << 10;

}  // namespace

struct Tokenizer::Parts {
  struct Stretch {
    uint32_t offset = 0, bytes = 0;
  };

  BpeModel model;
  std::vector<AddedToken> added_tokens;                // not touched once the matchers point into it
  std::unordered_map<std::string, int32_t> added_ids;  // by the text in the file
  AddedTokenMatcher raw_matcher, normalized_matcher;
  bool nfc = false;
  PreTokenizer pre_tokenizer;

  std::string bytes;              // what every id decodes to, one after another
  std::vector<Stretch> bytes_of;  // by id
  std::vector<bool> special;      // by id
  int32_t ids_with_text = 0;
  TokenizerSettings settings;

  bool has(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < bytes_of.size(); }

  void store_bytes() {
    const auto set = [this](int32_t id, std::string_view text) {
      Stretch& stretch = bytes_of[static_cast<size_t>(id)];
      const std::string decoded = bytes_of_entry(text);
      stretch = {static_cast<uint32_t>(bytes.size()), static_cast<uint32_t>(decoded.size())};
      bytes.append(decoded);
    };
    int32_t max_id = model.max_id();
    for (const AddedToken& token : added_tokens) max_id = std::max(max_id, token.id);
    bytes_of.resize(static_cast<size_t>(max_id + 1));
    special.resize(static_cast<size_t>(max_id + 1));
    for (int32_t id = 0; id <= model.max_id(); ++id) set(id, model.text_of(id));
    ids_with_text = model.entries();
    for (const AddedToken& token : added_tokens) {
      if (model.text_of(token.id).empty()) ++ids_with_text;
      set(token.id, token.text);
      special[static_cast<size_t>(token.id)] = token.special;
    }
  }

  Result<void> encode_ordinary(std::string_view text, BpeModel::Scratch& scratch, std::vector<int32_t>& ids) const {
    QUERN_TRY(const std::vector<std::string_view> pre_tokens, pre_tokenizer.split(text));
    for (const std::string_view pre_token : pre_tokens) model.encode(pre_token, scratch, ids);
    return {};
  }

  Result<void> encode_raw(std::string_view text, bool parse_special, BpeModel::Scratch& scratch,
                          std::vector<int32_t>& ids) const {
    std::string storage;
    if (nfc) text = to_nfc(text, storage);
    if (normalized_matcher.empty()) return encode_ordinary(text, scratch, ids);
    std::vector<Segment> segments;
    normalized_matcher.split(text, parse_special, segments);
    for (const Segment& segment : segments) {
      if (segment.token != nullptr) {
        ids.push_back(segment.token->id);
      } else {
        QUERN_TRY_VOID(encode_ordinary(segment.text, scratch, ids));
      }
    }
    return {};
  }
};

Result<std::shared_ptr<Tokenizer::Parts>> Tokenizer::build(std::string_view bytes) {
  QUERN_TRY(TokenizerFile file, read_tokenizer_file(bytes));
  auto parts = std::make_shared<Parts>();
  parts->model = std::move(file.model);
  parts->added_tokens = std::move(file.added_tokens);
  parts->nfc = file.nfc;
  for (const SplitStage& stage : file.stages) {
    QUERN_TRY_VOID(parts->pre_tokenizer.add_stage(stage.pattern, stage.where));
  }
  // The reference looks for special tokens first where two have the same normalized text.
  for (const bool special : {true, false}) {
    for (AddedToken& token : parts->added_tokens) {
      if (token.special != special) continue;
      parts->added_ids.emplace(token.text, token.id);
      // The reference keeps, and decodes to, the normalized text.
      std::string storage;
      if (token.normalized && parts->nfc) token.text = std::string(to_nfc(token.text, storage));
      (token.normalized ? parts->normalized_matcher : parts->raw_matcher).add(token.text, &token);
    }
  }
  parts->store_bytes();
  return parts;
}

Result<Tokenizer> Tokenizer::from_json(std::string_view bytes, const std::string& where) {
  Result<std::shared_ptr<Parts>> parts = build(bytes);
  if (!parts.ok()) return in_file(std::move(parts).error(), where);
  return Tokenizer(std::move(parts).value());
}

namespace {

// Fields that quern or the reference reads, and the types they may have besides null. clean_up_tokenization_spaces is
// without influence on BPE, as in transformers 5.
using Types = std::initializer_list<json::value_t>;
Result<void> check_types(const json& config) {
  constexpr auto kBoolean = json::value_t::boolean, kText = json::value_t::string, kList = json::value_t::array,
                 kObject = json::value_t::object;
  struct Field {
    const char* key;
    Types types;
    const char* allowed;
  };
  const Field fields[] = {
      {"add_bos_token", {kBoolean}, "true or false"},
      {"add_eos_token", {kBoolean}, "true or false"},
      {"add_prefix_space", {kBoolean}, "true or false"},
      {"split_special_tokens", {kBoolean}, "true or false"},
      {"clean_up_tokenization_spaces", {kBoolean}, "true or false"},
      {"errors", {kText}, "a text"},
      {"added_tokens_decoder", {kObject}, "an object"},
      {"additional_special_tokens", {kList}, "a list"},
      {"extra_special_tokens", {kList, kObject}, "a list or an object"},
      {"chat_template", {kText, kList}, "a text or a list of named templates"},
  };
  for (const auto& [key, types, allowed] : fields) {
    const auto value = config.find(key);
    if (value == config.end() || value->is_null()) continue;
    if (std::find(types.begin(), types.end(), value->type()) != types.end()) continue;
    return bad_model(key, fmt::format("{} is needed, not {}", allowed, quoted_json(*value)));
  }
  return {};
}

// The reference adds the tokens of this list to those of tokenizer.json: they must be there already.
Result<void> check_added_tokens(const json& config, const Tokenizer& tokenizer) {
  const auto list = config.find("added_tokens_decoder");
  if (list == config.end() || list->is_null()) return {};
  for (const auto& [id, token] : list->items()) {
    const std::string where = "added_tokens_decoder." + path_name(id);
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) {
      return bad_model(where, fmt::format("an object with a text 'content' is needed, not {}", quoted_json(token)));
    }
    const std::string text = token["content"];
    const std::optional<int32_t> known = tokenizer.id_of(text);
    if (known && std::to_string(*known) == id) continue;
    return unsupported(
        where,
        fmt::format(
            "the token {} {}; other tokens than those of tokenizer.json are not supported", quote_name(text),
            known ? fmt::format("has the id {} in tokenizer.json", *known) : std::string("is not in tokenizer.json")));
  }
  return {};
}

Result<void> read_settings(std::string_view bytes, const Tokenizer& tokenizer, TokenizerSettings& settings) {
  QUERN_TRY(const json config, parse_json_object(bytes));
  QUERN_TRY_VOID(check_types(config));
  for (const char* key : {"add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens"}) {
    const auto value = config.find(key);
    if (value != config.end() && *value == true) return unsupported(key, "the value true is not supported");
  }
  const auto errors = config.find("errors");
  if (errors != config.end() && !errors->is_null() && *errors != "replace") {
    return unsupported("errors", fmt::format("the value {} is not supported; \"replace\" is", quoted_json(*errors)));
  }
  const std::pair<const char*, std::optional<int32_t>*> tokens[] = {
      {"bos_token", &settings.bos_id}, {"eos_token", &settings.eos_id}, {"pad_token", &settings.pad_id}};
  for (const auto& [key, id] : tokens) {
    QUERN_TRY(const std::optional<std::string> text, token_text(config, key));
    if (!text) continue;
    *id = tokenizer.id_of(*text);
    if (!*id) return bad_model(key, fmt::format("{} is not in the vocabulary", quote_name(*text)));
  }
  return check_added_tokens(config, tokenizer);
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  QUERN_TRY(const FileMap map, open_bounded(path));
  Result<std::shared_ptr<Parts>> built = build(text_of_map(map));
  if (!built.ok()) return in_file(std::move(built).error(), path.string());
  const std::shared_ptr<Parts> parts = std::move(built).value();
  const Tokenizer tokenizer(parts);

  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  if (has_part(config_path)) {
    QUERN_TRY(const FileMap config, open_bounded(config_path));
    Result<void> read = read_settings(text_of_map(config), tokenizer, parts->settings);
    if (!read.ok()) return in_file(std::move(read).error(), config_path.string());
  }
  return tokenizer;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view utf8, bool parse_special) const {
  if (utf8.size() > kMaxTextBytes) {
    return Error{Errc::too_long,
                 fmt::format("the text has {} bytes; at most {} can be encoded", utf8.size(), kMaxTextBytes), "text"};
  }
  if (const std::optional<size_t> offset = find_invalid_utf8(utf8)) {
    return bad_request("text", fmt::format("the text is not valid UTF-8 at byte {} (0x{:02X})", *offset,
                                           static_cast<unsigned char>(utf8[*offset])));
  }
  std::vector<Segment> segments;
  parts_->raw_matcher.split(utf8, parse_special, segments);
  std::vector<int32_t> ids;
  BpeModel::Scratch scratch;
  if (utf8.size() >= kMemoFromBytes) scratch.make_memo();
  for (const Segment& segment : segments) {
    if (segment.token != nullptr) {
      ids.push_back(segment.token->id);
    } else {
      QUERN_TRY_VOID(parts_->encode_raw(segment.text, parse_special, scratch, ids));
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes.append(bytes_of(id));
  }
  return to_valid_utf8(bytes);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view text) const {
  const auto added = parts_->added_ids.find(std::string(text));
  return added != parts_->added_ids.end() ? added->second : parts_->model.id_of(text);
}

std::optional<std::string_view> Tokenizer::text_of(int32_t id) const {
  if (const std::string_view text = parts_->model.text_of(id); !text.empty()) return text;
  for (const AddedToken& token : parts_->added_tokens) {
    if (token.id == id) return token.text;
  }
  return std::nullopt;
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  if (!parts_->has(id)) return {};
  const Parts::Stretch stretch = parts_->bytes_of[static_cast<size_t>(id)];
  return std::string_view(parts_->bytes).substr(stretch.offset, stretch.bytes);
}

bool Tokenizer::is_special(int32_t id) const { return parts_->has(id) && parts_->special[static_cast<size_t>(id)]; }
int32_t Tokenizer::vocab_size() const { return parts_->ids_with_text; }
int32_t Tokenizer::id_limit() const { return static_cast<int32_t>(parts_->bytes_of.size()); }
const TokenizerSettings& Tokenizer::settings() const { return parts_->settings; }

}  // namespace quern::text
