// SPDX-License-Identifier: Apache-2.0
// The order of the reference: added tokens that are not normalized, normalization, added tokens that are, splitting,
// BPE.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/file_map.h"
#include "base/model_part.h"
#include "base/quote_name.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace quern::text {
namespace {

using nlohmann::json;

// Published files have 7 to 20 MB.
constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxTextBytes = INT32_MAX;
constexpr size_t kMemoFromBytes = size_t{4} << 10;

Result<FileMap> open_bounded(const std::filesystem::path& path) {
  QUERN_TRY_VOID(check_part(path));
  QUERN_TRY(FileMap map, FileMap::open(path));
  if (map.bytes().size() > kMaxFileBytes) {
    return bad_model(path.string(),
                     fmt::format("the file has {} bytes; at most {} are read", map.bytes().size(), kMaxFileBytes));
  }
  return map;
}

std::string_view text_of_map(const FileMap& map) {
  return {reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()};
}

// The JSON path of an error becomes "file: path".
Error in_file(Error error, const std::string& file) {
  error.where = error.where.empty() ? file : file + ": " + error.where;
  return error;
}

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

// A token of the configuration: a string, or an object with the string as "content"; null and absent mean none.
Result<std::optional<std::string>> token_text(const json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return std::optional<std::string>();
  const json* text = &*it;
  if (it->is_object() && it->contains("content")) text = &it->at("content");
  if (!text->is_string()) return bad_model(key, "a string, or an object with a string 'content', is needed");
  return std::optional<std::string>(text->get<std::string>());
}

// A string, or a list of named templates of which "default" is taken.
Result<std::optional<std::string>> template_text(const json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) return std::optional<std::string>();
  if (it->is_string()) return std::optional<std::string>(it->get<std::string>());
  if (it->is_array()) {
    for (const json& named : *it) {
      const bool is_default = named.is_object() && named.contains("name") && named["name"] == "default";
      if (is_default && named.contains("template") && named["template"].is_string()) {
        return std::optional<std::string>(named["template"].get<std::string>());
      }
    }
    return std::optional<std::string>();
  }
  return bad_model("chat_template", "a string or a list of named templates is needed");
}

Result<void> read_settings(std::string_view bytes, const Tokenizer& tokenizer, TokenizerSettings& settings) {
  json config;
  try {
    config = json::parse(bytes.begin(), bytes.end());
  } catch (const json::parse_error& e) {
    // The parser counts the byte that does not fit, too.
    return bad_model(fmt::format("byte {}", e.byte > 0 ? e.byte - 1 : 0), "the file is not JSON from here on");
  } catch (const json::exception& e) {
    return bad_model("byte 0", fmt::format("the file cannot be read as JSON: {}", e.what()));
  }
  if (!config.is_object()) return bad_model("byte 0", "the file is not a JSON object");
  for (const char* key : {"add_bos_token", "add_eos_token"}) {
    if (config.contains(key) && config[key] == true) return unsupported(key, "the value true is not supported");
  }
  const std::pair<const char*, std::optional<int32_t>*> tokens[] = {
      {"bos_token", &settings.bos_id}, {"eos_token", &settings.eos_id}, {"pad_token", &settings.pad_id}};
  for (const auto& [key, id] : tokens) {
    QUERN_TRY(const std::optional<std::string> text, token_text(config, key));
    if (!text) continue;
    *id = tokenizer.id_of(*text);
    if (!*id) return bad_model(key, fmt::format("{} is not in the vocabulary", quote_name(*text)));
  }
  QUERN_TRY(settings.chat_template, template_text(config));
  return {};
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
  const std::filesystem::path template_path = folder / "chat_template.jinja";
  if (has_part(template_path)) {
    QUERN_TRY(const FileMap chat_template, open_bounded(template_path));
    if (find_invalid_utf8(text_of_map(chat_template)))
      return bad_model(template_path.string(), "the file is not valid UTF-8");
    parts->settings.chat_template = std::string(text_of_map(chat_template));
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
