// SPDX-License-Identifier: Apache-2.0
// Owns a qwen4_exp folder small enough for unit tests, written by the tests themselves from the tensor contract. The
// values mean nothing; checkpoints that compute something come from tools/make_qwen4_checkpoint.py. For test code only.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/qwen4_exp_manifest.h"
#include "tests/support/safetensors_writer.h"

namespace quern::test {

// 4 layers, one of them sparse, one with n-grams.
inline nlohmann::json tiny_qwen4_config() {
  return {{"model_type", "qwen4_exp_text"},
          {"vocab_size", 50},
          {"hidden_size", 16},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"output_gate_type", "sigmoid"},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000}, {"partial_rotary_factor", 0.5}}},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 4},
          {"linear_key_head_dim", 4},
          {"linear_value_head_dim", 6},
          {"num_experts", 5},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 7},
          {"shared_expert_intermediate_size", 9},
          {"hc_count", 2},
          {"hc_lowrank", 3},
          {"indexer_n_heads", 2},
          {"indexer_kv_heads", 1},
          {"indexer_head_dim", 8},
          {"indexer_budget", 8},
          {"indexer_compress_ratio", 4},
          {"ple_layer_ids", {2}},
          {"ple_embed_dim", 8},
          {"heads_per_ngram", 2},
          {"ngram_vocab_size_base", 11},
          {"make_ngram_vocab_size_divisible_by", 8},
          {"split_ngram_parts", 3},
          {"max_position_embeddings", 256},
          {"eos_token_id", 3}};
}

// Element i of a tensor: a bfloat16 that names and places tell apart.
inline uint16_t tiny_qwen4_value(std::string_view name, size_t i) {
  const auto mixed = static_cast<uint32_t>(std::hash<std::string_view>()(name) + i * 7919);
  const float value = static_cast<float>(mixed % 1024) / 512.0f - 1.0f;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

// Writes config.json and model.safetensors. The constants of the hash are those of the configuration.
inline void write_tiny_qwen4(const std::filesystem::path& folder, const nlohmann::json& config_json,
                             const model::Qwen4ExpForm& form) {
  std::ofstream(folder / "config.json") << config_json.dump();
  const auto config = model::Qwen4ExpConfig::parse(config_json.dump(), "config").value();
  std::string members, payload;
  const auto contract = model::qwen4_exp_manifest(config, form);
  for (const model::TensorContract& t : contract.value()) {
    size_t elements = 1;
    for (const int64_t extent : t.shape) elements *= static_cast<size_t>(extent);
    std::string bytes;
    if (t.dtype == DType::i64) {
      const auto hash = ops::ngram_hash(config.ngram_hash_params(0), "hash").value();
      const auto& values = t.name.ends_with("multipliers") ? hash.multipliers
                           : t.name.ends_with("sizes")     ? hash.sizes
                                                           : hash.offsets;
      bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
    } else {
      bytes.resize(elements * sizeof(uint16_t));
      for (size_t i = 0; i < elements; ++i) {
        const uint16_t value = tiny_qwen4_value(t.name, i);
        std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
      }
    }
    if (!members.empty()) members += ",";
    members += tensor_text(t.name, t.dtype == DType::i64 ? "I64" : "BF16", nlohmann::json(t.shape).dump(),
                           payload.size(), payload.size() + bytes.size());
    payload += bytes;
  }
  std::ofstream(folder / "model.safetensors", std::ios::binary) << safetensors_file(members, payload);
}

}  // namespace quern::test
