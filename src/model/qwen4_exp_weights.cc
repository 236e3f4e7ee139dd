// SPDX-License-Identifier: Apache-2.0
// Resolving names to addresses. The manifest has been checked by then, so every name is there with its type and shape.
#include "model/qwen4_exp_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/brain.h"
#include "base/quote_name.h"
#include "cpu/memory.h"

namespace quern::model {

struct Qwen4ExpWeights::State {
  State(formats::SafetensorsCheckpoint files, DType element_type) : checkpoint(std::move(files)), type(element_type) {}

  formats::SafetensorsCheckpoint checkpoint;
  DType type;
  Qwen4ExpInventory inventory;
  Qwen4ExpWeightBytes bytes;
  std::vector<cpu::Buffer> widened;
  const void* embed_tokens = nullptr;
  const void* lm_head = nullptr;
  HyperConnectionWeights final_streams;
  std::vector<Qwen4ExpLayerWeights> layers;
};

namespace {

using Config = Qwen4ExpConfig;
using formats::SafetensorsTensor;

// Looks tensors up by what follows a prefix, and keeps what has to be widened; or measures both: the same code does, so
// nothing is read that was not counted.
class Resolver {
 public:
  Resolver(const formats::SafetensorsCheckpoint& checkpoint, DType type, Qwen4ExpWeightBytes& bytes)
      : checkpoint_(checkpoint), type_(type), bytes_(&bytes) {}
  Resolver(const formats::SafetensorsCheckpoint& checkpoint, DType type, std::vector<cpu::Buffer>& widened)
      : checkpoint_(checkpoint), type_(type), widened_(&widened) {}

  bool measuring() const { return bytes_ != nullptr; }

  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  const SafetensorsTensor& tensor(std::string_view name) {
    const SafetensorsTensor* found = checkpoint_.find(prefix_ + std::string(name));
    QUERN_CHECK(found != nullptr, "the manifest was checked");
    if (measuring()) bytes_->text += found->bytes.size();
    return *found;
  }

  // In the file's own pages.
  const void* mapped(std::string_view name) { return tensor(name).bytes.data(); }

  // In the type that is computed in.
  Result<const void*> typed(std::string_view name) {
    const SafetensorsTensor& t = tensor(name);
    if (type_ == DType::bf16) return static_cast<const void*>(t.bytes.data());
    const size_t elements = t.bytes.size() / sizeof(uint16_t);
    if (measuring()) {
      bytes_->widened += elements * sizeof(float);
      return static_cast<const void*>(nullptr);
    }
    QUERN_TRY(cpu::Buffer buffer, cpu::Buffer::allocate(elements * sizeof(float), cpu::MemoryTag::weights));
    auto* out = buffer.as<float>();
    for (size_t i = 0; i < elements; ++i) {
      uint16_t brain;
      std::memcpy(&brain, t.bytes.data() + i * sizeof(brain), sizeof(brain));
      out[i] = brain_to_float(brain);
    }
    checkpoint_.drop_pages(t.bytes);
    widened_->push_back(std::move(buffer));
    return static_cast<const void*>(out);
  }

  // Errors: bad_model where the stored integers are not `derived`.
  Result<void> require_equal(std::string_view name, const std::vector<int64_t>& derived) {
    const SafetensorsTensor& t = tensor(name);
    if (measuring()) return {};
    for (size_t i = 0; i < derived.size(); ++i) {
      int64_t stored;
      std::memcpy(&stored, t.bytes.data() + i * sizeof(stored), sizeof(stored));
      if (stored != derived[i]) {
        return bad_model(fmt::format("{}: tensor {}", checkpoint_.file_of(t), quote_name(t.name)),
                         fmt::format("element {} is {}, but the configuration gives {}", i, stored, derived[i]));
      }
    }
    return {};
  }

  void expect_random_reads(const SafetensorsTensor& t) const {
    if (!measuring()) checkpoint_.expect_random_reads(t.bytes);
  }

  const void* element(const void* base, int64_t index) const {
    return measuring() ? nullptr : static_cast<const std::byte*>(base) + index * (bits_of(type_) / 8);
  }

