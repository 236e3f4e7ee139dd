// SPDX-License-Identifier: Apache-2.0
// Reading generation_config.json. Every setting is read, kept as one that is not carried out, or known to leave the
// text as it is.
#include "formats/generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/quote_name.h"
#include "formats/json_section.h"

namespace quern::formats {
namespace {

using nlohmann::json;

// Settings of transformers 5.17 that change the text, with the value besides null that stands for "off"; and those of
// other engines that are found in such files.
enum class Off : uint8_t { null, zero, one, no, empty };
struct OtherSetting {
  std::string_view key;
  Off off;
};
constexpr OtherSetting kOthers[] = {
    {"presence_penalty", Off::zero},
    {"frequency_penalty", Off::zero},
    {"min_length", Off::zero},
    {"min_new_tokens", Off::zero},
    {"max_time", Off::null},
    {"num_beams", Off::one},
    {"num_beam_groups", Off::one},
    {"num_return_sequences", Off::one},
    {"penalty_alpha", Off::zero},
    {"dola_layers", Off::null},
    {"constraints", Off::null},
    {"force_words_ids", Off::null},
    {"top_h", Off::null},
    {"typical_p", Off::one},
    {"epsilon_cutoff", Off::zero},
    {"eta_cutoff", Off::zero},
    {"encoder_repetition_penalty", Off::one},
    {"no_repeat_ngram_size", Off::zero},
    {"encoder_no_repeat_ngram_size", Off::zero},
    {"bad_words_ids", Off::null},
    {"sequence_bias", Off::null},
    {"begin_suppress_tokens", Off::empty},
    {"forced_bos_token_id", Off::null},
    {"forced_eos_token_id", Off::null},
    {"exponential_decay_length_penalty", Off::null},
    {"remove_invalid_values", Off::no},
    {"token_healing", Off::no},
    {"guidance_scale", Off::one},
    {"watermarking_config", Off::null},
    {"assistant_ensemble_weight", Off::null},
};

// Without influence on the text of one sequence: what search by beams alone reads, how computing is arranged (lossless
// speculation included), what else is given out, ids that pad or start where there is no prompt, and remarks.
constexpr std::string_view kWithoutInfluence[] = {
    "early_stopping",
    "length_penalty",
    "diversity_penalty",
    "renormalize_logits",
    "use_mtp",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "speculation_type",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "low_memory",
    "prefill_chunk_size",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    "_from_model_config",
    "_commit_hash",
    "transformers_version",
};

// Read below.
constexpr std::string_view kRead[] = {"do_sample",    "temperature",        "top_k",         "top_p",
                                      "min_p",        "repetition_penalty", "eos_token_id",  "suppress_tokens",
                                      "stop_strings", "max_length",         "max_new_tokens"};

bool is_off(const json& value, Off off) {
  switch (off) {
    case Off::null: return value.is_null();
    case Off::zero: return value == 0;
    case Off::one: return value == 1;
    case Off::no: return value == false;
    case Off::empty: return value.is_array() && value.empty();
  }
  return false;
}

Result<void> read_others(const JsonSection& root, const json& document, std::vector<std::string>& out) {
  for (const OtherSetting& setting : kOthers) {
    const json* value = root.find(setting.key);
    if (value == nullptr) continue;
    const bool number = setting.off == Off::zero || setting.off == Off::one;
    if (number && !value->is_number()) return root.wrong(setting.key, "a number");
    if (setting.off == Off::no && !value->is_boolean()) return root.wrong(setting.key, "true or false");
    if (!is_off(*value, setting.off)) out.push_back(fmt::format("{} {}", setting.key, root.shown(setting.key)));
  }
  const auto among = [](const auto& names, std::string_view key) {
    return std::find(std::begin(names), std::end(names), key) != std::end(names);
  };
  const auto is_other = [](std::string_view key) {
    return std::any_of(std::begin(kOthers), std::end(kOthers), [&](const auto& other) { return other.key == key; });
  };
  for (const auto& [key, value] : document.items()) {
    if (is_other(key) || among(kRead, key) || among(kWithoutInfluence, key) || value.is_null()) continue;
    out.push_back(fmt::format("{} {} (not known)", quote_name(key), root.shown(key)));
  }
  return {};
}

Result<GenerationConfig> read_config(const json& document, int32_t vocab, std::string_view where) {
  QUERN_TRY(const JsonSection root, JsonSection::root(document, where));
  GenerationConfig out;
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr int32_t kMostTokens = std::numeric_limits<int32_t>::max();
  QUERN_TRY_VOID(root.bool_into("do_sample", out.do_sample));
  QUERN_TRY_VOID(root.number_into("temperature", 0, kMost, out.temperature));
  QUERN_TRY_VOID(root.integer_into("top_k", 0, kMostTokens, out.top_k));
  QUERN_TRY_VOID(root.number_into("top_p", 0, 1, out.top_p));
  QUERN_TRY_VOID(root.number_into("min_p", 0, 1, out.min_p));
  QUERN_TRY_VOID(root.number_into("repetition_penalty", 0, kMost, out.repetition_penalty));
  // The penalty divides.
  if (out.repetition_penalty == 0) return root.wrong("repetition_penalty", "a number above 0");
  QUERN_TRY_VOID(root.ids_into("eos_token_id", vocab, out.eos_token_ids));
  QUERN_TRY_VOID(root.id_list_into("suppress_tokens", vocab, out.suppress_tokens));
  QUERN_TRY_VOID(root.texts_into("stop_strings", out.stop_strings));
  // Where a text ends at the latest is what every call says for itself.
  int32_t limit = 0;
  QUERN_TRY_VOID(root.integer_into("max_length", 0, kMostTokens, limit));
  QUERN_TRY_VOID(root.integer_into("max_new_tokens", 1, kMostTokens, limit));
  // transformers refuses to sample with it.
  if (out.do_sample && out.temperature == 0) out.other.emplace_back("temperature 0 with do_sample true");
  QUERN_TRY_VOID(read_others(root, document, out.other));
  return out;
}

}  // namespace

Result<GenerationConfig> GenerationConfig::parse(std::string_view text, int32_t vocab, std::string_view where) {
  QUERN_TRY(const json document, parse_json(text, where));
  return read_config(document, vocab, where);
}

Result<GenerationConfig> GenerationConfig::load(const std::filesystem::path& path, int32_t vocab) {
  QUERN_TRY(const json document, load_json(path));
  return read_config(document, vocab, path.string());
}

}  // namespace quern::formats
