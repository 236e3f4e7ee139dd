// SPDX-License-Identifier: Apache-2.0
// Owns what the room tests need to drive one ONNX node through its factory without a graph: tensors with storage, a
// context, and a node that is prepared, resolved and run. It plans no memory; views are handed out only where asked
// for.
//
// Use:
//   OneNode node(&ops::make_gather, "Gather");
//   node.attribute("axis", 1).input(tensor<float>({2, 3}, {...})).constant(tensor<int64_t>({}, {1})).outputs(1);
//   auto y = node.run();                       // Result<std::vector<OwnedTensor>>
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/registry.h"

namespace quern::support {

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::f16;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
}

// A tensor with its own storage, 64-byte aligned; `shift` moves the payload off that by as many bytes. Move-only: a
// copy would lie at another address.
class OwnedTensor {
 public:
  OwnedTensor(DType dtype, ops::Shape shape, size_t shift = 0) : shift_(shift) {
    view_.dtype = dtype;
    view_.shape = shape;
    bytes_.resize(storage_bytes(dtype, shape.checked_elements().value()).value() + shift + 64);
  }
  OwnedTensor(OwnedTensor&&) = default;
  OwnedTensor& operator=(OwnedTensor&&) = default;

  ops::Tensor view() const {
    ops::Tensor t = view_;
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    t.data = const_cast<std::byte*>(bytes_.data()) + (64 - address % 64) % 64 + shift_;
    return t;
  }
  const ops::Shape& shape() const { return view_.shape; }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> out(static_cast<size_t>(view_.elements()));
    if (!out.empty()) std::memcpy(out.data(), view().data, out.size() * sizeof(T));
    return out;
  }

 private:
  ops::Tensor view_;
  std::vector<std::byte> bytes_;
  size_t shift_;
};

template <class T>
OwnedTensor tensor(ops::Shape shape, const std::vector<T>& values, size_t shift = 0) {
  OwnedTensor t(dtype_of<T>(), shape, shift);
  QUERN_CHECK(static_cast<int64_t>(values.size()) == shape.elements(), "as many values as the shape holds");
  if (!values.empty()) std::memcpy(t.view().data, values.data(), values.size() * sizeof(T));
  return t;
}

// Owns what a Context borrows.
struct Machine {
  explicit Machine(int threads = 1) : pool(threads), context{&pool, &scratch, cpu::detect_features(), &counters} {}
  cpu::Pool pool;
  cpu::Arena scratch;
  ops::Counters counters;
  ops::Context context;
};

class OneNode {
 public:
  OneNode(ops::Factory factory, std::string op, std::string domain = "", int64_t opset = 21)
      : factory_(factory), op_(std::move(op)), domain_(std::move(domain)), opset_(opset) {}

  OneNode& attribute(std::string name, int64_t value) {
    attributes_.push_back(
        {.name = "", .type = ops::AttributeType::i, .f = 0, .i = value, .s = "", .tensor = {}, .ints = {}});
    attribute_names_.push_back(std::move(name));
    return *this;
  }
  OneNode& attribute(std::string name, int value) { return attribute(std::move(name), int64_t{value}); }
  OneNode& attribute(std::string name, float value) {
    attributes_.push_back(
        {.name = "", .type = ops::AttributeType::f, .f = value, .i = 0, .s = "", .tensor = {}, .ints = {}});
    attribute_names_.push_back(std::move(name));
    return *this;
  }
  OneNode& input(OwnedTensor t) { return add(std::move(t), false); }
  OneNode& constant(OwnedTensor t) { return add(std::move(t), true); }
  OneNode& absent() {
    inputs_.push_back(nullptr);
    constant_.push_back(false);
    return *this;
  }
  // All are present but those in `missing`.
  OneNode& outputs(int count, std::vector<int> missing = {}) {
    outputs_.assign(static_cast<size_t>(count), 1);
    for (int i : missing) outputs_[static_cast<size_t>(i)] = 0;
    return *this;
  }
  OwnedTensor& input_tensor(size_t i) { return *inputs_[i]; }

