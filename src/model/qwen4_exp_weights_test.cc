// SPDX-License-Identifier: Apache-2.0
// Each weight leads to the tensor that its name says, in both types and in both forms of experts.
#include "model/qwen4_exp_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "base/brain.h"
#include "cpu/memory.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_qwen4.h"

namespace quern::model {
namespace {

class Weights : public testing::TestWithParam<DType> {
 protected:
  Weights() : scratch_("qwen4_weights") {}

  void open(const Qwen4ExpForm& form) {
    test::write_tiny_qwen4(scratch_.path(), test::tiny_qwen4_config(), form);
    config_ = Qwen4ExpConfig::load(scratch_.path() / "config.json").value();
    auto opened = Qwen4ExpWeights::open(scratch_.path(), config_, GetParam());
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    weights_ = std::move(*opened);
    prefix_ = form.prefix();
  }

  // The pointer leads to elements `from` on of the tensor, `count` of them.
  void expect_elements(const void* data, DType type, const std::string& name, size_t from, size_t count) const {
    for (size_t i = 0; i < count; ++i) {
      const uint16_t expected = test::tiny_qwen4_value(name, from + i);
      if (type == DType::bf16) {
        uint16_t found;
        std::memcpy(&found, static_cast<const std::byte*>(data) + i * sizeof(found), sizeof(found));
        ASSERT_EQ(found, expected) << name << " " << i;
      } else {
        ASSERT_EQ(static_cast<const float*>(data)[i], brain_to_float(expected)) << name << " " << i;
      }
    }
  }
  // All of a tensor; what is not kept in bf16 always has the type that was asked for.
  void expect_whole(const void* data, const std::string& name, bool always_bf16) const {
    const auto* tensor = weights_->checkpoint().find(name);
    ASSERT_NE(tensor, nullptr) << name;
    expect_elements(data, always_bf16 ? DType::bf16 : GetParam(), name, 0, tensor->bytes.size() / 2);
    if (always_bf16 || GetParam() == DType::bf16) {
      EXPECT_EQ(data, tensor->bytes.data()) << "not the file's own pages";
    }
  }
  void expect_mapped(const void* data, const std::string& name) const { expect_whole(data, prefix_ + name, true); }
  void expect_typed(const void* data, const std::string& name) const { expect_whole(data, prefix_ + name, false); }

  void expect_streams(const HyperConnectionWeights& w, const std::string& name) const {
    expect_typed(w.norm, name + ".hc_norm.weight");
    expect_mapped(w.down, name + ".input_mix_weight_down.weight");
    expect_mapped(w.up, name + ".input_mix_weight_up.weight");
    if (w.inject != nullptr) {
      expect_mapped(w.inject, name + ".block_inject_weight.weight");
    }
  }

