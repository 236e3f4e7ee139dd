// SPDX-License-Identifier: Apache-2.0
// The contract is written down once, as the list of the published checkpoint; the check walks both lists in step.
#include "model/qwen4_exp_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/quote_name.h"

namespace quern::model {
namespace {

using formats::SafetensorsTensor;
using Shape = std::vector<int64_t>;
using Config = Qwen4ExpConfig;

constexpr std::string_view kDraft = "mtp.";
constexpr std::string_view kVision = "model.visual.";
// Rows and columns of a float8 matrix that share a scale.
constexpr int64_t kScaleBlock = 128;
// The published float8 checkpoint has 148,655.
constexpr int64_t kMaxTensors = 1 << 20;

class Manifest {
 public:
  Manifest(const Config& config, const Qwen4ExpForm& form) : c_(config), form_(form) {}

  Result<std::vector<TensorContract>> derive() {
    QUERN_TRY_VOID(check_count());
    const int64_t h = c_.hidden_size;
    add("lm_head.weight", {c_.vocab_size, h});
    prefix_ = form_.prefix();
    add("embed_tokens.weight", {c_.vocab_size, h});
    hyper_connection("hyper_connection_mixer", false);
    for (int32_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      prefix_ = qwen4_exp_layer_prefix(form_, layer);
      hyper_connection("attn_hyper_connection", true);
      hyper_connection("mlp_hyper_connection", true);
      mixture_of_experts();
      if (c_.layer_types[static_cast<size_t>(layer)] == Config::LayerKind::linear_attention) {
        linear_attention();
      } else {
        sparse_attention();
      }
      if (const auto index = c_.ple_index(layer)) QUERN_TRY_VOID(ngram_embedding(*index));
    }
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return std::move(tensors_);
  }

 private:
  // A configuration of a few bytes must not make memory for tensors that no file has.
  Result<void> check_count() const {
    constexpr int64_t kPerLayer = 24, kPerNgramLayer = 10, kPerExpert = 6;
    const int64_t experts = form_.separate_experts ? kPerExpert * c_.num_experts : 0;
    const auto ngram_layers = static_cast<int64_t>(c_.ple_layers.size());
    const int64_t most =
        c_.num_hidden_layers * (kPerLayer + experts) + ngram_layers * (kPerNgramLayer + c_.split_ngram_parts);
    if (most <= kMaxTensors) return {};
    return unsupported("tensors of the configuration",
                       fmt::format("layers, experts and parts of n-gram tables make some {} tensors, the limit is {}",
                                   most, kMaxTensors));
  }

  void add(std::string_view name, Shape shape, DType dtype = DType::bf16) {
    tensors_.push_back({fmt::format("{}{}", prefix_, name), dtype, std::move(shape)});
  }

  void hyper_connection(std::string_view name, bool inject) {
    const int64_t width = c_.stream_width();
    add(fmt::format("{}.hc_norm.weight", name), {width});
    add(fmt::format("{}.input_mix_weight_down.weight", name), {c_.hc_lowrank, width});
    add(fmt::format("{}.input_mix_weight_up.weight", name), {width, c_.hc_lowrank});
    if (inject) add(fmt::format("{}.block_inject_weight.weight", name), {c_.hc_count, width});
  }

  void mixture_of_experts() {
    const int64_t h = c_.hidden_size, inner = c_.moe_intermediate_size, shared = c_.shared_expert_intermediate_size;
    add("mlp.gate.weight", {c_.num_experts, h});
    add("mlp.shared_expert.gate_proj.weight", {shared, h});
    add("mlp.shared_expert.up_proj.weight", {shared, h});
    add("mlp.shared_expert.down_proj.weight", {h, shared});
    add("mlp.shared_expert_gate.weight", {1, h});
    if (!form_.separate_experts) {
      add("mlp.experts.gate_up_proj", {c_.num_experts, 2 * inner, h});
      add("mlp.experts.down_proj", {c_.num_experts, h, inner});
      return;
    }
    for (int32_t e = 0; e < c_.num_experts; ++e) {
      expert_matrix(fmt::format("mlp.experts.{}.gate_proj", e), inner, h);
      expert_matrix(fmt::format("mlp.experts.{}.up_proj", e), inner, h);
      expert_matrix(fmt::format("mlp.experts.{}.down_proj", e), h, inner);
    }
  }

