// SPDX-License-Identifier: Apache-2.0
// One invocation: bind the inputs, resolve shapes in execution order, bind the outputs, place the intermediates, run
// the kernels. What the last invocation settled stays: a step is resolved again when something that it reads has
// another shape or another known content, and storage is placed again when a result has another size or another home.
// After the first invocation of a size nothing here allocates from the heap.
#include "graph/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/quote_name.h"

namespace quern::graph {
namespace {

std::optional<size_t> payload_bytes(const ops::Tensor& t) {
  const auto n = t.shape.checked_elements();
  if (!n) return std::nullopt;
  return storage_bytes(t.dtype, *n);
}

std::byte* at(const ops::Tensor& base, int64_t elements) {
  return static_cast<std::byte*>(base.data) + elements * (bits_of(base.dtype) / 8);
}

std::string declared(const Port& port) {
  std::string text = "[";
  for (size_t i = 0; i < port.dims.size(); i++) {
    if (i > 0) text += ", ";
    if (port.dims[i].extent >= 0) {
      text += fmt::format("{}", port.dims[i].extent);
    } else {
      text += port.dims[i].symbol.empty() ? "?" : port.dims[i].symbol;
    }
  }
  return text + "]";
}

}  // namespace

Runner::Runner(std::shared_ptr<const Model> model, cpu::Pool& pool, bool profile)
    : model_(std::move(model)), pool_(&pool), profile_(profile) {
  const size_t values = model_->ir().values.size();
  const size_t steps = model_->steps().size();
  tensors_.resize(values);
  int_values_.resize(values);
  viewed_.resize(values, -1);
  storage_of_.resize(values);
  storage_end_.resize(values);
  view_offset_.resize(values);
  block_of_.resize(values);
  taken_over_.resize(values);
  payload_.resize(values);
  decides_shapes_.resize(values);
  left_out_.resize(values);
  homes_.resize(model_->outputs().size());
  ns_.resize(steps);
  copied_.resize(steps);
  stale_.resize(steps);
  computes_.resize(steps);
  calls_.resize(steps);
  blocks_.reserve(values);
  size_t most_inputs = 0, most_outputs = 0, tensors = 0;
  for (size_t n = 0; n < steps; n++) {
    const Node& node = model_->ir().nodes[n];
    most_inputs = std::max(most_inputs, node.inputs.size());
    most_outputs = std::max(most_outputs, node.outputs.size());
    calls_[n] = {tensors, tensors + node.inputs.size()};
    tensors += node.inputs.size() + node.outputs.size();
    const auto& op = model_->steps()[n].op;
    for (size_t i = 0; op != nullptr && i < std::min<size_t>(node.inputs.size(), 32); i++) {
      if (node.inputs[i] >= 0 && (op->shape_inputs() >> i & 1) != 0) decides_shapes_[node.inputs[i]] = true;
    }
  }
  call_tensors_.resize(tensors);
  find_ahead();
  in_.reserve(most_inputs);
  in_values_.reserve(most_inputs);
  out_values_.reserve(most_outputs);
  out_shapes_.reserve(most_outputs);
  out_views_.reserve(most_outputs);
  for (size_t v = 0; v < values; v++) {
    tensors_[v] = model_->values()[v].constant;
    tensors_[v].dtype = model_->ir().values[v].dtype;
  }
}

// Behind the last step comes the first one again.
void Runner::find_ahead() {
  const size_t steps = model_->steps().size();
  ahead_.resize(steps);
  std::span<const std::byte> next;
  for (size_t i = 2 * steps; i-- > 0;) {
    const size_t n = i % steps;
    ahead_[n] = next;
    const auto& op = model_->steps()[n].op;
    if (op == nullptr) continue;
    const auto first = op->reads_first(pool_->threads());
    if (!first.empty()) next = first;
  }
}

Result<void> Runner::run(std::span<const ops::Tensor> inputs, std::span<Output> outputs, std::optional<RowRange> rows) {
  QUERN_CHECK(inputs.size() == model_->inputs().size() && outputs.size() == model_->outputs().size(),
              "one tensor for every graph input and output");
  counters_ = {};
  std::fill(ns_.begin(), ns_.end(), 0);
  std::fill(copied_.begin(), copied_.end(), 0);
  moved_ = !settled_ || rows != rows_;
  settled_ = false;
  rows_ = rows;
  std::fill(stale_.begin(), stale_.end(), false);
  QUERN_TRY_VOID(bind_inputs(inputs));
  QUERN_TRY_VOID(resolve());
  for (size_t j = 0; j < outputs.size(); j++) QUERN_TRY_VOID(bind_output(j, outputs[j]));
  if (moved_) QUERN_TRY_VOID(place());
  for (size_t n = 0; n < stale_.size(); n++) {
    if (moved_ || stale_[n]) connect(static_cast<int>(n));
  }
  settled_ = true;
  QUERN_TRY_VOID(execute());
  return copy_passed_through(outputs);
}

Result<void> Runner::bind_inputs(std::span<const ops::Tensor> inputs) {
  for (size_t i = 0; i < inputs.size(); i++) {
    const Port& port = model_->inputs()[i];
    ops::Tensor& t = tensors_[port.value];
    const ops::Tensor& next = inputs[i].present ? inputs[i] : model_->values()[port.value].constant;
    QUERN_TRY_VOID(check_input(port, inputs[i]));
    if (next.data != t.data || next.cache != t.cache) moved_ = true;
    if (!(next.shape == t.shape)) mark_readers(port.value);
    t = next;
    if (decides_shapes_[port.value]) QUERN_TRY_VOID(read_values(port));
  }
  return {};
}

Result<void> Runner::check_input(const Port& port, const ops::Tensor& fed) const {
  const auto refuse = [&](std::string what) {
    return bad_request(fmt::format("input {}", quote_name(port.name)), std::move(what));
  };
  if (!fed.present) {
    if (model_->ir().values[port.value].initializer == nullptr) return refuse("is required and was not given");
    return {};
  }
  if (fed.dtype != port.dtype) {
    return refuse(fmt::format("has type {}, expected {}", dtype_name(fed.dtype), dtype_name(port.dtype)));
  }
  bool fits = !port.has_shape || port.dims.size() == static_cast<size_t>(fed.shape.rank());
  for (int d = 0; fits && port.has_shape && d < fed.shape.rank(); d++) {
    fits = port.dims[d].extent < 0 || port.dims[d].extent == fed.shape[d];
  }
  if (!fits) return refuse(fmt::format("has shape {}, expected {}", fed.shape.to_string(), declared(port)));
  if (!payload_bytes(fed)) return refuse(fmt::format("shape {} is too large", fed.shape.to_string()));
  return {};
}

// The contents of an input that shapes depend on.
Result<void> Runner::read_values(const Port& port) {
  const ops::Tensor& t = tensors_[port.value];
  const ops::IntValues known = known_values(t);
  if (!known.known) {
    return bad_request(fmt::format("input {}", quote_name(port.name)),
                       fmt::format("decides shapes: expected at most {} integers, got {} of {}", ops::IntValues::kMax,
                                   t.elements(), dtype_name(t.dtype)));
  }
  set_values(port.value, known);
  return {};
}

void Runner::set_values(int value, const ops::IntValues& values) {
  if (int_values_[value] == values) return;
  int_values_[value] = values;
  mark_readers(value);
}

// To be called where an input has another shape than in the last run, or a value another known content. A result of
// another shape or layout moves what follows: everything behind it is resolved.
void Runner::mark_readers(int value) {
  for (const Use& use : model_->ir().values[value].uses) stale_[use.node] = true;
}

void Runner::gather_inputs(int index) {
  const Node& node = model_->ir().nodes[index];
  in_.clear();
  for (const int v : node.inputs) {
    if (v >= 0) {
      in_.push_back(tensors_[v]);
    } else {
      in_.emplace_back();
      in_.back().present = false;
    }
  }
  if (index == narrowed_step_) {
    in_[0].shape = narrowed_shape_;
    if (in_[0].data != nullptr) in_[0].data = at(in_[0], narrowed_offset_);
  }
}

Result<void> Runner::narrow(const RowRange& rows) {
  const Port& port = model_->outputs()[rows.output];
  const int step = model_->ir().values[port.value].producer;
  const std::string where = fmt::format("output {}", quote_name(port.name));
  if (step < 0 || model_->steps()[step].op == nullptr || !model_->steps()[step].op->row_wise()) {
    return unsupported(where, "cannot be computed for some rows only: its node does not work row by row");
  }
  const auto& outputs = model_->ir().nodes[step].outputs;
  if (std::count_if(outputs.begin(), outputs.end(), [](int v) { return v >= 0; }) == 1) {
    narrowed_step_ = step;
  } else {
    cut_value_ = port.value;
  }
  return {};
}

// The shape of the wanted rows of `full`.
Result<ops::Shape> Runner::rows_of(const ops::Shape& full, const RowRange& rows) const {
  const int rank = full.rank();
  bool fits = rank >= 2 && rows.first >= 0 && rows.count >= 0 && rows.first <= full[rank - 2] - rows.count;
  for (int d = 0; d + 2 < rank; d++) fits = fits && full[d] == 1;
  if (!fits) {
    return bad_request(
        fmt::format("output {}", quote_name(model_->outputs()[rows.output].name)),
        fmt::format("rows {} to {} asked of shape {}", rows.first, rows.first + rows.count, full.to_string()));
  }
  ops::Shape shape = full;
  shape[rank - 2] = rows.count;
  return shape;
}

Result<void> Runner::resolve() {
  narrowed_step_ = -1;
  cut_value_ = -1;
  if (rows_) QUERN_TRY_VOID(narrow(*rows_));
  for (size_t n = 0; n < model_->steps().size(); n++) {
    const int index = static_cast<int>(n);
    if (!(moved_ || stale_[n]) || model_->steps()[n].op == nullptr) continue;
    if (index == narrowed_step_) {
      const ops::Shape& full = tensors_[model_->ir().nodes[n].inputs[0]].shape;
      QUERN_TRY(narrowed_shape_, rows_of(full, *rows_));
      narrowed_offset_ = rows_->first * full.back();
    }
    QUERN_TRY_VOID(resolve_step(index));
  }
  if (cut_value_ >= 0) {
    const ops::Shape& full = tensors_[cut_value_].shape;
    QUERN_TRY(cut_shape_, rows_of(full, *rows_));
    cut_offset_ = rows_->first * full.back();
  }
  return {};
}

Result<void> Runner::resolve_step(int index) {
  const Node& node = model_->ir().nodes[index];
  gather_inputs(index);
  in_values_.clear();
  for (const int v : node.inputs) {
    if (v < 0) {
      in_values_.emplace_back();
    } else {
      in_values_.push_back(model_->values()[v].known.known ? model_->values()[v].known : int_values_[v]);
    }
  }
  const size_t count = node.outputs.size();
  out_shapes_.assign(count, {});
  out_values_.assign(count, {});
  out_views_.assign(count, {});
  const ops::ResolveArgs args{in_, in_values_, out_shapes_, out_values_, out_views_};
  QUERN_TRY_VOID(model_->steps()[index].op->resolve(args));
  for (size_t j = 0; j < count; j++) {
    if (node.outputs[j] >= 0) QUERN_TRY_VOID(take_output(index, j));
  }
  return {};
}

// Writes what resolve() said of output j of the step into the tables by value.
Result<void> Runner::take_output(int index, size_t j) {
  const Node& node = model_->ir().nodes[index];
  const int v = node.outputs[j];
  ops::Tensor& t = tensors_[v];
  const ops::View& view = out_views_[j];
  const bool folded = model_->steps()[index].owner == Owner::prepared;
  const bool viewed =
      !folded && view.of >= 0 && !model_->ir().values[v].is_output && (view.contiguous || model_->values()[v].rows_ok);
  const int of = viewed ? node.inputs[view.of] : -1;
  const bool contiguous = !viewed || view.contiguous;
  const ops::RowLayout layout = viewed ? view.layout : ops::RowLayout{};
  const int64_t offset = viewed ? view.offset : 0;
  if (!(t.shape == out_shapes_[j]) || t.contiguous != contiguous || !(t.layout == layout) || viewed_[v] != of ||
      view_offset_[v] != offset) {
    t.shape = out_shapes_[j];
    t.contiguous = contiguous;
    t.layout = layout;
    viewed_[v] = of;
    view_offset_[v] = offset;
    moved_ = true;
    if (!payload_bytes(t)) {
      return bad_request(node.name, fmt::format("output shape {} is too large", t.shape.to_string()));
    }
  }
  set_values(v, out_values_[j]);
  if (folded) write_folded(v);
  return {};
}

void Runner::write_folded(int value) {
  const ops::IntValues& values = int_values_[value];
  QUERN_CHECK(values.known, "a folded node gives known values");
  ops::Tensor& t = tensors_[value];
  for (int k = 0; k < values.count; k++) {
    if (t.dtype == DType::i64) {
      payload_[value][k] = values.v[k];
    } else {
      const auto narrow = static_cast<int32_t>(values.v[k]);
      std::memcpy(reinterpret_cast<std::byte*>(payload_[value].data()) + k * 4, &narrow, 4);
    }
  }
  t.data = payload_[value].data();
}

// Which storage each value lies in, in this run, and until when somebody looks at it.
void Runner::find_lifetimes() {
  for (size_t v = 0; v < storage_of_.size(); v++) {
    storage_of_[v] = static_cast<int>(v);
    storage_end_[v] = model_->values()[v].last_use;
  }
  // Its rows are copied behind the last step.
  if (cut_value_ >= 0) storage_end_[cut_value_] = static_cast<int>(model_->steps().size());
  for (const Node& node : model_->ir().nodes) {  // in execution order, so that chains are followed from their start
    for (int v : node.outputs) {
      if (v < 0 || viewed_[v] < 0) continue;
      storage_of_[v] = storage_of_[viewed_[v]];
      int& end = storage_end_[storage_of_[v]];
      end = std::max(end, model_->values()[v].last_use);
    }
  }
}

// The input of a step whose place in the arena output j may take over, or -1.
int Runner::shared_input(int index, int output) const {
  const Node& node = model_->ir().nodes[index];
  const ops::Operator& op = *model_->steps()[index].op;
  const int v = node.outputs[output];
  for (size_t i = 0; i < node.inputs.size(); i++) {
    const int in = node.inputs[i];
    if (in < 0 || !op.may_share(static_cast<int>(i), output)) continue;
    if (block_of_[in] < 0 || storage_end_[in] != index || taken_over_[in]) continue;
    if (blocks_[block_of_[in]].bytes != *payload_bytes(tensors_[v])) continue;
    return in;
  }
  return -1;
}

Result<void> Runner::bind_output(size_t index, Output& output) {
  const Port& port = model_->outputs()[index];
  const bool cut = port.value == cut_value_;
  output.result = tensors_[port.value];
  if (cut) output.result.shape = cut_shape_;
  const size_t bytes = *payload_bytes(output.result);
  output.result.contiguous = true;
  output.result.data = nullptr;
  if (output.wanted && output.bound != nullptr) {
    if (bytes > output.bound_bytes) {
      return bad_request(fmt::format("output {}", quote_name(port.name)),
                         fmt::format("shape {} needs {} bytes, {} are bound", output.result.shape.to_string(), bytes,
                                     output.bound_bytes));
    }
    output.result.data = output.bound;
  } else if (output.wanted) {
    if (output.storage.size() < bytes) {
      QUERN_TRY(output.storage, cpu::Buffer::allocate(bytes, output.tag));
    }
    output.result.data = output.storage.data();
  }
  const Home home{output.wanted, output.result.data};
  if (homes_[index] == home) return {};
  // Callers often give every call's result another place. Where nothing in the graph reads the value that is no reason
  // to place all others again.
  const Value& value = model_->ir().values[port.value];
  if (homes_[index].wanted && home.wanted && !cut && value.uses.empty() && value.producer >= 0 &&
      tensors_[port.value].data == homes_[index].data) {
    tensors_[port.value].data = home.data;
    stale_[value.producer] = true;
  } else {
    moved_ = true;
  }
  homes_[index] = home;
  return {};
}

// The graph outputs that nobody takes and that their operators do without.
void Runner::find_left_out() {
  std::fill(left_out_.begin(), left_out_.end(), false);
  for (size_t j = 0; j < homes_.size(); j++) {
    const int v = model_->outputs()[j].value;
    const Value& value = model_->ir().values[v];
    if (homes_[j].wanted || value.producer < 0 || !value.uses.empty()) continue;
    const auto& outputs = model_->ir().nodes[value.producer].outputs;
    const auto k = static_cast<int>(std::find(outputs.begin(), outputs.end(), v) - outputs.begin());
    const auto& op = model_->steps()[value.producer].op;
    left_out_[v] = op != nullptr && op->may_omit(k);
  }
  // The same value may leave the graph under several names.
  for (size_t j = 0; j < homes_.size(); j++) {
    if (homes_[j].wanted) left_out_[model_->outputs()[j].value] = false;
  }
}

// Gives every value that a step computes its memory.
Result<void> Runner::place() {
  blocks_.clear();
  find_left_out();
  find_lifetimes();
  std::fill(block_of_.begin(), block_of_.end(), -1);
  std::fill(taken_over_.begin(), taken_over_.end(), false);
  const int steps = static_cast<int>(model_->steps().size());
  const auto is_folded = [&](int v) { return model_->values()[v].folded; };
  const auto for_computed = [&](auto f) {
    for (int n = 0; n < steps; n++) {
      const auto& node_outputs = model_->ir().nodes[n].outputs;
      for (size_t j = 0; j < node_outputs.size(); j++) {
        const int v = node_outputs[j];
        if (v >= 0 && model_->steps()[n].op != nullptr && !is_folded(v) && !left_out_[v]) f(n, static_cast<int>(j), v);
      }
    }
  };
  for_computed([&](int, int, int v) { tensors_[v].data = nullptr; });
  for (size_t j = 0; j < homes_.size(); j++) {
    const int v = model_->outputs()[j].value;
    if (homes_[j].data == nullptr || v == cut_value_ || is_folded(v)) continue;
    if (model_->ir().values[v].kind == ValueKind::computed) tensors_[v].data = homes_[j].data;
  }
  for_computed([&](int n, int j, int v) {
    if (tensors_[v].data != nullptr || viewed_[v] >= 0) return;
    Block block;
    block.bytes = *payload_bytes(tensors_[v]);
    block.first = n;
    block.last = storage_end_[v];
    const int shared = shared_input(n, j);
    if (shared >= 0) {
      block.reuses = block_of_[shared];
      taken_over_[shared] = true;
    }
    block_of_[v] = static_cast<int>(blocks_.size());
    blocks_.push_back(block);
  });
  storage_.place(blocks_);
  if (storage_.total_bytes() > arena_.size()) {
    arena_ = {};  // before the larger one is there, so that both never count at once
    QUERN_TRY(arena_, cpu::Buffer::allocate(storage_.total_bytes(), cpu::MemoryTag::workspace));
  }
  for_computed([&](int, int, int v) {
    ops::Tensor& t = tensors_[v];
    if (viewed_[v] >= 0) {
      const ops::Tensor& base = tensors_[viewed_[v]];
      t.data = base.data == nullptr ? nullptr : at(base, view_offset_[v]);
    } else if (block_of_[v] >= 0 && arena_.data() != nullptr) {
      t.data = arena_.as<std::byte>() + blocks_[block_of_[v]].offset;
    }
  });
  return {};
}

// Writes down what the step's operator is called with.
void Runner::connect(int index) {
  const Node& node = model_->ir().nodes[index];
  gather_inputs(index);
  std::copy(in_.begin(), in_.end(), call_tensors_.begin() + static_cast<std::ptrdiff_t>(calls_[index].inputs));
  ops::Tensor* out = call_tensors_.data() + calls_[index].outputs;
  bool computes = false;
  for (const int v : node.outputs) {
    *out = v >= 0 ? tensors_[v] : ops::Tensor{};
    out->present = v >= 0 && !left_out_[v];
    computes = computes || (out->present && viewed_[v] < 0);
    out++;
  }
  const Step& step = model_->steps()[index];
  computes_[index] = computes && step.op != nullptr && step.owner != Owner::prepared;
}

Result<void> Runner::execute() {
  const cpu::Pool::Pass pass(*pool_);
  ops::Context ctx{pool_, &scratch_, model_->features(), &counters_};
  for (size_t n = 0; n < model_->steps().size(); n++) {
    if (!computes_[n]) continue;
    const Node& node = model_->ir().nodes[n];
    const std::span<const ops::Tensor> in(call_tensors_.data() + calls_[n].inputs, node.inputs.size());
    const std::span<const ops::Tensor> out(call_tensors_.data() + calls_[n].outputs, node.outputs.size());
    const cpu::Arena::Scope scope(scratch_);
    const int64_t start = profile_ ? now_ns() : 0;
    const uint64_t copied = counters_.bytes_copied;
    ctx.ahead = ahead_[n];
    QUERN_TRY_VOID(model_->steps()[n].op->run(ctx, in, out));
    copied_[n] = counters_.bytes_copied - copied;
    if (profile_) ns_[n] = now_ns() - start;
  }
  return {};
}

// Graph outputs that no kernel writes: constants, inputs handed through, folded values, rows of a larger result.
Result<void> Runner::copy_passed_through(std::span<Output> outputs) {
  for (size_t j = 0; j < outputs.size(); j++) {
    const int v = model_->outputs()[j].value;
    const ops::Tensor& t = tensors_[v];
    const ops::Tensor& result = outputs[j].result;
    if (result.data == nullptr || t.data == nullptr || result.data == t.data) continue;
    const size_t bytes = *payload_bytes(result);
    std::memcpy(result.data, v == cut_value_ ? at(t, cut_offset_) : t.data, bytes);
    if (v != cut_value_) continue;
    counters_.bytes_copied += bytes;
    copied_[model_->ir().values[v].producer] += bytes;
  }
  return {};
}

std::vector<ReportRow> Runner::report() const {
  std::vector<ops::Tensor> inputs;
  for (const Port& port : model_->inputs()) inputs.push_back(tensors_[port.value]);
  std::vector<ReportRow> rows = model_->report(inputs);
  for (size_t n = 0; n < rows.size(); n++) {
    rows[n].ns = ns_[n];
    rows[n].bytes_copied = copied_[n];
    if (rows[n].owner == Owner::view && computes_[n]) {
      rows[n].owner = Owner::kernel;
      rows[n].variant = model_->steps()[n].op->variant();
      rows[n].reason = "copied: the layout of its input cannot be relabelled";
    }
  }
  return rows;
}

}  // namespace quern::graph
