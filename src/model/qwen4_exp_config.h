// SPDX-License-Identifier: Apache-2.0
// Owns the checked picture of a qwen4_exp config.json: everything that the text model computes is decided here. Does
// not own the tensors (qwen4_exp_manifest.h) nor the settings of generation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/ngram_ids/ngram_ids.h"

namespace quern::model {

// Members have the names of the file, in which they stand in `text_config` or, in the form of the text-only class, at
// the top. Where the file may leave one out, the value here is the default of the model's authors.
struct Qwen4ExpConfig {
  enum class LayerKind : uint8_t { linear_attention, sparse_attention };
  using Activation = ops::Activation;
  // How expert and n-gram weights are stored: bfloat16 throughout, or float8_e4m3fn with scales.
  enum class Weights : uint8_t { bf16, fp8 };

  std::string model_type;  // of the whole model
  Weights weights = Weights::bf16;

  int32_t hidden_size = 2048;
  int32_t num_hidden_layers = 40;
  std::vector<LayerKind> layer_types;  // one a layer
  int32_t vocab_size = 248320;
  int32_t max_position_embeddings = 32768;
  float rms_norm_eps = 1e-6f;
  Activation output_gate_type = Activation::silu;  // of the norm behind linear attention; everything else has silu

  // Sparse attention.
  int32_t num_attention_heads = 16;
  int32_t num_key_value_heads = 2;  // divides num_attention_heads
  int32_t head_dim = 256;
  double rope_theta = 0;
  int32_t rotary_dim = 0;  // rotated dimensions of a head and of an indexer head: even, at most either

  // Its indexer; all 0 in a model without sparse layers.
  int32_t indexer_n_heads = 0;
  int32_t indexer_head_dim = 0;
  int32_t indexer_budget = 0;          // tokens, a multiple of the next
  int32_t indexer_compress_ratio = 0;  // tokens of a block

  // Linear attention.
  int32_t linear_num_key_heads = 16;
  int32_t linear_num_value_heads = 32;  // a multiple of linear_num_key_heads
  int32_t linear_key_head_dim = 128;
  int32_t linear_value_head_dim = 128;
  int32_t linear_conv_kernel_dim = 4;

  // Mixture of experts.
  int32_t num_experts = 512;
  int32_t num_experts_per_tok = 10;
  int32_t moe_intermediate_size = 512;
  int32_t shared_expert_intermediate_size = 512;
  bool norm_topk_prob = true;

  // Hyper-connections.
  int32_t hc_count = 4;  // residual streams, at least 2
  int32_t hc_lowrank = 320;

  // Per-layer embedding of hashed n-grams. The fields behind the first are checked only where it is not empty.
  std::vector<int32_t> ple_layers;  // layers counted from 0, ascending; the file's ple_layer_ids count from 1
  int32_t ple_embed_dim = 0;
  int32_t ple_conv_kernel_size = 4;
  int32_t ngram_size = 3;
  int32_t heads_per_ngram = 8;
  int32_t ngram_vocab_size_base = 20'000'000;
  int32_t make_ngram_vocab_size_divisible_by = 128;
  int32_t split_ngram_parts = 512;
  int64_t seed = 1234;

  std::vector<int32_t> eos_token_ids;  // the first ends the context of an n-gram; may be empty without n-grams
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  std::vector<int32_t> vision_token_ids;  // ids that stand for images and videos, which the text model cannot embed

  // Reads the file at `path`. Errors: bad_model and unsupported, with "<path>: <JSON path>" as the place; io.
  static Result<Qwen4ExpConfig> load(const std::filesystem::path& path);
  // The same from text; `where` heads the places.
  static Result<Qwen4ExpConfig> parse(std::string_view json, std::string_view where);

  int64_t stream_width() const { return int64_t{hc_count} * hidden_size; }
  int64_t query_width() const { return int64_t{num_attention_heads} * head_dim; }
  int64_t key_width() const { return int64_t{num_key_value_heads} * head_dim; }
  int64_t linear_key_width() const { return int64_t{linear_num_key_heads} * linear_key_head_dim; }
  int64_t linear_value_width() const { return int64_t{linear_num_value_heads} * linear_value_head_dim; }
  int64_t linear_conv_width() const { return 2 * linear_key_width() + linear_value_width(); }
  int32_t ngram_heads() const { return (ngram_size - 1) * heads_per_ngram; }
  int32_t ngram_head_dim() const { return ple_embed_dim / ngram_heads(); }

  // Position of a layer in ple_layers; nothing where the layer has no n-gram embedding.
  std::optional<int32_t> ple_index(int32_t layer) const;
  // Of the layer ple_layers[ple_index].
  ops::NgramHashParams ngram_hash_params(int32_t ple_index) const;
};

// The names under which the architecture is published: the whole model's type and the text part's.
struct Qwen4ExpNames {
  std::string_view model_type;
  std::string_view text_model_type;
};
inline constexpr Qwen4ExpNames kQwen4ExpNames[] = {{"qwen4_exp", "qwen4_exp_text"},
                                                   {"qwen3_8_flash_next", "qwen3_8_flash_next_text"}};

}  // namespace quern::model
