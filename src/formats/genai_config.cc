// SPDX-License-Identifier: Apache-2.0
// Reading genai_config.json. Unknown keys are passed over, because every release of the exporter adds some; the few
// that would change what the decoder computes are refused.
#include "formats/genai_config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/file_map.h"
#include "base/model_part.h"

namespace quern::formats {
namespace {

using nlohmann::json;

// Written files have a few KiB.
constexpr size_t kMaxFileBytes = size_t{1} << 20;

// Far above every model, and low enough that products of two stay in 64 bits and names of layers stay few.
constexpr int32_t kMaxTokens = 1 << 30;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxLayers = 4096;
constexpr size_t kMaxEosTokens = 1024;
constexpr size_t kMaxNameBytes = 1024;
constexpr int kMaxDepth = 64;

// One JSON object and its path, for reading typed members. A member that is null counts as absent.
class Section {
 public:
  Section(const json& object, std::string where, std::string path)
      : object_(&object), where_(std::move(where)), path_(std::move(path)) {}

  std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }
  std::string place(std::string_view key) const { return fmt::format("{}: {}", where_, path_of(key)); }

  // Null when absent.
  const json* find(std::string_view key) const {
    const auto at = object_->find(key);
    return at == object_->end() || at->is_null() ? nullptr : &*at;
  }

  Error missing(std::string_view key) const { return bad_model(place(key), "the value is missing"); }

  Error wrong(std::string_view key, std::string_view allowed) const {
    constexpr size_t kMaxShown = 80;
    std::string shown = find(key)->dump(-1, ' ', true, json::error_handler_t::replace);
    if (shown.size() > kMaxShown) shown = shown.substr(0, kMaxShown) + "...";
    return bad_model(place(key), fmt::format("the value is {}, allowed is {}", shown, allowed));
  }

  Result<Section> section(std::string_view key) const {
    const json* node = find(key);
    if (node == nullptr) return missing(key);
    if (!node->is_object()) return wrong(key, "an object");
    return Section(*node, where_, path_of(key));
  }

  // Leaves `out` as it is when the member is absent.
  Result<void> integer_into(std::string_view key, int32_t lowest, int32_t highest, int32_t& out) const {
    const json* node = find(key);
    if (node == nullptr) return {};
    const std::optional<int32_t> value = as_integer(*node, lowest, highest);
    if (!value) return wrong(key, fmt::format("an integer from {} to {}", lowest, highest));
    out = *value;
    return {};
  }

  Result<int32_t> integer(std::string_view key, int32_t lowest, int32_t highest) const {
    if (find(key) == nullptr) return missing(key);
    int32_t value = 0;
    QUERN_TRY_VOID(integer_into(key, lowest, highest, value));
    return value;
  }

  Result<void> number_into(std::string_view key, float lowest, float highest, float& out) const {
    const json* node = find(key);
    if (node == nullptr) return {};
    // Checked before it is narrowed: what rounds to 0 must not take on the meaning of 0.
    const double exact = node->is_number() ? node->get<double>() : NAN;
    const bool inside = exact >= static_cast<double>(lowest) && exact <= static_cast<double>(highest);
    if (!inside || (exact != 0 && static_cast<float>(exact) == 0)) {
      return wrong(key, fmt::format("a number from {} to {}", lowest, highest));
    }
    out = static_cast<float>(exact);
    return {};
  }

  Result<void> bool_into(std::string_view key, bool& out) const {
    const json* node = find(key);
    if (node == nullptr) return {};
    if (!node->is_boolean()) return wrong(key, "true or false");
    out = node->get<bool>();
    return {};
  }

  Result<void> text_into(std::string_view key, std::string& out) const {
    const json* node = find(key);
    if (node == nullptr) return {};
    const auto* value = node->get_ptr<const std::string*>();
    if (value == nullptr || value->empty() || value->size() > kMaxNameBytes || value->find('\0') != std::string::npos) {
      return wrong(key, fmt::format("a text of 1 to {} bytes without NUL", kMaxNameBytes));
    }
    out = *value;
    return {};
  }

  // A template of value names: one %d and no other per cent sign.
  Result<void> template_into(std::string_view key, std::string& out) const {
    QUERN_TRY_VOID(text_into(key, out));
    const size_t at = out.find('%');
    if (at == std::string::npos || out.compare(at, 2, "%d") != 0 || out.find('%', at + 1) != std::string::npos) {
      return wrong(key, "a text with exactly one %d and no other per cent sign");
    }
    return {};
  }

  Result<void> refuse(std::string_view key, std::string_view feature) const {
    if (find(key) == nullptr) return {};
    return unsupported(place(key), fmt::format("{} is not supported", feature));
  }

  static std::optional<int32_t> as_integer(const json& node, int32_t lowest, int32_t highest) {
    if (!node.is_number_integer()) return std::nullopt;
    // Unsigned values above the signed range would wrap.
    if (node.is_number_unsigned() &&
        node.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      return std::nullopt;
    }
    const auto value = node.get<int64_t>();
    if (value < lowest || value > highest) return std::nullopt;
    return static_cast<int32_t>(value);
  }

