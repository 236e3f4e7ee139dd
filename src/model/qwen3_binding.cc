// SPDX-License-Identifier: Apache-2.0
// The checks read constants and attributes of nodes rather than annotations of values: annotations are hints, and some
// writers give them wrongly.
#include "model/qwen3_binding.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"

namespace quern::model {
namespace {

// Input and output positions of GroupQueryAttention.
constexpr size_t kPastKey = 3, kPastValue = 4, kCosCache = 7, kPresentKey = 1, kPresentValue = 2;

class Binder {
 public:
  Binder(const graph::Model& model, const formats::GenaiConfig& config, const std::string& where)
      : model_(model), ir_(model.ir()), config_(config), where_(where) {}

  Result<Qwen3Binding> bind() {
    QUERN_TRY_VOID(bind_tokens());
    QUERN_TRY_VOID(bind_attention_nodes());
    QUERN_TRY_VOID(bind_layers());
    QUERN_TRY_VOID(check_embedding());
    QUERN_TRY_VOID(check_logits());
    QUERN_TRY_VOID(check_other_inputs());
    return std::move(binding_);
  }

 private:
  std::string at(std::string_view path) const { return fmt::format("{}: model.{}", where_, path); }

  Error disagree(std::string_view path, int64_t configured, int64_t in_graph, std::string_view what) const {
    return bad_model(at(path), fmt::format("is {}, but the graph has {} {}", configured, in_graph, what));
  }

  Result<int> input(std::string_view name, std::string_view path, DType dtype) {
    const int index = model_.input_index(name);
    if (index < 0)
      return bad_model(at(path), fmt::format("names input {}, which the graph does not have", quote_name(name)));
    const graph::Port& port = model_.inputs()[static_cast<size_t>(index)];
    if (port.dtype != dtype) {
      return unsupported(fmt::format("input {}", quote_name(name)),
                         fmt::format("has type {}, only {} is supported", dtype_name(port.dtype), dtype_name(dtype)));
    }
    bound_.push_back(index);
    return index;
  }

  Result<int> output(std::string_view name, std::string_view path) const {
    const int index = model_.output_index(name);
    if (index < 0)
      return bad_model(at(path), fmt::format("names output {}, which the graph does not have", quote_name(name)));
    const graph::Port& port = model_.outputs()[static_cast<size_t>(index)];
    const DType dtype = ir_.values[static_cast<size_t>(port.value)].dtype;
    if (dtype != DType::f32) {
      return unsupported(fmt::format("output {}", quote_name(name)),
                         fmt::format("has type {}, only float32 is supported", dtype_name(dtype)));
    }
    return index;
  }

  Result<void> bind_tokens() {
    const auto& decoder = config_.decoder;
    QUERN_TRY(binding_.input_ids, input(decoder.inputs.input_ids, "decoder.inputs.input_ids", DType::i64));
    QUERN_TRY(binding_.attention_mask,
              input(decoder.inputs.attention_mask, "decoder.inputs.attention_mask", DType::i64));
    QUERN_TRY(binding_.logits, output(decoder.outputs.logits, "decoder.outputs.logits"));
    return {};
  }

  Result<void> bind_attention_nodes() {
    for (size_t n = 0; n < ir_.nodes.size(); n++) {
      const auto& proto = *ir_.nodes[n].proto;
      if (proto.op_type == "GroupQueryAttention" && proto.domain == "com.microsoft") attention_.push_back(n);
    }
    const auto layers = static_cast<size_t>(config_.decoder.num_hidden_layers);
    if (attention_.size() == layers) return {};
    return disagree("decoder.num_hidden_layers", config_.decoder.num_hidden_layers,
                    static_cast<int64_t>(attention_.size()), "attention nodes");
  }

