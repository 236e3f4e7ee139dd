// SPDX-License-Identifier: Apache-2.0
// Reading genai_config.json. Unknown keys are passed over, because every release of the exporter adds some; the few
// that would change what the decoder computes are refused. In the search section every key counts.
#include "formats/genai_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/quote_name.h"
#include "formats/json_section.h"

namespace quern::formats {
namespace {

using nlohmann::json;

// Far above every model, and low enough that products of two stay in 64 bits and names of layers stay few.
constexpr int32_t kMaxTokens = 1 << 30;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxLayers = 4096;

// A template of value names: one %d and no other per cent sign.
Result<void> template_into(const JsonSection& section, std::string_view key, std::string& out) {
  QUERN_TRY_VOID(section.text_into(key, out));
  const size_t at = out.find('%');
  if (at == std::string::npos || out.compare(at, 2, "%d") != 0 || out.find('%', at + 1) != std::string::npos) {
    return section.wrong(key, "a text with exactly one %d and no other per cent sign");
  }
  return {};
}

Result<void> read_filename(const JsonSection& decoder, std::string& out) {
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

Result<void> read_names(const JsonSection& decoder, GenaiDecoder& out) {
  if (decoder.find("inputs") != nullptr) {
    QUERN_TRY(const JsonSection inputs, decoder.section("inputs"));
    QUERN_TRY_VOID(inputs.refuse("past_names", "a cache with keys and values in one tensor"));
    QUERN_TRY_VOID(inputs.text_into("input_ids", out.inputs.input_ids));
    QUERN_TRY_VOID(inputs.text_into("attention_mask", out.inputs.attention_mask));
    QUERN_TRY_VOID(template_into(inputs, "past_key_names", out.inputs.past_key_names));
    QUERN_TRY_VOID(template_into(inputs, "past_value_names", out.inputs.past_value_names));
  }
  if (decoder.find("outputs") != nullptr) {
    QUERN_TRY(const JsonSection outputs, decoder.section("outputs"));
    QUERN_TRY_VOID(outputs.refuse("present_names", "a cache with keys and values in one tensor"));
    QUERN_TRY_VOID(outputs.text_into("logits", out.outputs.logits));
    QUERN_TRY_VOID(template_into(outputs, "present_key_names", out.outputs.present_key_names));
    QUERN_TRY_VOID(template_into(outputs, "present_value_names", out.outputs.present_value_names));
  }
  return {};
}

Result<void> read_decoder(const JsonSection& model, GenaiDecoder& out) {
  QUERN_TRY(const JsonSection decoder, model.section("decoder"));
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

// Members of the section that are not read below. The exporter's own runtime takes no others than these and those.
void read_other_search(const JsonSection& search, const json& members, std::vector<std::string>& out) {
  constexpr std::string_view kKnown[] = {
      "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "max_length", "min_length", "num_beams",
      "num_return_sequences", "no_repeat_ngram_size", "length_penalty", "diversity_penalty", "early_stopping",
      "past_present_share_buffer",
      // Without influence on what may come out: batches, the start of random numbers, and the cut of prompts.
      "batch_size", "random_seed", "chunk_size"};
  for (const auto& [key, value] : members.items()) {
    if (value.is_null() || std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown)) continue;
    out.push_back(fmt::format("{} {}", quote_name(key), search.shown(key)));
  }
}

Result<void> read_search(const JsonSection& root, int32_t context_length, GenaiSearch& out) {
  constexpr float kMaxPenalty = 1e4f;
  constexpr float kMaxTemperature = 1e4f;
  constexpr int32_t kMaxSequences = 1024;
  if (root.find("search") != nullptr) {
    QUERN_TRY(const JsonSection search, root.section("search"));
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
    read_other_search(search, *root.find("search"), out.other);
  }
  if (out.max_length == 0) out.max_length = context_length;
  return {};
}

Result<GenaiConfig> read_config(const json& document, std::string_view where) {
  QUERN_TRY(const JsonSection root, JsonSection::root(document, where));
  QUERN_TRY(const JsonSection model, root.section("model"));
  GenaiConfig out;
  if (model.find("type") == nullptr) return model.missing("type");
  QUERN_TRY_VOID(model.text_into("type", out.type));
  for (const std::string_view part : {"encoder", "embedding", "vision", "speech"}) {
    QUERN_TRY_VOID(model.refuse(part, "a model with parts besides the decoder"));
  }
  QUERN_TRY(out.vocab_size, model.integer("vocab_size", 1, kMaxTokens));
  QUERN_TRY(out.context_length, model.integer("context_length", 1, kMaxTokens));
  QUERN_TRY_VOID(model.id_into("bos_token_id", out.vocab_size, out.bos_token_id));
  QUERN_TRY_VOID(model.id_into("pad_token_id", out.vocab_size, out.pad_token_id));
  if (model.find("eos_token_id") == nullptr) return model.missing("eos_token_id");
  QUERN_TRY_VOID(model.ids_into("eos_token_id", out.vocab_size, out.eos_token_ids));
  QUERN_TRY_VOID(read_decoder(model, out.decoder));
  QUERN_TRY_VOID(read_search(root, out.context_length, out.search));
  return out;
}

}  // namespace

Result<GenaiConfig> GenaiConfig::parse(std::string_view text, std::string_view where) {
  QUERN_TRY(const json document, parse_json(text, where));
  return read_config(document, where);
}

Result<GenaiConfig> GenaiConfig::load(const std::filesystem::path& path) {
  QUERN_TRY(const json document, load_json(path));
  return read_config(document, path.string());
}

std::string layer_value_name(std::string_view name_template, int32_t layer) {
  const size_t at = name_template.find("%d");
  QUERN_CHECK(at != std::string_view::npos, "templates are checked when they are read");
  return fmt::format("{}{}{}", name_template.substr(0, at), layer, name_template.substr(at + 2));
}

}  // namespace quern::formats