  test::ScratchFolder scratch_;
  Qwen4ExpConfig config_;
  std::unique_ptr<const Qwen4ExpWeights> weights_;
  std::string prefix_;
};

INSTANTIATE_TEST_SUITE_P(Types, Weights, testing::Values(DType::bf16, DType::f32),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST_P(Weights, OutsideOfLayers) {
  open({});
  EXPECT_EQ(weights_->type(), GetParam());
  expect_whole(weights_->lm_head(), "lm_head.weight", true);
  expect_mapped(weights_->embed_tokens(), "embed_tokens.weight");
  expect_streams(weights_->final_streams(), "hyper_connection_mixer");
  EXPECT_EQ(weights_->final_streams().inject, nullptr);
}

TEST_P(Weights, EveryLayer) {
  open({.text_only = true});
  for (int32_t i = 0; i < config_.num_hidden_layers; ++i) {
    const Qwen4ExpLayerWeights& w = weights_->layer(i);
    const std::string layer = "layers." + std::to_string(i) + ".";
    expect_streams(w.mixer_streams, layer + "attn_hyper_connection");
    expect_streams(w.moe_streams, layer + "mlp_hyper_connection");
    EXPECT_NE(w.mixer_streams.inject, nullptr);
    expect_mapped(w.moe.router, layer + "mlp.gate.weight");
    expect_typed(w.moe.shared.gate, layer + "mlp.shared_expert.gate_proj.weight");
    expect_typed(w.moe.shared.up, layer + "mlp.shared_expert.up_proj.weight");
    expect_typed(w.moe.shared.down, layer + "mlp.shared_expert.down_proj.weight");
    expect_typed(w.moe.shared_gate, layer + "mlp.shared_expert_gate.weight");
    ASSERT_EQ(w.linear.has_value(), i != 3);
    ASSERT_EQ(w.sparse.has_value(), i == 3);
    ASSERT_EQ(w.ngrams.has_value(), i == 1);
  }
  const LinearAttentionWeights& linear = *weights_->layer(2).linear;
  expect_mapped(linear.qkv, "layers.2.linear_attn.in_proj_qkv.weight");
  expect_mapped(linear.z, "layers.2.linear_attn.in_proj_z.weight");
  expect_mapped(linear.b, "layers.2.linear_attn.in_proj_b.weight");
  expect_mapped(linear.a, "layers.2.linear_attn.in_proj_a.weight");
  expect_typed(linear.conv, "layers.2.linear_attn.conv1d.weight");
  expect_typed(linear.a_log, "layers.2.linear_attn.A_log");
  expect_typed(linear.dt_bias, "layers.2.linear_attn.dt_bias");
  expect_typed(linear.norm, "layers.2.linear_attn.norm.weight");
  expect_mapped(linear.out, "layers.2.linear_attn.out_proj.weight");
  const SparseAttentionWeights& sparse = *weights_->layer(3).sparse;
  expect_mapped(sparse.q, "layers.3.self_attn.q_proj.weight");
  expect_mapped(sparse.k, "layers.3.self_attn.k_proj.weight");
  expect_mapped(sparse.v, "layers.3.self_attn.v_proj.weight");
  expect_mapped(sparse.out, "layers.3.self_attn.o_proj.weight");
  expect_typed(sparse.q_norm, "layers.3.self_attn.q_norm.weight");
  expect_typed(sparse.k_norm, "layers.3.self_attn.k_norm.weight");
  expect_mapped(sparse.index_qk, "layers.3.self_attn.indexer.index_qk_proj.weight");
  expect_typed(sparse.index_q_norm, "layers.3.self_attn.indexer.q_layernorm.weight");
  expect_typed(sparse.index_k_norm, "layers.3.self_attn.indexer.k_layernorm.weight");
}

TEST_P(Weights, FusedExperts) {
  open({});
  const auto matrix = static_cast<size_t>(config_.moe_intermediate_size) * static_cast<size_t>(config_.hidden_size);
  const std::string stacks = "model.language_model.layers.3.mlp.experts.";
  const auto& experts = weights_->layer(3).moe.experts;
  ASSERT_EQ(experts.size(), 5u);
  for (size_t e = 0; e < experts.size(); ++e) {
    expect_elements(experts[e].gate, GetParam(), stacks + "gate_up_proj", 2 * e * matrix, matrix);
    expect_elements(experts[e].up, GetParam(), stacks + "gate_up_proj", (2 * e + 1) * matrix, matrix);
    expect_elements(experts[e].down, GetParam(), stacks + "down_proj", e * matrix, matrix);
  }
}

TEST_P(Weights, SeparateExperts) {
  open({.separate_experts = true});
  const auto& experts = weights_->layer(3).moe.experts;
  ASSERT_EQ(experts.size(), 5u);
  for (size_t e = 0; e < experts.size(); ++e) {
    const std::string name = "layers.3.mlp.experts." + std::to_string(e);
    expect_typed(experts[e].gate, name + ".gate_proj.weight");
    expect_typed(experts[e].up, name + ".up_proj.weight");
    expect_typed(experts[e].down, name + ".down_proj.weight");
  }
}

TEST_P(Weights, NgramTableInNumericOrderOfItsShards) {
  open({});
  const NgramWeights& w = *weights_->layer(1).ngrams;
  const std::string ple = "layers.1.ple.";
  expect_mapped(w.key, ple + "key_proj.weight");
  expect_mapped(w.value, ple + "value_proj.weight");
  expect_typed(w.norm_key, ple + "norm_key.weight");
  expect_typed(w.norm_query, ple + "norm_query.weight");
  expect_typed(w.norm_conv, ple + "norm_conv.weight");
  expect_typed(w.conv, ple + "conv1d.weight");
  ASSERT_EQ(w.table.size(), 3u);
  int64_t rows = 0;
  for (size_t k = 0; k < 3; ++k) {
    expect_mapped(w.table[k].rows, ple + "ple_embedding.ngram_embedding.shard_" + std::to_string(k) + ".weight");
    rows += w.table[k].count;
  }
  EXPECT_EQ(rows, w.hash.padded);
}

TEST_P(Weights, TwelveShardsDoNotComeInTheOrderOfText) {
  auto config = test::tiny_qwen4_config();
  config["split_ngram_parts"] = 12;
  test::write_tiny_qwen4(scratch_.path(), config, {});
  config_ = Qwen4ExpConfig::load(scratch_.path() / "config.json").value();
  const auto opened = Qwen4ExpWeights::open(scratch_.path(), config_, GetParam());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const NgramWeights& w = *(*opened)->layer(1).ngrams;
  const std::string shard = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_";
  ASSERT_EQ(w.table.size(), 11u);  // of 6 rows, which hold all 64
  for (const size_t k : {2, 9, 10}) {
    EXPECT_EQ(w.table[k].rows, (*opened)->checkpoint().find(shard + std::to_string(k) + ".weight")->bytes.data());
  }
}

TEST_P(Weights, AccountOfBytes) {
  open({});
  size_t bytes = 0;
  for (const auto& tensor : weights_->checkpoint().tensors()) bytes += tensor.bytes.size();
  EXPECT_EQ(weights_->bytes().text, bytes);
  EXPECT_EQ(weights_->bytes().widened > 0, GetParam() == DType::f32);
}

TEST_P(Weights, AdmissionIsAskedBeforeMemoryIsTaken) {
  open({});
  const auto in_use = [] { return cpu::memory_usage().current[static_cast<size_t>(cpu::MemoryTag::weights)]; };
  const auto allocations = [] { return cpu::memory_usage().allocations[static_cast<size_t>(cpu::MemoryTag::weights)]; };
  const Qwen4ExpWeightBytes opened = weights_->bytes();
  weights_.reset();
  const auto before = allocations();
  Qwen4ExpWeightBytes asked;
  const auto refuse = [&](const Qwen4ExpWeightBytes& bytes) -> Result<void> {
    asked = bytes;
    return Error{Errc::no_memory, "not here", "memory"};
  };
  const auto refused = Qwen4ExpWeights::open(scratch_.path(), config_, GetParam(), refuse);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::no_memory);
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(asked.text, opened.text);
  EXPECT_EQ(asked.widened, opened.widened);
  // What is then taken, in whole pages.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t empty = in_use();
  const auto admitted = Qwen4ExpWeights::open(scratch_.path(), config_, GetParam());
  ASSERT_TRUE(admitted.ok());
  EXPECT_GE(in_use() - empty, asked.widened);
  EXPECT_LE(in_use() - empty, asked.widened + (allocations() - before) * page);
}

TEST_P(Weights, StoredHashThatTheConfigurationDoesNotGive) {
  open({});
  auto other = test::tiny_qwen4_config();
  other["seed"] = 7;
  const auto config = Qwen4ExpConfig::parse(other.dump(), "c").value();
  const auto refused = Qwen4ExpWeights::open(scratch_.path(), config, GetParam());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::bad_model);
  EXPECT_NE(refused.error().where.find("layer_multipliers"), std::string::npos) << refused.error().message();
}

}  // namespace
}  // namespace quern::model