 private:
  const json* object_;
  std::string where_;
  std::string path_;
};

// Printing a JSON value recurses, so depth is bounded before anything is built.
bool nests_deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text && c == '\\')
      ++i;
    else if (c == '"')
      in_text = !in_text;
    else if (!in_text && (c == '[' || c == '{') && ++depth > limit)
      return true;
    else if (!in_text && (c == ']' || c == '}'))
      --depth;
  }
  return false;
}

Result<void> read_token(const Section& model, std::string_view key, int32_t vocab_size, std::optional<int32_t>& out) {
  if (model.find(key) == nullptr) return {};
  QUERN_TRY(out, model.integer(key, 0, vocab_size - 1));
  return {};
}

Result<void> read_eos(const Section& model, GenaiConfig& out) {
  constexpr std::string_view kKey = "eos_token_id";
  const json* node = model.find(kKey);
  if (node == nullptr) return model.missing(kKey);
  const std::string allowed =
      fmt::format("an integer from 0 to {}, or a list of 1 to {} of them", out.vocab_size - 1, kMaxEosTokens);
  const auto add = [&](const json& entry) {
    const std::optional<int32_t> id = Section::as_integer(entry, 0, out.vocab_size - 1);
    if (id) out.eos_token_ids.push_back(*id);
    return id.has_value();
  };
  if (!node->is_array()) {
    if (!add(*node)) return model.wrong(kKey, allowed);
    return {};
  }
  if (node->empty() || node->size() > kMaxEosTokens) return model.wrong(kKey, allowed);
  for (const json& entry : *node) {
    if (!add(entry)) return model.wrong(kKey, allowed);
  }
  return {};
}

Result<void> read_filename(const Section& decoder, std::string& out) {
  constexpr std::string_view kKey = "filename";
  if (decoder.find(kKey) == nullptr) return decoder.missing(kKey);
  QUERN_TRY_VOID(decoder.text_into(kKey, out));
  const std::filesystem::path path(out);
  bool inside = path.is_relative() && path.has_filename();
  for (const std::filesystem::path& part : path) inside = inside && part != "..";
  if (!inside || path.filename() == ".") {
    return decoder.wrong(kKey, "the relative path of a file inside of the configuration's folder");
  }
  return {};
}

Result<void> read_names(const Section& decoder, GenaiDecoder& out) {
  if (decoder.find("inputs") != nullptr) {
    QUERN_TRY(const Section inputs, decoder.section("inputs"));
    QUERN_TRY_VOID(inputs.refuse("past_names", "a cache with keys and values in one tensor"));
    QUERN_TRY_VOID(inputs.text_into("input_ids", out.inputs.input_ids));
    QUERN_TRY_VOID(inputs.text_into("attention_mask", out.inputs.attention_mask));
    if (inputs.find("position_ids") != nullptr) {
      QUERN_TRY_VOID(inputs.text_into("position_ids", out.inputs.position_ids.emplace()));
    }
    QUERN_TRY_VOID(inputs.template_into("past_key_names", out.inputs.past_key_names));
    QUERN_TRY_VOID(inputs.template_into("past_value_names", out.inputs.past_value_names));
  }
  if (decoder.find("outputs") != nullptr) {
    QUERN_TRY(const Section outputs, decoder.section("outputs"));
    QUERN_TRY_VOID(outputs.refuse("present_names", "a cache with keys and values in one tensor"));
    QUERN_TRY_VOID(outputs.text_into("logits", out.outputs.logits));
    QUERN_TRY_VOID(outputs.template_into("present_key_names", out.outputs.present_key_names));
    QUERN_TRY_VOID(outputs.template_into("present_value_names", out.outputs.present_value_names));
  }
  return {};
}

Result<void> read_decoder(const Section& model, GenaiDecoder& out) {
  QUERN_TRY(const Section decoder, model.section("decoder"));
  QUERN_TRY_VOID(decoder.refuse("pipeline", "a decoder in several files"));
  QUERN_TRY_VOID(decoder.refuse("sliding_window", "prompt processing in a sliding window"));
  QUERN_TRY_VOID(read_filename(decoder, out.filename));
  QUERN_TRY(out.head_size, decoder.integer("head_size", 1, kMaxWidth));
  QUERN_TRY(out.hidden_size, decoder.integer("hidden_size", 1, kMaxWidth));
  QUERN_TRY(out.num_attention_heads, decoder.integer("num_attention_heads", 1, kMaxWidth));
  QUERN_TRY(out.num_hidden_layers, decoder.integer("num_hidden_layers", 1, kMaxLayers));
  QUERN_TRY(out.num_key_value_heads, decoder.integer("num_key_value_heads", 1, kMaxWidth));
  if (out.num_attention_heads % out.num_key_value_heads != 0) {
    return decoder.wrong("num_key_value_heads",
                         fmt::format("a divisor of num_attention_heads, which is {}", out.num_attention_heads));
  }
  return read_names(decoder, out);
}

