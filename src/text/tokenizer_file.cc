// SPDX-License-Identifier: Apache-2.0
// Each part of the file is checked field by field: a field that is not known here is accepted only with a value that
// means "off", so a later extension of the format cannot be overlooked.
#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/quote_name.h"
#include "text/model_file.h"
#include "text/split_pattern.h"
#include "text/tokenizer_json.h"

namespace quern::text {
namespace {

using nlohmann::json;

// Bounds the work of looking for added tokens in repetitive text; published ones have at most 30 bytes.
constexpr size_t kMaxAddedTokenBytes = 1024;

// What ByteLevel splits by if it is asked to (the pattern of GPT-2).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool means_off(const json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_string() || value.is_structured()) && value.empty()) || value == json("") || value == json(0);
}

Error not_supported(const std::string& path, const json& value) {
  return unsupported(path, fmt::format("the value {} is not supported", quoted_json(value)));
}

// An object of the file with its path.
class Object {
 public:
  static Result<Object> of(const json& value, std::string path) {
    if (!value.is_object()) return bad_model(path, fmt::format("an object is needed, not {}", quoted_json(value)));
    return Object(value, std::move(path));
  }

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const {
    return path_.empty() ? path_name(key) : fmt::format("{}.{}", path_, path_name(key));
  }

  const json* find(const char* key) const {
    const auto it = value_->find(key);
    return it == value_->end() ? nullptr : &*it;
  }

  Result<void> only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : value_->items()) {
      if (std::find(known.begin(), known.end(), key) == known.end() && !means_off(value)) {
        return unsupported(path_of(key), fmt::format("the field is not known; its value is {}", quoted_json(value)));
      }
    }
    return {};
  }

  // Absent counts as off.
  Result<void> off(const char* key) const {
    const json* value = find(key);
    if (value != nullptr && !means_off(*value)) return not_supported(path_of(key), *value);
    return {};
  }

  Result<bool> boolean(const char* key, std::optional<bool> otherwise = std::nullopt) const {
    const json* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) return bad_model(path_of(key), "the field is missing; true or false is needed");
    if (!value->is_boolean())
      return bad_model(path_of(key), fmt::format("true or false is needed, not {}", quoted_json(*value)));
    return value->get<bool>();
  }

  Result<std::string> string(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return bad_model(path_of(key), "the field is missing; a string is needed");
    if (!value->is_string())
      return bad_model(path_of(key), fmt::format("a string is needed, not {}", quoted_json(*value)));
    return value->get<std::string>();
  }

  Result<const json*> array(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return bad_model(path_of(key), "the field is missing; an array is needed");
    if (!value->is_array())
      return bad_model(path_of(key), fmt::format("an array is needed, not {}", quoted_json(*value)));
    return value;
  }

  Result<Object> object(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return bad_model(path_of(key), "the field is missing; an object is needed");
    return of(*value, path_of(key));
  }

 private:
  Object(const json& value, std::string path) : value_(&value), path_(std::move(path)) {}
  const json* value_;
  std::string path_;
};

Error type_not_supported(const Object& object, const std::string& type) {
  return unsupported(object.path(), fmt::format("the type {} is not supported", quote_name(type)));
}

// Calls `read(Object)` for every element of an array of objects.
template <class Read>
Result<void> for_each_object(const Object& owner, const char* key, Read read) {
  QUERN_TRY(const json* const list, owner.array(key));
  for (size_t i = 0; i < list->size(); ++i) {
    QUERN_TRY(const Object element, Object::of((*list)[i], fmt::format("{}[{}]", owner.path_of(key), i)));
    QUERN_TRY_VOID(read(element));
  }
  return {};
}

Result<void> read_normalizer(const Object& normalizer, TokenizerFile& file) {
  QUERN_TRY(const std::string type, normalizer.string("type"));
  if (type == "NFC") {
    file.nfc = true;
    return normalizer.only({"type"});
  }
  if (type != "Sequence") return type_not_supported(normalizer, type);
  QUERN_TRY_VOID(normalizer.only({"type", "normalizers"}));
  return for_each_object(normalizer, "normalizers", [&](const Object& o) { return read_normalizer(o, file); });
}