  void expert_matrix(const std::string& name, int64_t rows, int64_t columns) {
    const bool fp8 = c_.weights == Config::Weights::fp8;
    add(name + ".weight", {rows, columns}, fp8 ? DType::f8_e4m3 : DType::bf16);
    if (fp8) add(name + ".weight_scale_inv", {ceil_div(rows, kScaleBlock), ceil_div(columns, kScaleBlock)});
  }

  void linear_attention() {
    const int64_t h = c_.hidden_size, mixed = c_.linear_conv_width(), value = c_.linear_value_width();
    add("linear_attn.in_proj_qkv.weight", {mixed, h});
    add("linear_attn.in_proj_z.weight", {value, h});
    add("linear_attn.in_proj_b.weight", {c_.linear_num_value_heads, h});
    add("linear_attn.in_proj_a.weight", {c_.linear_num_value_heads, h});
    add("linear_attn.conv1d.weight", {mixed, 1, c_.linear_conv_kernel_dim});
    add("linear_attn.A_log", {c_.linear_num_value_heads});
    add("linear_attn.dt_bias", {c_.linear_num_value_heads});
    add("linear_attn.norm.weight", {c_.linear_value_head_dim});
    add("linear_attn.out_proj.weight", {h, value});
  }

  void sparse_attention() {
    const int64_t h = c_.hidden_size, index = c_.indexer_head_dim;
    add("self_attn.q_proj.weight", {2 * c_.query_width(), h});  // of each head: the query, then its gate
    add("self_attn.k_proj.weight", {c_.key_width(), h});
    add("self_attn.v_proj.weight", {c_.key_width(), h});
    add("self_attn.o_proj.weight", {h, c_.query_width()});
    add("self_attn.q_norm.weight", {c_.head_dim});
    add("self_attn.k_norm.weight", {c_.head_dim});
    add("self_attn.indexer.index_qk_proj.weight", {(int64_t{c_.indexer_n_heads} + 1) * index, h});
    add("self_attn.indexer.q_layernorm.weight", {index});
    add("self_attn.indexer.k_layernorm.weight", {index});
  }

  Result<void> ngram_embedding(int32_t ple_index) {
    const int64_t width = c_.stream_width();
    add("ple.key_proj.weight", {width, c_.ple_embed_dim});
    add("ple.value_proj.weight", {c_.hidden_size, c_.ple_embed_dim});
    for (const char* norm : {"norm_key", "norm_query", "norm_conv"}) add(fmt::format("ple.{}.weight", norm), {width});
    add("ple.conv1d.weight", {width, 1, c_.ple_conv_kernel_size});
    add("ple.ple_embedding.layer_multipliers", {c_.ngram_size}, DType::i64);
    add("ple.ple_embedding.ngram_heads_vocab_sizes", {c_.ngram_heads()}, DType::i64);
    add("ple.ple_embedding.ngram_heads_offsets", {c_.ngram_heads()}, DType::i64);
    const bool fp8 = c_.weights == Config::Weights::fp8;
    QUERN_TRY(const std::vector<int64_t> shards, qwen4_exp_shard_rows(c_, ple_index));
    for (size_t k = 0; k < shards.size(); ++k) {
      add(fmt::format("ple.ple_embedding.ngram_embedding.shard_{}.weight", k), {shards[k], c_.ngram_head_dim()},
          fp8 ? DType::f8_e4m3 : DType::bf16);
    }
    if (fp8) add("ple.ple_embedding.ngram_embedding.weight_scale", {1});
    return {};
  }