  Result<void> bind_layers() {
    const auto& in = config_.decoder.inputs;
    const auto& out = config_.decoder.outputs;
    for (int32_t i = 0; i < config_.decoder.num_hidden_layers; i++) {
      const auto name = [&](const std::string& form) { return formats::layer_value_name(form, i); };
      Qwen3Layer layer;
      QUERN_TRY(layer.past_key, input(name(in.past_key_names), "decoder.inputs.past_key_names", DType::f32));
      QUERN_TRY(layer.past_value, input(name(in.past_value_names), "decoder.inputs.past_value_names", DType::f32));
      QUERN_TRY(layer.present_key, output(name(out.present_key_names), "decoder.outputs.present_key_names"));
      QUERN_TRY(layer.present_value, output(name(out.present_value_names), "decoder.outputs.present_value_names"));
      QUERN_TRY_VOID(check_layer(layer));
      binding_.layers.push_back(layer);
    }
    return {};
  }

  // The past is handed over and taken back in the same memory. That is sound only if one attention node reads the past
  // and writes the present of it, and nobody else sees either.
  Result<void> check_layer(const Qwen3Layer& layer) {
    const graph::Port& key = model_.inputs()[static_cast<size_t>(layer.past_key)];
    const graph::Port& value = model_.inputs()[static_cast<size_t>(layer.past_value)];
    const auto& uses = ir_.values[static_cast<size_t>(key.value)].uses;
    const int node_index = uses.empty() ? -1 : uses[0].node;
    if (node_index < 0 ||
        std::find(attention_.begin(), attention_.end(), static_cast<size_t>(node_index)) == attention_.end()) {
      return unsupported(fmt::format("input {}", quote_name(key.name)), "is not read by a GroupQueryAttention node");
    }
    const graph::Node& node = ir_.nodes[static_cast<size_t>(node_index)];
    QUERN_TRY_VOID(check_pair(node, key.value, kPastKey, layer.present_key, kPresentKey));
    QUERN_TRY_VOID(check_pair(node, value.value, kPastValue, layer.present_value, kPresentValue));
    for (const graph::Port* port : {&key, &value}) {
      QUERN_TRY_VOID(check_past_shape(*port));
    }
    QUERN_TRY_VOID(
        check_attribute(node, "num_heads", config_.decoder.num_attention_heads, "decoder.num_attention_heads"));
    QUERN_TRY_VOID(
        check_attribute(node, "kv_num_heads", config_.decoder.num_key_value_heads, "decoder.num_key_value_heads"));
    return check_context(node);
  }

  Result<void> check_pair(const graph::Node& node, int past, size_t position, int present, size_t out_position) const {
    const auto& past_value = ir_.values[static_cast<size_t>(past)];
    const int written = model_.outputs()[static_cast<size_t>(present)].value;
    const auto& present_value = ir_.values[static_cast<size_t>(written)];
    const bool reads = node.inputs.size() > position && node.inputs[position] == past && past_value.uses.size() == 1;
    const bool writes = node.outputs.size() > out_position && node.outputs[out_position] == written;
    if (reads && writes && present_value.uses.empty() && !past_value.is_output) return {};
    return unsupported(fmt::format("GroupQueryAttention node {}", quote_name(node.name)),
                       fmt::format("does not have {} and {} for itself as one layer's past and present",
                                   quote_name(past_value.name), quote_name(present_value.name)));
  }

  Result<void> check_past_shape(const graph::Port& port) const {
    if (!port.has_shape) return {};
    const std::string where = fmt::format("input {}", quote_name(port.name));
    if (port.dims.size() != 4) return bad_model(where, fmt::format("has rank {}, expected 4", port.dims.size()));
    const auto& heads = port.dims[1];
    const auto& size = port.dims[3];
    if (heads.extent >= 0 && heads.extent != config_.decoder.num_key_value_heads) {
      return disagree("decoder.num_key_value_heads", config_.decoder.num_key_value_heads, heads.extent,
                      fmt::format("in {}", where));
    }
    if (size.extent >= 0 && size.extent != config_.decoder.head_size) {
      return disagree("decoder.head_size", config_.decoder.head_size, size.extent, fmt::format("in {}", where));
    }
    return {};
  }

  Result<void> check_attribute(const graph::Node& node, std::string_view name, int32_t configured,
                               std::string_view path) const {
    const auto* attribute = node.proto->attribute(name);
    if (attribute == nullptr || attribute->i == configured) return {};
    return disagree(path, configured, attribute->i, fmt::format("as {} of node {}", name, quote_name(node.name)));
  }