Result<void> read_split(const Object& split, TokenizerFile& file) {
  QUERN_TRY_VOID(split.only({"type", "pattern", "behavior", "invert"}));
  QUERN_TRY_VOID(split.off("invert"));
  QUERN_TRY(const std::string behavior, split.string("behavior"));
  if (behavior != "Isolated") return not_supported(split.path_of("behavior"), behavior);
  QUERN_TRY(const Object pattern, split.object("pattern"));
  QUERN_TRY_VOID(pattern.only({"Regex", "String"}));
  const bool literal = pattern.find("String") != nullptr;
  QUERN_TRY(const std::string text, pattern.string(literal ? "String" : "Regex"));
  file.stages.push_back({literal ? literal_pattern(text) : text, pattern.path_of(literal ? "String" : "Regex")});
  return {};
}

// Splits, then ByteLevel exactly once and last: `has_bytes` says that it has come.
Result<void> read_pre_tokenizer(const Object& pre_tokenizer, bool& has_bytes, TokenizerFile& file) {
  QUERN_TRY(const std::string type, pre_tokenizer.string("type"));
  if (type == "Sequence") {
    QUERN_TRY_VOID(pre_tokenizer.only({"type", "pretokenizers"}));
    return for_each_object(pre_tokenizer, "pretokenizers",
                           [&](const Object& o) { return read_pre_tokenizer(o, has_bytes, file); });
  }
  if (has_bytes)
    return unsupported(pre_tokenizer.path(), fmt::format("{} after ByteLevel is not supported", quote_name(type)));
  if (type == "Split") return read_split(pre_tokenizer, file);
  if (type != "ByteLevel") return type_not_supported(pre_tokenizer, type);
  QUERN_TRY_VOID(pre_tokenizer.only({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  QUERN_TRY(const bool prefix, pre_tokenizer.boolean("add_prefix_space"));
  if (prefix) return not_supported(pre_tokenizer.path_of("add_prefix_space"), true);
  QUERN_TRY(const bool use_regex, pre_tokenizer.boolean("use_regex", true));
  if (use_regex) file.stages.push_back({kByteLevelPattern, pre_tokenizer.path_of("use_regex")});
  has_bytes = true;
  return {};
}

// Only those that change no id: ByteLevel moves offsets, a template may do nothing.
Result<void> read_post_processor(const Object& processor) {
  QUERN_TRY(const std::string type, processor.string("type"));
  if (type == "ByteLevel") return processor.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (type == "Sequence") {
    QUERN_TRY_VOID(processor.only({"type", "processors"}));
    return for_each_object(processor, "processors", read_post_processor);
  }
  if (type != "TemplateProcessing") return type_not_supported(processor, type);
  QUERN_TRY_VOID(processor.only({"type", "single", "pair", "special_tokens"}));
  QUERN_TRY(const json* const single, processor.array("single"));
  const bool plain = single->size() == 1 && single->front().is_object() && single->front().contains("Sequence");
  if (!plain) return not_supported(processor.path_of("single"), *single);
  return {};
}

Result<void> read_decoder(const Object& decoder) {
  QUERN_TRY(const std::string type, decoder.string("type"));
  if (type == "ByteLevel") return decoder.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (type != "Sequence") return type_not_supported(decoder, type);
  QUERN_TRY_VOID(decoder.only({"type", "decoders"}));
  QUERN_TRY(const json* const decoders, decoder.array("decoders"));
  // A second ByteLevel would decode the text of the first once more.
  if (decoders->size() != 1) return not_supported(decoder.path_of("decoders"), *decoders);
  return for_each_object(decoder, "decoders", read_decoder);
}

Result<void> read_model(const Object& model, TokenizerFile& file) {
  if (model.find("type") != nullptr) {
    QUERN_TRY(const std::string type, model.string("type"));
    if (type != "BPE") return type_not_supported(model, type);
  }
  // fuse_unk has no effect without an unknown token.
  QUERN_TRY_VOID(model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                             "fuse_unk", "byte_fallback", "ignore_merges"}));
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    QUERN_TRY_VOID(model.off(key));
  }
  QUERN_TRY(const bool ignore_merges, model.boolean("ignore_merges", false));
  file.model.set_ignore_merges(ignore_merges);
  return {};
}

