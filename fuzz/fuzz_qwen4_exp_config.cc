// SPDX-License-Identifier: Apache-2.0
// Any text as the config.json of a qwen4_exp checkpoint: it is read or refused, and what is read keeps the promises of
// the header, on which sizes are computed.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/qwen4_exp_config.h"

namespace {

using quern::model::Qwen4ExpConfig;

bool has_sparse_layers(const Qwen4ExpConfig& c) {
  return std::ranges::count(c.layer_types, Qwen4ExpConfig::LayerKind::sparse_attention) > 0;
}

bool keeps_promises(const Qwen4ExpConfig& c) {
  if (std::ssize(c.layer_types) != c.num_hidden_layers || c.hidden_size <= 0 || c.vocab_size <= 0) return false;
  if (c.hc_count < 2 || c.stream_width() <= 0 || c.query_width() <= 0 || c.linear_conv_width() <= 0) return false;
  if (c.num_key_value_heads <= 0 || c.num_attention_heads % c.num_key_value_heads != 0) return false;
  if (c.linear_num_key_heads <= 0 || c.linear_num_value_heads % c.linear_num_key_heads != 0) return false;
  if (c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim || c.num_experts_per_tok > c.num_experts) return false;
  if (has_sparse_layers(c) && (c.indexer_compress_ratio <= 0 || c.indexer_budget % c.indexer_compress_ratio != 0 ||
                               c.rotary_dim > c.indexer_head_dim)) {
    return false;
  }
  if (!std::ranges::is_sorted(c.ple_layers)) return false;
  for (int32_t i = 0; i < std::ssize(c.ple_layers); i++) {
    const int32_t layer = c.ple_layers[static_cast<size_t>(i)];
    if (layer < 0 || layer >= c.num_hidden_layers || c.ple_index(layer) != i || c.ngram_head_dim() <= 0) return false;
    c.ngram_hash_params(i);
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const quern::Result<Qwen4ExpConfig> config = Qwen4ExpConfig::parse(text, "fuzz");
  if (config.ok() ? !keeps_promises(*config) : config.error().what.empty() || config.error().where.empty()) {
    std::abort();
  }
  return 0;
}