Result<void> read_search(const Section& root, int32_t context_length, GenaiSearch& out) {
  constexpr float kMaxPenalty = 1e4f;
  constexpr float kMaxTemperature = 1e4f;
  constexpr int32_t kMaxSequences = 1024;
  if (root.find("search") != nullptr) {
    QUERN_TRY(const Section search, root.section("search"));
    QUERN_TRY_VOID(search.bool_into("do_sample", out.do_sample));
    QUERN_TRY_VOID(search.number_into("temperature", 0, kMaxTemperature, out.temperature));
    QUERN_TRY_VOID(search.integer_into("top_k", 0, kMaxTokens, out.top_k));
    QUERN_TRY_VOID(search.number_into("top_p", 0, 1, out.top_p));
    QUERN_TRY_VOID(search.number_into("repetition_penalty", 0, kMaxPenalty, out.repetition_penalty));
    // The penalty divides.
    if (out.repetition_penalty == 0) return search.wrong("repetition_penalty", "a number above 0");
    QUERN_TRY_VOID(search.integer_into("max_length", 0, context_length, out.max_length));
    QUERN_TRY_VOID(search.integer_into("min_length", 0, context_length, out.min_length));
    QUERN_TRY_VOID(search.integer_into("num_beams", 1, kMaxSequences, out.num_beams));
    QUERN_TRY_VOID(search.integer_into("num_return_sequences", 1, kMaxSequences, out.num_return_sequences));
    QUERN_TRY_VOID(search.integer_into("no_repeat_ngram_size", 0, context_length, out.no_repeat_ngram_size));
    QUERN_TRY_VOID(search.number_into("length_penalty", -kMaxPenalty, kMaxPenalty, out.length_penalty));
    QUERN_TRY_VOID(search.number_into("diversity_penalty", 0, kMaxPenalty, out.diversity_penalty));
    QUERN_TRY_VOID(search.bool_into("early_stopping", out.early_stopping));
    QUERN_TRY_VOID(search.bool_into("past_present_share_buffer", out.past_present_share_buffer));
    if (out.max_length != 0 && out.min_length > out.max_length) {
      return search.wrong("min_length", fmt::format("up to max_length, which is {}", out.max_length));
    }
  }
  if (out.max_length == 0) out.max_length = context_length;
  return {};
}

Result<GenaiConfig> read_config(const json& document, std::string_view where) {
  if (!document.is_object()) return bad_model(std::string(where), "the file does not hold a JSON object");
  const Section root(document, std::string(where), "");
  QUERN_TRY(const Section model, root.section("model"));
  GenaiConfig out;
  if (model.find("type") == nullptr) return model.missing("type");
  QUERN_TRY_VOID(model.text_into("type", out.type));
  for (const std::string_view part : {"encoder", "embedding", "vision", "speech"}) {
    QUERN_TRY_VOID(model.refuse(part, "a model with parts besides the decoder"));
  }
  QUERN_TRY(out.vocab_size, model.integer("vocab_size", 1, kMaxTokens));
  QUERN_TRY(out.context_length, model.integer("context_length", 1, kMaxTokens));
  QUERN_TRY_VOID(read_token(model, "bos_token_id", out.vocab_size, out.bos_token_id));
  QUERN_TRY_VOID(read_token(model, "pad_token_id", out.vocab_size, out.pad_token_id));
  QUERN_TRY_VOID(read_eos(model, out));
  QUERN_TRY_VOID(read_decoder(model, out.decoder));
  QUERN_TRY_VOID(read_search(root, out.context_length, out.search));
  return out;
}

}  // namespace

Result<GenaiConfig> GenaiConfig::parse(std::string_view text, std::string_view where) {
  if (text.size() > kMaxFileBytes) {
    return bad_model(std::string(where),
                     fmt::format("the file has {} bytes, allowed are {}", text.size(), kMaxFileBytes));
  }
  if (nests_deeper_than(text, kMaxDepth)) {
    return bad_model(std::string(where),
                     fmt::format("the file nests deeper than {} levels, which is the limit", kMaxDepth));
  }
  json document;
  try {
    document = json::parse(text);
  } catch (const json::parse_error& e) {
    // The parser counts the byte that does not fit, too.
    return bad_model(fmt::format("{}@{}", where, e.byte > 0 ? e.byte - 1 : 0), "the file is not JSON from here on");
  } catch (const json::exception& e) {
    return bad_model(std::string(where), fmt::format("the file cannot be read as JSON: {}", e.what()));
  }
  return read_config(document, where);
}

Result<GenaiConfig> GenaiConfig::load(const std::filesystem::path& path) {
  QUERN_TRY_VOID(check_part(path));
  QUERN_TRY(const FileMap map, FileMap::open(path));
  const std::span<const std::byte> bytes = map.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

std::string layer_value_name(std::string_view name_template, int32_t layer) {
  const size_t at = name_template.find("%d");
  QUERN_CHECK(at != std::string_view::npos, "templates are checked when they are read");
  return fmt::format("{}{}{}", name_template.substr(0, at), layer, name_template.substr(at + 2));
}

}  // namespace quern::formats