Result<AddedToken> read_added_token(const Object& object) {
  QUERN_TRY_VOID(object.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  QUERN_TRY_VOID(object.off("single_word"));
  AddedToken token;
  QUERN_TRY(token.text, object.string("content"));
  if (token.text.empty()) return bad_model(object.path_of("content"), "the text of an added token is empty");
  if (token.text.size() > kMaxAddedTokenBytes) {
    return unsupported(object.path_of("content"),
                       fmt::format("the text of an added token has {} bytes; at most {} are supported",
                                   token.text.size(), kMaxAddedTokenBytes));
  }
  const json* id = object.find("id");
  if (id == nullptr || !id->is_number_integer()) return bad_model(object.path_of("id"), "an integer is needed");
  const bool in_range = id->is_number_unsigned() && id->get<uint64_t>() < static_cast<uint64_t>(BpeModel::kMaxIds);
  if (!in_range) {
    return bad_model(object.path_of("id"),
                     fmt::format("the id is {}; ids are 0 to {}", quoted_json(*id), BpeModel::kMaxIds - 1));
  }
  token.id = id->get<int32_t>();
  QUERN_TRY(token.strip_left, object.boolean("lstrip"));
  QUERN_TRY(token.strip_right, object.boolean("rstrip"));
  QUERN_TRY(token.normalized, object.boolean("normalized"));
  QUERN_TRY(token.special, object.boolean("special"));
  return token;
}

// The reference numbers the tokens that are not in the vocabulary one after another, whatever the file says. A file
// that disagrees would encode differently there, so it is refused.
Result<void> read_added_tokens(const Object& root, TokenizerFile& file) {
  if (root.find("added_tokens") == nullptr || root.find("added_tokens")->is_null()) return {};
  std::unordered_set<std::string> texts;
  std::unordered_set<int32_t> ids;
  const int32_t entries = file.model.entries();
  int32_t next = entries;
  return for_each_object(root, "added_tokens", [&](const Object& object) -> Result<void> {
    QUERN_TRY(AddedToken token, read_added_token(object));
    const std::optional<int32_t> in_vocabulary = file.model.id_of(token.text);
    const int32_t expected = in_vocabulary.value_or(next);
    if (token.id != expected) {
      return unsupported(object.path_of("id"), fmt::format("{} has the id {}; its place in the vocabulary is {}",
                                                           quote_name(token.text), token.id, expected));
    }
    if (!texts.insert(token.text).second) {
      return bad_model(object.path_of("content"),
                       fmt::format("the added token {} is there twice", quote_name(token.text)));
    }
    if (!ids.insert(token.id).second || (!in_vocabulary && !file.model.text_of(token.id).empty())) {
      return bad_model(object.path_of("id"),
                       fmt::format("the id {} of {} has another text already", token.id, quote_name(token.text)));
    }
    next = std::max(next, token.id + 1);
    file.added_tokens.push_back(std::move(token));
    return {};
  });
}

template <class Read>
Result<void> read_optional(const Object& root, const char* key, Read read) {
  const json* value = root.find(key);
  if (value == nullptr || value->is_null()) return {};
  QUERN_TRY(const Object object, root.object(key));
  return read(object);
}

}  // namespace

Result<TokenizerFile> read_tokenizer_file(std::string_view bytes) {
  QUERN_TRY(TokenizerJson parsed, parse_tokenizer_json(bytes));
  TokenizerFile file;
  file.model = std::move(parsed.model);
  QUERN_TRY(const Object root, Object::of(parsed.tree, ""));
  QUERN_TRY_VOID(
      root.only({"version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}));
  if (const json* version = root.find("version"); version != nullptr && *version != "1.0") {
    return not_supported("version", *version);
  }
  QUERN_TRY(const Object model, root.object("model"));
  QUERN_TRY_VOID(read_model(model, file));
  QUERN_TRY_VOID(read_added_tokens(root, file));
  QUERN_TRY_VOID(read_optional(root, "normalizer", [&](const Object& o) { return read_normalizer(o, file); }));
  bool has_bytes = false;
  QUERN_TRY_VOID(
      read_optional(root, "pre_tokenizer", [&](const Object& o) { return read_pre_tokenizer(o, has_bytes, file); }));
  if (!has_bytes) return unsupported("pre_tokenizer", "a pre-tokenizer without ByteLevel is not supported");
  QUERN_TRY_VOID(read_optional(root, "post_processor", read_post_processor));
  const json* decoder = root.find("decoder");
  if (decoder == nullptr || decoder->is_null())
    return unsupported("decoder", "no decoder is not supported; ByteLevel is");
  QUERN_TRY(const Object decoder_object, root.object("decoder"));
  QUERN_TRY_VOID(read_decoder(decoder_object));
  return file;
}

}  // namespace quern::text