  const Config& c_;
  const Qwen4ExpForm form_;
  std::string prefix_;
  std::vector<TensorContract> tensors_;
};

bool has(std::span<const SafetensorsTensor> tensors, const std::string& name) {
  return formats::find_tensor(tensors, name) != nullptr;
}

Qwen4ExpForm form_of(const Config& config, std::span<const SafetensorsTensor> tensors) {
  Qwen4ExpForm form;
  // Where neither is there, the names that are missing are those of the published form.
  const Qwen4ExpForm text_only{.text_only = true};
  form.text_only = has(tensors, std::string(text_only.prefix()) + "embed_tokens.weight");
  const std::string experts = qwen4_exp_layer_prefix(form, 0) + "mlp.experts.";
  form.separate_experts = config.weights == Config::Weights::fp8 ||
                          (!has(tensors, experts + "gate_up_proj") && has(tensors, experts + "0.gate_proj.weight"));
  return form;
}

std::string names_text(const std::vector<std::string_view>& names) {
  constexpr size_t kMaxNames = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", quote_name(names[i]));
  }
  if (names.size() > kMaxNames) text += fmt::format(" and {} more", names.size() - kMaxNames);
  return text;
}

std::string count_text(size_t count) { return count == 1 ? "1 tensor" : fmt::format("{} tensors", count); }

Result<void> check_tensor(const SafetensorsTensor& tensor, const TensorContract& contract, std::string_view where) {
  if (tensor.dtype == contract.dtype &&
      std::equal(tensor.shape.begin(), tensor.shape.end(), contract.shape.begin(), contract.shape.end()))
    return {};
  return bad_model(
      fmt::format("{}: tensor {}", where, quote_name(tensor.name)),
      fmt::format("is {} of shape [{}], but the configuration needs {} of shape [{}]", dtype_name(tensor.dtype),
                  fmt::join(tensor.shape, ", "), dtype_name(contract.dtype), fmt::join(contract.shape, ", ")));
}

}  // namespace

std::string qwen4_exp_layer_prefix(const Qwen4ExpForm& form, int32_t layer) {
  return fmt::format("{}layers.{}.", form.prefix(), layer);
}

Result<std::vector<int64_t>> qwen4_exp_shard_rows(const Config& config, int32_t ple_index) {
  const auto hash = ops::ngram_hash(config.ngram_hash_params(ple_index), "n-gram table");
  if (!hash.ok()) return bad_model(hash.error().where, hash.error().what);
  const int64_t each = ceil_div<int64_t>(hash->padded, config.split_ngram_parts);
  std::vector<int64_t> rows;
  for (int64_t begin = 0; begin < hash->padded; begin += each) rows.push_back(std::min(each, hash->padded - begin));
  return rows;
}

Result<std::vector<TensorContract>> qwen4_exp_manifest(const Config& config, const Qwen4ExpForm& form) {
  return Manifest(config, form).derive();
}

Result<Qwen4ExpInventory> check_qwen4_exp_tensors(const Config& config, std::span<const SafetensorsTensor> tensors,
                                                  std::string_view where) {
  Qwen4ExpInventory found{.form = form_of(config, tensors)};
  QUERN_TRY(const std::vector<TensorContract> contract, qwen4_exp_manifest(config, found.form));
  std::vector<std::string_view> missing, foreign;
  std::vector<std::pair<const SafetensorsTensor*, const TensorContract*>> both;
  size_t next = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.name.starts_with(kDraft)) {
      ++found.draft_tensors;
      continue;
    }
    if (tensor.name.starts_with(kVision)) {
      ++found.vision_tensors;
      continue;
    }
    while (next < contract.size() && contract[next].name < tensor.name) missing.push_back(contract[next++].name);
    if (next == contract.size() || contract[next].name != tensor.name) {
      foreign.push_back(tensor.name);
    } else {
      both.emplace_back(&tensor, &contract[next++]);
    }
  }
  for (; next < contract.size(); ++next) missing.push_back(contract[next].name);
  if (!missing.empty() || !foreign.empty()) {
    std::string text;
    if (!missing.empty()) text = fmt::format("{} missing: {}", count_text(missing.size()), names_text(missing));
    if (!foreign.empty()) {
      text += fmt::format("{}{} that the model does not have: {}", text.empty() ? "" : "; ", count_text(foreign.size()),
                          names_text(foreign));
    }
    return bad_model(std::string(where), std::move(text));
  }
  for (const auto& [tensor, expected] : both) QUERN_TRY_VOID(check_tensor(*tensor, *expected, where));
  found.text_tensors = static_cast<int64_t>(both.size());
  return found;
}

}  // namespace quern::model