  const ops::Tensor* constant(int value) const {
    if (value < 0 || ir_.values[static_cast<size_t>(value)].kind != graph::ValueKind::constant) return nullptr;
    return &model_.values()[static_cast<size_t>(value)].constant;
  }

  Result<void> check_context(const graph::Node& node) const {
    const ops::Tensor* cache = node.inputs.size() > kCosCache ? constant(node.inputs[kCosCache]) : nullptr;
    if (cache == nullptr || cache->shape.rank() != 2) {
      return unsupported(fmt::format("GroupQueryAttention node {}", quote_name(node.name)),
                         "has no constant rotary cache; only exports with fused rotary embedding are supported");
    }
    if (cache->shape[0] == config_.context_length) return {};
    return disagree("context_length", config_.context_length, cache->shape[0], "rows in its rotary cache");
  }

  Result<void> check_embedding() const {
    const int ids = model_.inputs()[static_cast<size_t>(binding_.input_ids)].value;
    for (const graph::Use& use : ir_.values[static_cast<size_t>(ids)].uses) {
      const graph::Node& node = ir_.nodes[static_cast<size_t>(use.node)];
      const ops::Tensor* table = node.proto->op_type == "Gather" && use.input == 1 ? constant(node.inputs[0]) : nullptr;
      if (table == nullptr || table->shape.rank() != 2) continue;
      if (table->shape[0] != config_.vocab_size) {
        return disagree("vocab_size", config_.vocab_size, table->shape[0], "rows in its embedding");
      }
      if (table->shape[1] != config_.decoder.hidden_size) {
        return disagree("decoder.hidden_size", config_.decoder.hidden_size, table->shape[1],
                        "columns in its embedding");
      }
    }
    return {};
  }

  Result<void> check_logits() {
    const graph::Port& port = model_.outputs()[static_cast<size_t>(binding_.logits)];
    const int producer = ir_.values[static_cast<size_t>(port.value)].producer;
    if (producer < 0) return bad_model(fmt::format("output {}", quote_name(port.name)), "is not computed by any node");
    if (port.has_shape && !port.dims.empty() && port.dims.back().extent >= 0 &&
        port.dims.back().extent != config_.vocab_size) {
      return disagree("vocab_size", config_.vocab_size, port.dims.back().extent, "columns in its logits");
    }
    const graph::Node& node = ir_.nodes[static_cast<size_t>(producer)];
    const bool own = node.outputs[0] == port.value;  // not that of a node which is computed with this one
    const auto* columns = own && node.proto->op_type == "MatMulNBits" ? node.proto->attribute("N") : nullptr;
    if (columns != nullptr && columns->i != config_.vocab_size) {
      return disagree("vocab_size", config_.vocab_size, columns->i, "columns in its logits");
    }
    const auto& op = model_.steps()[static_cast<size_t>(producer)].op;
    binding_.logits_by_row = op != nullptr && op->row_wise();
    return {};
  }

  Result<void> check_other_inputs() const {
    for (size_t i = 0; i < model_.inputs().size(); i++) {
      if (std::find(bound_.begin(), bound_.end(), static_cast<int>(i)) != bound_.end()) continue;
      const graph::Port& port = model_.inputs()[i];
      if (ir_.values[static_cast<size_t>(port.value)].initializer != nullptr) continue;
      return unsupported(fmt::format("input {}", quote_name(port.name)),
                         "is not an input that this model line feeds; it feeds token ids, the attention mask and the "
                         "past of the layers that the configuration counts");
    }
    return {};
  }

  const graph::Model& model_;
  const graph::Ir& ir_;
  const formats::GenaiConfig& config_;
  const std::string& where_;
  Qwen3Binding binding_;
  std::vector<size_t> attention_;  // node indices
  std::vector<int> bound_;         // graph inputs that are fed
};

}  // namespace

Result<Qwen3Binding> bind_qwen3(const graph::Model& model, const formats::GenaiConfig& config,
                                const std::string& where) {
  return Binder(model, config, where).bind();
}

}  // namespace quern::model
