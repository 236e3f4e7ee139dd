// SPDX-License-Identifier: Apache-2.0
// Loading: constants are found and aligned, operators are prepared in execution order, each node gets its owner, passes
// join steps, and what can be known about storage before any invocation is written down.
#include "graph/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/quote_name.h"
#include "cpu/memory.h"
#include "graph/fuse.h"

namespace quern::graph {
namespace {

ops::AttributeType attribute_type(formats::AttributeType type) {
  switch (type) {
    case formats::AttributeType::kFloat: return ops::AttributeType::f;
    case formats::AttributeType::kInt: return ops::AttributeType::i;
    case formats::AttributeType::kString: return ops::AttributeType::s;
    case formats::AttributeType::kTensor: return ops::AttributeType::tensor;
    case formats::AttributeType::kFloats: return ops::AttributeType::floats;
    case formats::AttributeType::kInts: return ops::AttributeType::ints;
    case formats::AttributeType::kStrings: return ops::AttributeType::strings;
    default: return ops::AttributeType::other;
  }
}

// Of constants that are copied: a cache line, as kernels like it.
constexpr size_t kCopyAlignment = 64;

// A borrowed tensor over a constant's bytes. The element type must be one that quern has.
Result<ops::Tensor> constant_tensor(const formats::OnnxFile& file, const formats::TensorProto& proto,
                                    const std::string& where) {
  if (!proto.dtype) {
    return unsupported(where,
                       fmt::format("element type {} is not supported", formats::onnx_type_name(proto.onnx_type)));
  }
  ops::Tensor t;
  t.dtype = *proto.dtype;
  QUERN_TRY(t.shape, ops::Shape::from(proto.dims, where));
  QUERN_TRY(const std::span<const std::byte> bytes, file.bytes_of(proto));
  t.data = const_cast<std::byte*>(bytes.data());  // operators read their inputs only
  return t;
}

}  // namespace

ops::IntValues known_values(const ops::Tensor& t) {
  ops::IntValues values;
  const int64_t n = t.elements();
  if ((t.dtype != DType::i64 && t.dtype != DType::i32) || n > ops::IntValues::kMax) return values;
  values.known = true;
  values.count = static_cast<int>(n);
  for (int64_t i = 0; i < n; i++) {
    if (t.dtype == DType::i64) {
      std::memcpy(&values.v[i], static_cast<const std::byte*>(t.data) + i * 8, 8);
    } else {
      int32_t x;
      std::memcpy(&x, static_cast<const std::byte*>(t.data) + i * 4, 4);
      values.v[i] = x;
    }
  }
  return values;
}

Result<std::shared_ptr<const Model>> Model::load(formats::OnnxFile file, cpu::Pool& pool, cpu::Features features,
                                                 const LoadOptions& options) {
  QUERN_TRY_VOID(check_pass_names(options.no_fuse));
  std::shared_ptr<Model> model(new Model(std::move(file)));
  model->features_ = features;
  QUERN_TRY(model->ir_, build_ir(model->file_));
  model->values_.resize(model->ir_.values.size());
  QUERN_TRY_VOID(model->make_constants());
  QUERN_TRY_VOID(model->make_operators(pool));
  fuse(options.no_fuse, model->ir_, model->steps_);
  QUERN_TRY_VOID(model->align_constants());
  model->find_last_uses();
  model->find_strided_values();
  model->settle_view_owners();
  return std::shared_ptr<const Model>(std::move(model));
}

int Model::input_index(std::string_view name) const {
  const auto it = std::find_if(ir_.inputs.begin(), ir_.inputs.end(), [&](const Port& p) { return p.name == name; });
  return it == ir_.inputs.end() ? -1 : static_cast<int>(it - ir_.inputs.begin());
}

int Model::output_index(std::string_view name) const {
  const auto it = std::find_if(ir_.outputs.begin(), ir_.outputs.end(), [&](const Port& p) { return p.name == name; });
  return it == ir_.outputs.end() ? -1 : static_cast<int>(it - ir_.outputs.begin());
}

Result<void> Model::make_constants() {
  for (size_t i = 0; i < ir_.values.size(); i++) {
    Value& value = ir_.values[i];
    if (value.initializer == nullptr || (value.uses.empty() && !value.is_output)) continue;
    QUERN_TRY(ops::Tensor t,
              constant_tensor(file_, *value.initializer, fmt::format("initializer {}", quote_name(value.name))));
    value.dtype = t.dtype;
    values_[i].constant = t;
    if (value.kind == ValueKind::constant) values_[i].known = known_values(t);
  }
  return {};
}

Result<void> Model::make_operators(cpu::Pool& pool) {
  ops::PrepareContext ctx;
  ctx.features = features_;
  ctx.pool = &pool;
  ctx.shared = &shared_;
  ctx.drop_source = [this](std::span<const std::byte> bytes) { file_.drop_pages(bytes); };
  ctx.copy_source = [&file = file_](auto part, auto out) { return file.copy(part, out); };
  ctx.preparations = &memory_.preparations;
  steps_.resize(ir_.nodes.size());
  // Most matrices of small models are below the size of a huge page.
  const cpu::SharedPages pages(cpu::MemoryTag::weights);
  const cpu::Pool::Pass pass(pool);
  for (size_t n = 0; n < ir_.nodes.size(); n++) QUERN_TRY_VOID(make_step(static_cast<int>(n), ctx));
  return {};
}

Result<void> Model::make_step(int index, const ops::PrepareContext& ctx) {
  const Node& node = ir_.nodes[index];
  const formats::NodeProto& proto = *node.proto;
  Step& step = steps_[index];
  const auto opset = file_.opset(proto.domain);
  const std::string where = ops::node_where(proto.op_type, node.name);
  if (!opset) {
    return bad_model(where, fmt::format("the model imports no operator set for domain {}", quote_name(proto.domain)));
  }
  if (proto.op_type == "Constant" && proto.domain.empty()) {
    const auto* value = proto.attribute("value");
    if (value == nullptr || value->type != formats::AttributeType::kTensor || proto.attributes.size() != 1) {
      return unsupported(where, fmt::format("only a Constant with the one attribute value is supported, this has {}",
                                            proto.attributes.empty() ? "none" : quote_name(proto.attributes[0].name)));
    }
    if (node.outputs.size() != 1 || node.outputs[0] < 0) return bad_model(where, "has no output");
    const int v = node.outputs[0];
    QUERN_TRY(values_[v].constant, constant_tensor(file_, *value->tensor, where));
    values_[v].known = known_values(values_[v].constant);
    ir_.values[v].kind = ValueKind::constant;
    ir_.values[v].dtype = values_[v].constant.dtype;
    step.owner = Owner::prepared;
    step.reason = "constant";
    return {};
  }

  std::vector<ops::Attribute> attributes;
  for (const auto& a : proto.attributes) {
    // No room asks for such names and texts, and rooms show them as they are.
    for (const std::string_view text : {std::string_view(a.name), std::string_view(a.s)}) {
      if (path_name(text) == text) continue;
      return unsupported(where, fmt::format("the attribute {} = {} is not known to quern", quote_name(a.name),
                                            a.s.empty() ? "..." : quote_name(a.s)));
    }
    ops::Attribute out;
    out.name = a.name;
    out.type = attribute_type(a.type);
    out.f = a.f;
    out.i = a.i;
    out.s = a.s;
    out.ints = a.ints;
    if (a.tensor != nullptr) {
      QUERN_TRY(out.tensor, constant_tensor(file_, *a.tensor, where));
    }
    attributes.push_back(std::move(out));
  }
  std::vector<ops::NodeInput> inputs;
  for (int v : node.inputs) {
    ops::NodeInput in;
    if (v >= 0) {
      in.present = true;
      in.dtype = ir_.values[v].dtype;
      in.constant = ir_.values[v].kind == ValueKind::constant;
      if (in.constant) in.value = values_[v].constant;
    }
    inputs.push_back(in);
  }
  std::unique_ptr<bool[]> outputs(new bool[node.outputs.size()]);
  for (size_t j = 0; j < node.outputs.size(); j++) outputs[j] = node.outputs[j] >= 0;

  ops::NodeView view;
  view.name = node.name;
  view.op = proto.op_type;
  view.domain = proto.domain;
  view.opset = *opset;
  view.attributes = attributes;
  view.inputs = inputs;
  view.outputs = {outputs.get(), node.outputs.size()};
  QUERN_TRY(step.op, ops::make_operator(view, ctx));
  memory_.prepared_bytes += step.op->prepared_bytes();
  memory_.serialized_bytes += step.op->serialized_bytes();
  for (size_t j = 0; j < node.outputs.size(); j++) {
    if (node.outputs[j] >= 0) ir_.values[node.outputs[j]].dtype = step.op->output_dtype(static_cast<int>(j));
  }
  for (size_t i = 0; i < node.inputs.size(); i++) {
    const int v = node.inputs[i];
    if (v < 0 || i >= 32 || (step.op->shape_inputs() >> i & 1) == 0) continue;
    if (values_[v].known.known || values_[v].folded || ir_.values[v].kind == ValueKind::input) continue;
    return unsupported(where, fmt::format("input {} ({}) decides shapes and must be a small constant, a graph input or "
                                          "arithmetic on shapes, not a computed tensor",
                                          i, quote_name(ir_.values[v].name)));
  }
  find_owner(index);
  return {};
}

void Model::find_owner(int index) {
  const Node& node = ir_.nodes[index];
  Step& step = steps_[index];
  bool known_inputs = step.op->folds_known_values();
  for (int v : node.inputs) {
    if (v >= 0 && !values_[v].known.known && !values_[v].folded) known_inputs = false;
  }
  if (step.op->folds_shapes() || known_inputs) {
    step.owner = Owner::prepared;
    step.reason = "arithmetic on shapes, folded when shapes are resolved";
    for (int v : node.outputs) {
      if (v >= 0) values_[v].folded = true;
    }
    return;
  }
  if (step.op->makes_views()) {
    step.owner = Owner::view;
    step.reason = "shares its input's storage";
    return;
  }
  step.reason = "computed";
}

// Constants get an aligned copy where the file puts them at an odd address and an operator reads their elements in
// place. Weights and tables stay in the file: the operators that read those take any address.
Result<void> Model::align_constants() {
  std::vector<ops::Tensor*> to_copy;
  size_t buffer_bytes = 0;
  for (size_t i = 0; i < values_.size(); i++) {
    ops::Tensor& t = values_[i].constant;
    if (t.data == nullptr || bits_of(t.dtype) < 8) continue;
    const auto element = static_cast<size_t>(bits_of(t.dtype)) / 8;
    if (reinterpret_cast<uintptr_t>(t.data) % element == 0) continue;
    bool read_in_place = false;
    for (const Use& use : ir_.values[i].uses) {
      const Step& step = steps_[use.node];
      if (step.op != nullptr && !step.op->accepts_unaligned(use.input)) read_in_place = true;
    }
    if (!read_in_place && !ir_.values[i].is_output) continue;
    const size_t bytes = static_cast<size_t>(t.elements()) * element;
    to_copy.push_back(&t);
    buffer_bytes += round_up(bytes, kCopyAlignment);
    memory_.copied_bytes += bytes;
  }
  QUERN_TRY(copies_, cpu::Buffer::allocate(buffer_bytes, cpu::MemoryTag::weights));
  auto* to = copies_.as<std::byte>();
  for (ops::Tensor* t : to_copy) {
    const size_t bytes = static_cast<size_t>(t->elements()) * static_cast<size_t>(bits_of(t->dtype)) / 8;
    std::memcpy(to, t->data, bytes);
    t->data = to;
    to += round_up(bytes, kCopyAlignment);
  }
  return {};
}

void Model::find_last_uses() {
  for (size_t i = 0; i < values_.size(); i++) {
    values_[i].last_use = ir_.values[i].producer;
    for (const Use& use : ir_.values[i].uses) values_[i].last_use = std::max(values_[i].last_use, use.node);
  }
}

// Backwards, because a view passes the layout it gets on to its own consumers.
void Model::find_strided_values() {
  for (size_t n = steps_.size(); n-- > 0;) {
    for (int v : ir_.nodes[n].outputs) {
      if (v < 0) continue;
      bool ok = true;
      for (const Use& use : ir_.values[v].uses) {
        const Step& reader = steps_[use.node];
        bool passes_on = true;
        if (reader.owner == Owner::view && use.input == 0) {
          for (int out : ir_.nodes[use.node].outputs) passes_on = passes_on && (out < 0 || values_[out].rows_ok);
        }
        ok = ok && passes_on && reader.op != nullptr && reader.op->accepts_rows(use.input);
      }
      values_[v].rows_ok = ok;
    }
  }
}

// A slice is a view only where everybody who reads it takes strided rows, and what leaves the graph is always written
// out; such nodes count as kernels even though single runs may find nothing to copy.
void Model::settle_view_owners() {
  for (size_t n = 0; n < steps_.size(); n++) {
    Step& step = steps_[n];
    if (step.owner != Owner::view) continue;
    const auto& outputs = ir_.nodes[n].outputs;
    const bool leaves =
        std::any_of(outputs.begin(), outputs.end(), [&](int v) { return v >= 0 && ir_.values[v].is_output; });
    const bool strided_reader =
        std::any_of(outputs.begin(), outputs.end(), [&](int v) { return v >= 0 && !values_[v].rows_ok; });
    if (leaves) {
      step.owner = Owner::kernel;
      step.reason = "copies into a graph output";
    } else if (outputs.size() > 1 && strided_reader) {
      step.owner = Owner::kernel;
      step.reason = "copies the pieces that are not contiguous: a consumer cannot read strided rows";
    }
  }
}

std::vector<ReportRow> Model::report(std::span<const ops::Tensor> inputs) const {
  std::vector<ops::Tensor> tensors(values_.size());
  for (size_t i = 0; i < inputs.size(); i++) tensors[ir_.inputs[i].value] = inputs[i];
  std::vector<ops::Tensor> in;
  std::vector<ReportRow> rows;
  rows.reserve(steps_.size());
  for (size_t n = 0; n < steps_.size(); n++) {
    const Node& node = ir_.nodes[n];
    ReportRow row;
    row.node = node.name;
    row.op = node.proto->op_type;
    row.domain = node.proto->domain;
    row.owner = steps_[n].owner;
    row.reason = steps_[n].reason;
    if (steps_[n].op != nullptr) row.weight_bytes = steps_[n].op->prepared_bytes();
    if (steps_[n].op != nullptr && row.owner == Owner::kernel) {
      in.clear();
      for (const int v : node.inputs) in.push_back(v >= 0 ? tensors[v] : ops::Tensor{});
      row.variant = steps_[n].op->variant_of(in);
      if (const std::string detail = steps_[n].op->detail_of(in); !detail.empty()) row.reason += "; " + detail;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace quern::graph