 private:
  const formats::SafetensorsCheckpoint& checkpoint_;
  const DType type_;
  Qwen4ExpWeightBytes* bytes_ = nullptr;
  std::vector<cpu::Buffer>* widened_ = nullptr;
  std::string prefix_;
};

Result<HyperConnectionWeights> hyper_connection(Resolver& at, const std::string& name, bool inject) {
  HyperConnectionWeights w;
  QUERN_TRY(w.norm, at.typed(name + ".hc_norm.weight"));
  w.down = at.mapped(name + ".input_mix_weight_down.weight");
  w.up = at.mapped(name + ".input_mix_weight_up.weight");
  if (inject) w.inject = at.mapped(name + ".block_inject_weight.weight");
  return w;
}

Result<LinearAttentionWeights> linear_attention(Resolver& at) {
  LinearAttentionWeights w;
  w.qkv = at.mapped("linear_attn.in_proj_qkv.weight");
  w.z = at.mapped("linear_attn.in_proj_z.weight");
  w.b = at.mapped("linear_attn.in_proj_b.weight");
  w.a = at.mapped("linear_attn.in_proj_a.weight");
  QUERN_TRY(w.conv, at.typed("linear_attn.conv1d.weight"));
  QUERN_TRY(w.a_log, at.typed("linear_attn.A_log"));
  QUERN_TRY(w.dt_bias, at.typed("linear_attn.dt_bias"));
  QUERN_TRY(w.norm, at.typed("linear_attn.norm.weight"));
  w.out = at.mapped("linear_attn.out_proj.weight");
  return w;
}

Result<SparseAttentionWeights> sparse_attention(Resolver& at) {
  SparseAttentionWeights w;
  w.q = at.mapped("self_attn.q_proj.weight");
  w.k = at.mapped("self_attn.k_proj.weight");
  w.v = at.mapped("self_attn.v_proj.weight");
  w.out = at.mapped("self_attn.o_proj.weight");
  QUERN_TRY(w.q_norm, at.typed("self_attn.q_norm.weight"));
  QUERN_TRY(w.k_norm, at.typed("self_attn.k_norm.weight"));
  w.index_qk = at.mapped("self_attn.indexer.index_qk_proj.weight");
  QUERN_TRY(w.index_q_norm, at.typed("self_attn.indexer.q_layernorm.weight"));
  QUERN_TRY(w.index_k_norm, at.typed("self_attn.indexer.k_layernorm.weight"));
  return w;
}

Result<ops::ExpertWeights> expert(Resolver& at, const std::string& name) {
  ops::ExpertWeights w;
  QUERN_TRY(w.gate, at.typed(name + ".gate_proj.weight"));
  QUERN_TRY(w.up, at.typed(name + ".up_proj.weight"));
  QUERN_TRY(w.down, at.typed(name + ".down_proj.weight"));
  return w;
}

Result<MoeWeights> mixture_of_experts(Resolver& at, const Config& c, bool separate) {
  MoeWeights w;
  w.router = at.mapped("mlp.gate.weight");
  QUERN_TRY(w.shared, expert(at, "mlp.shared_expert"));
  QUERN_TRY(w.shared_gate, at.typed("mlp.shared_expert_gate.weight"));
  if (separate) {
    for (int32_t e = 0; e < c.num_experts; ++e) {
      QUERN_TRY(const ops::ExpertWeights one, expert(at, fmt::format("mlp.experts.{}", e)));
      w.experts.push_back(one);
    }
    return w;
  }
  QUERN_TRY(const void* gate_up, at.typed("mlp.experts.gate_up_proj"));
  QUERN_TRY(const void* down, at.typed("mlp.experts.down_proj"));
  const int64_t matrix = int64_t{c.moe_intermediate_size} * c.hidden_size;
  for (int32_t e = 0; e < c.num_experts; ++e) {
    // The rows of the gate lie before those of the up projection.
    w.experts.push_back({.gate = at.element(gate_up, 2 * e * matrix),
                         .up = at.element(gate_up, (2 * e + 1) * matrix),
                         .down = at.element(down, e * matrix)});
  }
  return w;
}

Result<NgramWeights> ngram_embedding(Resolver& at, const Config& c, int32_t ple_index) {
  NgramWeights w;
  w.key = at.mapped("ple.key_proj.weight");
  w.value = at.mapped("ple.value_proj.weight");
  QUERN_TRY(w.norm_key, at.typed("ple.norm_key.weight"));
  QUERN_TRY(w.norm_query, at.typed("ple.norm_query.weight"));
  QUERN_TRY(w.norm_conv, at.typed("ple.norm_conv.weight"));
  QUERN_TRY(w.conv, at.typed("ple.conv1d.weight"));
  QUERN_TRY(w.hash, ops::ngram_hash(c.ngram_hash_params(ple_index), "n-gram table"));
  const std::string embedding = "ple.ple_embedding.";
  QUERN_TRY_VOID(at.require_equal(embedding + "layer_multipliers", w.hash.multipliers));
  QUERN_TRY_VOID(at.require_equal(embedding + "ngram_heads_vocab_sizes", w.hash.sizes));
  QUERN_TRY_VOID(at.require_equal(embedding + "ngram_heads_offsets", w.hash.offsets));
  QUERN_TRY(const std::vector<int64_t> shards, qwen4_exp_shard_rows(c, ple_index));
  for (size_t k = 0; k < shards.size(); ++k) {
    const SafetensorsTensor& shard = at.tensor(fmt::format("{}ngram_embedding.shard_{}.weight", embedding, k));
    at.expect_random_reads(shard);
    w.table.push_back({shard.bytes.data(), shards[k]});
  }
  return w;
}

Result<Qwen4ExpLayerWeights> layer_weights(Resolver& at, const Config& c, bool separate_experts, int32_t layer) {
  Qwen4ExpLayerWeights w;
  if (const auto index = c.ple_index(layer)) {
    QUERN_TRY(w.ngrams, ngram_embedding(at, c, *index));
  }
  QUERN_TRY(w.mixer_streams, hyper_connection(at, "attn_hyper_connection", true));
  if (c.layer_types[static_cast<size_t>(layer)] == Config::LayerKind::linear_attention) {
    QUERN_TRY(w.linear, linear_attention(at));
  } else {
    QUERN_TRY(w.sparse, sparse_attention(at));
  }
  QUERN_TRY(w.moe_streams, hyper_connection(at, "mlp_hyper_connection", true));
  QUERN_TRY(w.moe, mixture_of_experts(at, c, separate_experts));
  return w;
}

template <class Target>
Result<void> resolve(Resolver& at, const Config& config, const Qwen4ExpForm& form, Target& to) {
  to.lm_head = at.mapped("lm_head.weight");
  at.set_prefix(std::string(form.prefix()));
  to.embed_tokens = at.mapped("embed_tokens.weight");
  QUERN_TRY(to.final_streams, hyper_connection(at, "hyper_connection_mixer", false));
  for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    at.set_prefix(qwen4_exp_layer_prefix(form, layer));
    QUERN_TRY(Qwen4ExpLayerWeights weights, layer_weights(at, config, form.separate_experts, layer));
    if (!at.measuring()) to.layers.push_back(std::move(weights));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<const Qwen4ExpWeights>> Qwen4ExpWeights::open(const std::filesystem::path& folder,
                                                                     const Config& config, DType type,
                                                                     const Admission& admit) {
  QUERN_CHECK(type == DType::bf16 || type == DType::f32, "the two types that are computed in");
  QUERN_CHECK(config.weights == Config::Weights::bf16, "float8 weights are refused before");
  QUERN_TRY(formats::SafetensorsCheckpoint files, formats::SafetensorsCheckpoint::open(folder));
  auto state = std::make_unique<State>(std::move(files), type);
  QUERN_TRY(state->inventory, check_qwen4_exp_tensors(config, state->checkpoint.tensors(), folder.string()));
  const Qwen4ExpForm& form = state->inventory.form;
  Resolver measure(state->checkpoint, type, state->bytes);
  QUERN_TRY_VOID(resolve(measure, config, form, *state));
  if (admit) QUERN_TRY_VOID(admit(state->bytes));
  const cpu::SharedPages pages(cpu::MemoryTag::weights);
  Resolver at(state->checkpoint, type, state->widened);
  QUERN_TRY_VOID(resolve(at, config, form, *state));
  return std::unique_ptr<const Qwen4ExpWeights>(new Qwen4ExpWeights(std::move(state)));
}

Qwen4ExpWeights::Qwen4ExpWeights(std::unique_ptr<State> state) : state_(std::move(state)) {}
Qwen4ExpWeights::~Qwen4ExpWeights() = default;

DType Qwen4ExpWeights::type() const { return state_->type; }
const void* Qwen4ExpWeights::embed_tokens() const { return state_->embed_tokens; }
const void* Qwen4ExpWeights::lm_head() const { return state_->lm_head; }
const HyperConnectionWeights& Qwen4ExpWeights::final_streams() const { return state_->final_streams; }
const Qwen4ExpLayerWeights& Qwen4ExpWeights::layer(int32_t layer) const {
  return state_->layers[static_cast<size_t>(layer)];
}
const Qwen4ExpInventory& Qwen4ExpWeights::inventory() const { return state_->inventory; }
const formats::SafetensorsCheckpoint& Qwen4ExpWeights::checkpoint() const { return state_->checkpoint; }
const Qwen4ExpWeightBytes& Qwen4ExpWeights::bytes() const { return state_->bytes; }

}  // namespace quern::model