  Result<std::unique_ptr<ops::Operator>> prepare(const cpu::Features& features = cpu::detect_features()) {
    std::vector<ops::NodeInput> inputs;
    for (size_t i = 0; i < inputs_.size(); i++) {
      ops::NodeInput in;
      if (inputs_[i] != nullptr) {
        in.present = true;
        in.dtype = inputs_[i]->view().dtype;
        in.constant = constant_[i];
        if (in.constant) in.value = inputs_[i]->view();
      }
      inputs.push_back(in);
    }
    for (size_t i = 0; i < attributes_.size(); i++) attributes_[i].name = attribute_names_[i];
    const auto present = std::make_unique<bool[]>(outputs_.size());
    std::copy(outputs_.begin(), outputs_.end(), present.get());
    ops::NodeView view;
    view.name = "n";
    view.op = op_;
    view.domain = domain_;
    view.opset = opset_;
    view.attributes = attributes_;
    view.inputs = inputs;
    view.outputs = {present.get(), outputs_.size()};
    ops::PrepareContext ctx;
    ctx.features = features;
    return factory_(view, ctx);
  }

  // What resolve() said in the last call.
  std::vector<ops::Shape> shapes;
  std::vector<ops::IntValues> values;
  std::vector<ops::View> views;
  // Whether small integer inputs count as known while shapes are resolved.
  bool know_integers = true;

  Result<void> resolve(const ops::Operator& op) {
    shapes.assign(outputs_.size(), {});
    values.assign(outputs_.size(), {});
    views.assign(outputs_.size(), {});
    in_.clear();
    in_values_.clear();
    for (const auto& input : inputs_) {
      ops::Tensor t;
      t.present = input != nullptr;
      if (input != nullptr) t = input->view();
      ops::IntValues known;
      if (know_integers && input != nullptr && (t.dtype == DType::i64 || t.dtype == DType::i32) &&
          t.elements() <= ops::IntValues::kMax) {
        known.known = true;
        for (int64_t i = 0; i < t.elements(); i++) known.v[static_cast<size_t>(known.count++)] = read(t, i);
      }
      in_.push_back(t);
      in_values_.push_back(known);
    }
    return op.resolve({in_, in_values_, shapes, values, views});
  }

  // Prepares, resolves and runs; no output is a view.
  Result<std::vector<OwnedTensor>> run(Machine& machine) {
    QUERN_TRY(operator_, prepare(machine.context.features));
    const ops::Operator* op = operator_.get();
    QUERN_TRY_VOID(resolve(*op));
    std::vector<OwnedTensor> out;
    std::vector<ops::Tensor>& out_views = out_;
    out_views.clear();
    for (size_t j = 0; j < outputs_.size(); j++) {
      out.emplace_back(op->output_dtype(static_cast<int>(j)), outputs_[j] != 0 ? shapes[j] : ops::Shape{0});
      out_views.push_back(out.back().view());
      out_views.back().present = outputs_[j] != 0;
      if (outputs_[j] == 0) out_views.back().data = nullptr;
    }
    QUERN_TRY_VOID(op->run(machine.context, in_, out_views));
    return out;
  }
  Result<std::vector<OwnedTensor>> run() {
    Machine machine;
    return run(machine);
  }

  // resolve() and run() of the last run() once more, into the same outputs, which the caller still holds. Allocates
  // nothing itself.
  Result<void> run_again(Machine& machine) {
    QUERN_TRY_VOID(operator_->resolve({in_, in_values_, shapes, values, views}));
    return operator_->run(machine.context, in_, out_);
  }

  std::vector<ops::Tensor>& inputs() { return in_; }

 private:
  OneNode& add(OwnedTensor t, bool constant) {
    inputs_.push_back(std::make_unique<OwnedTensor>(std::move(t)));
    constant_.push_back(constant);
    return *this;
  }
  static int64_t read(const ops::Tensor& t, int64_t i) {
    if (t.dtype == DType::i32) {
      int32_t v = 0;
      std::memcpy(&v, t.as<std::byte>() + i * 4, sizeof(v));
      return v;
    }
    int64_t v = 0;
    std::memcpy(&v, t.as<std::byte>() + i * 8, sizeof(v));
    return v;
  }

  ops::Factory factory_;
  std::string op_, domain_;
  int64_t opset_;
  std::vector<std::string> attribute_names_;
  std::vector<ops::Attribute> attributes_;
  std::vector<std::unique_ptr<OwnedTensor>> inputs_;
  std::vector<bool> constant_;
  std::vector<char> outputs_;
  std::vector<ops::Tensor> in_, out_;
  std::vector<ops::IntValues> in_values_;
  std::unique_ptr<ops::Operator> operator_;
};

}  // namespace quern::support
