// SPDX-License-Identifier: Apache-2.0
// Reading config.json. Every field that would change what the text model computes is read or refused by name; fields of
// training, of the vision tower and of the draft head are passed over.
#include "model/qwen4_exp_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/quote_name.h"
#include "formats/json_section.h"

namespace quern::model {
namespace {

using formats::JsonSection;
using nlohmann::json;
using Config = Qwen4ExpConfig;

// Far above the published model, and low enough that products of two stay in 64 bits and names of layers stay few.
constexpr int32_t kMaxTokens = 1 << 30;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxLayers = 4096;
constexpr int32_t kMaxExperts = 1 << 16;
constexpr int32_t kMaxStreams = 64;
constexpr int32_t kMaxTaps = 64;
constexpr int32_t kMaxShards = 1 << 16;
constexpr int32_t kMaxTableBase = 1 << 28;
// Hash heads of all layers: each has a prime that must be searched for.
constexpr int64_t kMaxHashHeads = 256;

struct IntegerField {
  const char* key;
  int32_t Config::*member;
  int32_t lowest;
  int32_t highest;
};

constexpr IntegerField kFields[] = {
    {"hidden_size", &Config::hidden_size, 1, kMaxWidth},
    {"num_hidden_layers", &Config::num_hidden_layers, 1, kMaxLayers},
    {"vocab_size", &Config::vocab_size, 1, kMaxTokens},
    {"max_position_embeddings", &Config::max_position_embeddings, 1, kMaxTokens},
    {"num_attention_heads", &Config::num_attention_heads, 1, kMaxWidth},
    {"num_key_value_heads", &Config::num_key_value_heads, 1, kMaxWidth},
    {"head_dim", &Config::head_dim, 1, kMaxWidth},
    {"linear_num_key_heads", &Config::linear_num_key_heads, 1, kMaxWidth},
    {"linear_num_value_heads", &Config::linear_num_value_heads, 1, kMaxWidth},
    {"linear_key_head_dim", &Config::linear_key_head_dim, 1, kMaxWidth},
    {"linear_value_head_dim", &Config::linear_value_head_dim, 1, kMaxWidth},
    {"linear_conv_kernel_dim", &Config::linear_conv_kernel_dim, 1, kMaxTaps},
    {"num_experts", &Config::num_experts, 1, kMaxExperts},
    {"num_experts_per_tok", &Config::num_experts_per_tok, 1, kMaxExperts},
    {"moe_intermediate_size", &Config::moe_intermediate_size, 1, kMaxWidth},
    {"shared_expert_intermediate_size", &Config::shared_expert_intermediate_size, 1, kMaxWidth},
    {"hc_count", &Config::hc_count, 2, kMaxStreams},
    {"hc_lowrank", &Config::hc_lowrank, 1, kMaxWidth},
};

constexpr IntegerField kIndexerFields[] = {
    {"indexer_n_heads", &Config::indexer_n_heads, 1, kMaxWidth},
    {"indexer_head_dim", &Config::indexer_head_dim, 1, kMaxWidth},
    {"indexer_budget", &Config::indexer_budget, 1, kMaxTokens},
    {"indexer_compress_ratio", &Config::indexer_compress_ratio, 1, kMaxTokens},
};

constexpr IntegerField kNgramFields[] = {
    {"ple_embed_dim", &Config::ple_embed_dim, 1, kMaxWidth},
    {"ple_conv_kernel_size", &Config::ple_conv_kernel_size, 1, kMaxTaps},
    {"ngram_size", &Config::ngram_size, 2, ops::kMaxNgramSize},
    {"heads_per_ngram", &Config::heads_per_ngram, 1, kMaxWidth},
    {"ngram_vocab_size_base", &Config::ngram_vocab_size_base, 2, kMaxTableBase},
    {"make_ngram_vocab_size_divisible_by", &Config::make_ngram_vocab_size_divisible_by, 1, kMaxTableBase},
    {"split_ngram_parts", &Config::split_ngram_parts, 1, kMaxShards},
};

Result<void> read_integers(const JsonSection& text, std::span<const IntegerField> fields, Config& out) {
  for (const IntegerField& f : fields) {
    QUERN_TRY_VOID(text.integer_into(f.key, f.lowest, f.highest, out.*f.member));
  }
  return {};
}

bool is_text_type(std::string_view type) {
  return std::any_of(std::begin(kQwen4ExpNames), std::end(kQwen4ExpNames),
                     [&](const Qwen4ExpNames& n) { return n.text_model_type == type; });
}

// The part of the file that describes the text model: all of it in the form of the text-only class.
Result<JsonSection> text_section(const JsonSection& root, Config& out) {
  if (root.find("model_type") == nullptr) return root.missing("model_type");
  QUERN_TRY_VOID(root.text_into("model_type", out.model_type));
  if (is_text_type(out.model_type)) return root;
  const bool known = std::any_of(std::begin(kQwen4ExpNames), std::end(kQwen4ExpNames),
                                 [&](const Qwen4ExpNames& n) { return n.model_type == out.model_type; });
  if (!known) return root.not_supported("model_type", "qwen4_exp and qwen4_exp_text here");
  QUERN_TRY(JsonSection text, root.section("text_config"));
  std::string type;
  QUERN_TRY_VOID(text.text_into("model_type", type));
  if (!type.empty() && !is_text_type(type)) return text.not_supported("model_type", "qwen4_exp_text here");
  return text;
}

// Errors: unsupported when the member is there and has another text.
Result<void> require_text(const JsonSection& section, std::string_view key, std::string_view only) {
  std::string value;
  QUERN_TRY_VOID(section.text_into(key, value));
  if (!value.empty() && value != only) return section.not_supported(key, fmt::format("\"{}\" only", only));
  return {};
}

Result<void> require_false(const JsonSection& section, std::string_view key) {
  bool value = false;
  QUERN_TRY_VOID(section.bool_into(key, value));
  if (value) return section.not_supported(key, "false only");
  return {};
}

// What other members of the family set and this model's arithmetic does not have.
Result<void> refuse_variants(const JsonSection& section) {
  QUERN_TRY_VOID(require_text(section, "dtype", "bfloat16"));
  QUERN_TRY_VOID(require_text(section, "torch_dtype", "bfloat16"));
  QUERN_TRY_VOID(require_text(section, "hidden_act", "silu"));
  QUERN_TRY_VOID(require_text(section, "mamba_ssm_dtype", "float32"));
  QUERN_TRY_VOID(require_text(section, "ple_embedding_dtype", "bfloat16"));
  QUERN_TRY_VOID(require_false(section, "attention_bias"));
  QUERN_TRY_VOID(require_false(section, "tie_word_embeddings"));
  return section.refuse("rope_scaling", "a change of the rotary embedding");
}

// The published float8 form: scales over blocks of 128 by 128.
Result<void> read_quantization(const JsonSection& section, Config& out) {
  if (section.find("quantization_config") == nullptr) return {};
  QUERN_TRY(const JsonSection quantization, section.section("quantization_config"));
  QUERN_TRY_VOID(require_text(quantization, "quant_method", "fp8"));
  QUERN_TRY_VOID(require_text(quantization, "fmt", "e4m3"));
  for (const std::string_view key : {"quant_method", "weight_block_size"}) {
    if (quantization.find(key) == nullptr) return quantization.missing(key);
  }
  if (*quantization.find("weight_block_size") != json({128, 128})) {
    return quantization.not_supported("weight_block_size", "[128,128] only");
  }
  out.weights = Config::Weights::fp8;
  return {};
}

Result<void> read_layer_types(const JsonSection& text, Config& out) {
  constexpr std::string_view kKey = "layer_types";
  using Kind = Config::LayerKind;
  const auto layers = static_cast<size_t>(out.num_hidden_layers);
  const json* list = text.find(kKey);
  if (list == nullptr) {
    int32_t interval = 4;
    QUERN_TRY_VOID(text.integer_into("full_attention_interval", 1, kMaxLayers, interval));
    for (int32_t i = 0; i < out.num_hidden_layers; ++i) {
      out.layer_types.push_back((i + 1) % interval == 0 ? Kind::sparse_attention : Kind::linear_attention);
    }
    return {};
  }
  if (!list->is_array() || list->size() != layers) {
    return text.wrong(kKey, fmt::format("a list of {} texts, one a layer (num_hidden_layers)", layers));
  }
  for (const json& entry : *list) {
    const auto* name = entry.get_ptr<const std::string*>();
    if (name == nullptr) return text.wrong(kKey, "a list of texts");
    // This family has no layer of dense attention: all the other names mean the sparse one.
    constexpr std::string_view kSparse[] = {"full_attention", "qwen_sparse_attention", "indexed_attention",
                                            "deepseek_sparse_attention", "hybrid_indexed"};
    if (*name == "linear_attention") {
      out.layer_types.push_back(Kind::linear_attention);
    } else if (std::find(std::begin(kSparse), std::end(kSparse), *name) != std::end(kSparse)) {
      out.layer_types.push_back(Kind::sparse_attention);
    } else {
      return unsupported(text.place(kKey), fmt::format("layer {} is {}, quern runs linear_attention and full_attention",
                                                       out.layer_types.size(), quote_name(*name)));
    }
  }
  return {};
}

Result<void> read_rope(const JsonSection& text, Config& out) {
  constexpr std::string_view kFactor = "partial_rotary_factor";
  QUERN_TRY(const JsonSection rope, text.section("rope_parameters"));
  QUERN_TRY_VOID(require_text(rope, "rope_type", "default"));
  QUERN_TRY_VOID(require_text(rope, "type", "default"));
  for (const std::string_view key : {std::string_view("rope_theta"), kFactor}) {
    if (rope.find(key) == nullptr) return rope.missing(key);
  }
  float narrowed = 0;
  QUERN_TRY_VOID(rope.number_into("rope_theta", 1, std::numeric_limits<float>::max(), narrowed));
  out.rope_theta = rope.find("rope_theta")->get<double>();
  QUERN_TRY_VOID(rope.number_into(kFactor, 0, 1, narrowed));
  if (const json* other = text.find(kFactor); other != nullptr && *other != *rope.find(kFactor)) {
    return text.wrong(kFactor, fmt::format("{}, as in rope_parameters", rope.find(kFactor)->dump()));
  }
  // In double, as the file's decimal is meant.
  const double rotated = out.head_dim * rope.find(kFactor)->get<double>();
  if (rotated < 2 || rotated != std::floor(rotated) || std::fmod(rotated, 2) != 0) {
    return rope.wrong(kFactor, fmt::format("one with which an even number of the {} dimensions of a head (head_dim) is "
                                           "rotated, not {}",
                                           out.head_dim, rotated));
  }
  out.rotary_dim = static_cast<int32_t>(rotated);
  return {};
}

Result<void> read_indexer(const JsonSection& text, Config& out) {
  constexpr std::string_view kKvHeads = "indexer_kv_heads";
  const auto is_there = [&](const IntegerField& f) { return text.find(f.key) != nullptr; };
  const auto there = std::count_if(std::begin(kIndexerFields), std::end(kIndexerFields), is_there);
  if (there == 0 && text.find(kKvHeads) == nullptr) {
    const bool sparse =
        std::count(out.layer_types.begin(), out.layer_types.end(), Config::LayerKind::sparse_attention) > 0;
    if (!sparse) return {};
    return unsupported(
        text.place(kIndexerFields[0].key),
        "is missing, and so are the other fields of the indexer; attention without one is not supported");
  }
  for (const IntegerField& f : kIndexerFields) {
    if (!is_there(f)) return text.missing(f.key);
  }
  QUERN_TRY(const int32_t kv_heads, text.integer(kKvHeads, 1, kMaxWidth));
  if (kv_heads != 1) return text.not_supported(kKvHeads, "1 only");
  QUERN_TRY_VOID(read_integers(text, kIndexerFields, out));
  if (out.indexer_budget % out.indexer_compress_ratio != 0) {
    return text.wrong("indexer_budget",
                      fmt::format("a multiple of indexer_compress_ratio, which is {}", out.indexer_compress_ratio));
  }
  if (out.rotary_dim > out.indexer_head_dim) {
    return text.wrong("indexer_head_dim", fmt::format("at least {}, the rotated dimensions of a head", out.rotary_dim));
  }
  return {};
}

Result<void> read_ngrams(const JsonSection& text, Config& out) {
  constexpr std::string_view kKey = "ple_layer_ids";
  const json* list = text.find(kKey);
  if (list == nullptr) return {};
  const std::string allowed = fmt::format("a list of layers counted from 1 to {}", out.num_hidden_layers);
  if (!list->is_array()) return text.wrong(kKey, allowed);
  for (const json& entry : *list) {
    const std::optional<int64_t> id = JsonSection::as_integer(entry, 1, out.num_hidden_layers);
    if (!id) return text.wrong(kKey, allowed);
    out.ple_layers.push_back(static_cast<int32_t>(*id) - 1);
  }
  std::sort(out.ple_layers.begin(), out.ple_layers.end());
  out.ple_layers.erase(std::unique(out.ple_layers.begin(), out.ple_layers.end()), out.ple_layers.end());
  if (out.ple_layers.empty()) return {};
  out.ple_embed_dim = out.hidden_size;
  QUERN_TRY_VOID(read_integers(text, kNgramFields, out));
  QUERN_TRY_VOID(
      text.long_into("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), out.seed));
  const int64_t heads = int64_t{out.ngram_size - 1} * out.heads_per_ngram;
  if (heads * static_cast<int64_t>(out.ple_layers.size()) > kMaxHashHeads) {
    return unsupported(text.place("heads_per_ngram"),
                       fmt::format("{} layers of {} hash heads are more than quern runs, which is {} heads",
                                   out.ple_layers.size(), heads, kMaxHashHeads));
  }
  if (out.ple_embed_dim % heads != 0) {
    return bad_model(text.place("ple_embed_dim"),
                     fmt::format("the value is {}, allowed is a multiple of {}, the number of hash heads "
                                 "((ngram_size - 1) * heads_per_ngram)",
                                 out.ple_embed_dim, heads));
  }
  // The first one ends the context of the hash.
  if (out.eos_token_ids.empty()) return text.missing("eos_token_id");
  return {};
}

Result<void> check_groups(const JsonSection& text, const Config& c) {
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return bad_model(text.place("num_key_value_heads"),
                     fmt::format("the value is {}, allowed are divisors of num_attention_heads, which is {}",
                                 c.num_key_value_heads, c.num_attention_heads));
  }
  if (c.linear_num_value_heads % c.linear_num_key_heads != 0) {
    return bad_model(text.place("linear_num_key_heads"),
                     fmt::format("the value is {}, allowed are divisors of linear_num_value_heads, which is {}",
                                 c.linear_num_key_heads, c.linear_num_value_heads));
  }
  if (c.num_experts_per_tok > c.num_experts) {
    return bad_model(text.place("num_experts_per_tok"),
                     fmt::format("the value is {}, allowed is up to num_experts, which is {}", c.num_experts_per_tok,
                                 c.num_experts));
  }
  return {};
}

Result<void> read_activations(const JsonSection& text, Config& out) {
  std::string gate;
  QUERN_TRY_VOID(text.text_into("output_gate_type", gate));
  if (gate == "sigmoid") out.output_gate_type = Config::Activation::sigmoid;
  if (!gate.empty() && gate != "sigmoid" && gate != "silu") {
    return text.not_supported("output_gate_type", "\"sigmoid\" and \"silu\"");
  }
  return {};
}

Result<Config> read_config(const json& document, std::string_view where) {
  QUERN_TRY(const JsonSection root, JsonSection::root(document, where));
  Config out;
  QUERN_TRY(const JsonSection text, text_section(root, out));
  QUERN_TRY_VOID(read_quantization(root, out));
  QUERN_TRY_VOID(read_quantization(text, out));
  QUERN_TRY_VOID(refuse_variants(root));
  QUERN_TRY_VOID(refuse_variants(text));
  QUERN_TRY_VOID(read_integers(text, kFields, out));
  QUERN_TRY_VOID(check_groups(text, out));
  QUERN_TRY_VOID(text.number_into("rms_norm_eps", 0, 1, out.rms_norm_eps));
  QUERN_TRY_VOID(text.bool_into("norm_topk_prob", out.norm_topk_prob));
  QUERN_TRY_VOID(read_activations(text, out));
  QUERN_TRY_VOID(text.id_into("bos_token_id", out.vocab_size, out.bos_token_id));
  QUERN_TRY_VOID(text.id_into("pad_token_id", out.vocab_size, out.pad_token_id));
  QUERN_TRY_VOID(text.ids_into("eos_token_id", out.vocab_size, out.eos_token_ids));
  for (const std::string_view key : {"image_token_id", "video_token_id"}) {
    std::vector<int32_t> ids;
    // A cut vocabulary may end before them.
    QUERN_TRY_VOID(root.ids_into(key, kMaxTokens, ids));
    out.vision_token_ids.insert(out.vision_token_ids.end(), ids.begin(), ids.end());
  }
  QUERN_TRY_VOID(read_layer_types(text, out));
  QUERN_TRY_VOID(read_rope(text, out));
  QUERN_TRY_VOID(read_indexer(text, out));
  QUERN_TRY_VOID(read_ngrams(text, out));
  return out;
}

}  // namespace

Result<Qwen4ExpConfig> Qwen4ExpConfig::parse(std::string_view text, std::string_view where) {
  QUERN_TRY(const json document, formats::parse_json(text, where));
  return read_config(document, where);
}

Result<Qwen4ExpConfig> Qwen4ExpConfig::load(const std::filesystem::path& path) {
  QUERN_TRY(const json document, formats::load_json(path));
  return read_config(document, path.string());
}

std::optional<int32_t> Qwen4ExpConfig::ple_index(int32_t layer) const {
  const auto at = std::lower_bound(ple_layers.begin(), ple_layers.end(), layer);
  if (at == ple_layers.end() || *at != layer) return std::nullopt;
  return static_cast<int32_t>(at - ple_layers.begin());
}

ops::NgramHashParams Qwen4ExpConfig::ngram_hash_params(int32_t index) const {
  return {.ngram_size = ngram_size,
          .heads_per_ngram = heads_per_ngram,
          .vocabulary = vocab_size,
          .base = ngram_vocab_size_base,
          .divisor = make_ngram_vocab_size_divisible_by,
          .seed = seed,
          .layer_index = index};
}

}  // namespace quern::model
