// SPDX-License-Identifier: Apache-2.0
// ONNX Add, Sub, Mul and Sigmoid on the elementwise entries. Does not own broadcasting or arithmetic.
#include <fmt/format.h>

#include "ops/elementwise/elementwise.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

class Binary final : public Operator {
 public:
  Binary(const NodeView& node, ElementwiseOp op, std::string_view variant)
      : where_(node.where()), op_(op), dtype_(node.input(0).dtype), variant_(variant) {}

  DType output_dtype(int) const override { return dtype_; }
  std::string_view variant() const override { return variant_; }
  bool folds_known_values() const override { return dtype_ != DType::f32; }
  bool may_share(int, int) const override { return true; }

  Result<void> resolve(const ResolveArgs& args) const override {
    QUERN_TRY(args.out[0], broadcast_shape(args.in[0].shape, args.in[1].shape, where_));
    if (!folds_known_values() || args.in_values.size() < 2 || !args.in_values[0].known || !args.in_values[1].known) {
      return {};
    }
    fold(args);
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    return binary(ctx, {op_, dtype_, in[0].shape, in[1].shape}, {in[0].data, in[1].data, out[0].data}, where_);
  }

 private:
  int64_t apply(int64_t a, int64_t b) const {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    const uint64_t r = op_ == ElementwiseOp::add ? x + y : op_ == ElementwiseOp::sub ? x - y : x * y;
    return dtype_ == DType::i32 ? static_cast<int32_t>(r) : static_cast<int64_t>(r);
  }

  void fold(const ResolveArgs& args) const {
    const Shape& shape = args.out[0];
    const int64_t count = shape.checked_elements().value_or(0);
    if (count > IntValues::kMax) return;
    IntValues folded{.known = true, .count = static_cast<int>(count), .v = {}};
    for (int64_t i = 0; i < count; i++) {
      folded.v[static_cast<size_t>(i)] = apply(element(args.in_values[0], args.in[0].shape, shape, i),
                                               element(args.in_values[1], args.in[1].shape, shape, i));
    }
    args.out_values[0] = folded;
  }

  // The element of an operand that meets element i of the result.
  static int64_t element(const IntValues& values, const Shape& shape, const Shape& result, int64_t i) {
    int64_t at = 0, stride = 1;
    for (int d = 1; d <= shape.rank(); d++) {
      const int64_t extent = shape[shape.rank() - d], whole = result[result.rank() - d];
      if (extent != 1) at += i % whole * stride;
      stride *= extent;
      i /= whole;
    }
    return values.v[static_cast<size_t>(at)];
  }

  std::string where_;
  ElementwiseOp op_;
  DType dtype_;
  std::string_view variant_;
};

class Sigmoid final : public Operator {
 public:
  explicit Sigmoid(const cpu::Features& features) : features_(features) {}

  DType output_dtype(int) const override { return DType::f32; }
  std::string_view variant() const override {
    return elementwise_variant(ElementwiseOp::sigmoid, DType::f32, features_);
  }
  const cpu::Features& features() const { return features_; }
  bool may_share(int, int) const override { return true; }
  bool row_wise() const override { return true; }

  Result<void> resolve(const ResolveArgs& args) const override {
    args.out[0] = args.in[0].shape;
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const int64_t count = in[0].shape.checked_elements().value_or(0);
    sigmoid(ctx, {in[0].as<const float>(), static_cast<size_t>(count)}, out[0].as<float>());
    return {};
  }

 private:
  cpu::Features features_;
};

class SiluMul final : public Operator {
 public:
  SiluMul(std::string where, std::string_view variant) : where_(std::move(where)), variant_(variant) {}

  DType output_dtype(int) const override { return DType::f32; }
  std::string_view variant() const override { return variant_; }
  bool may_share(int, int) const override { return true; }

  Result<void> resolve(const ResolveArgs& args) const override {
    QUERN_TRY(args.out[0], broadcast_shape(args.in[0].shape, args.in[1].shape, where_));
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const auto count = static_cast<size_t>(in[0].shape.checked_elements().value_or(0));
    const std::span<const float> a{in[0].as<const float>(), count};
    const auto* b = in[1].as<const float>();
    if (in[0].shape == in[1].shape) {
      silu_mul(ctx, a, b, out[0].as<float>());
      return {};
    }
    const cpu::Arena::Scope scope(*ctx.scratch);
    QUERN_TRY(float* silu, ctx.scratch->take<float>(count));
    sigmoid(ctx, a, silu);
    const BinaryParams params{ElementwiseOp::mul, DType::f32, in[0].shape, in[0].shape};
    QUERN_TRY_VOID(binary(ctx, params, {a.data(), silu, silu}, where_));
    return binary(ctx, {ElementwiseOp::mul, DType::f32, in[0].shape, in[1].shape}, {silu, b, out[0].data}, where_);
  }

 private:
  std::string where_;
  std::string_view variant_;
};

Result<std::unique_ptr<Operator>> make_binary(const NodeView& node, const PrepareContext& ctx, ElementwiseOp op) {
  QUERN_TRY_VOID(check_arity(node, 2, 2, 1, 1));
  QUERN_TRY_VOID(AttributeReader(node).finish());
  const DType dtype = node.input(0).dtype;
  if (!binary_supported(dtype)) {
    return unsupported(
        node.where(), fmt::format("input 0 of type {} is not supported (float32, int64 and int32)", dtype_name(dtype)));
  }
  if (node.input(1).dtype != dtype) {
    return bad_model(node.where(), fmt::format("input 1 has type {}, expected {} as input 0",
                                               dtype_name(node.input(1).dtype), dtype_name(dtype)));
  }
  return std::unique_ptr<Operator>(std::make_unique<Binary>(node, op, elementwise_variant(op, dtype, ctx.features)));
}

}  // namespace

std::unique_ptr<Operator> make_silu_mul(std::string where, const Operator& sigmoid) {
  const auto* known = dynamic_cast<const Sigmoid*>(&sigmoid);
  if (known == nullptr) return nullptr;
  return std::make_unique<SiluMul>(std::move(where),
                                   elementwise_variant(ElementwiseOp::silu_mul, DType::f32, known->features()));
}

Result<std::unique_ptr<Operator>> make_add(const NodeView& node, const PrepareContext& ctx) {
  return make_binary(node, ctx, ElementwiseOp::add);
}

Result<std::unique_ptr<Operator>> make_sub(const NodeView& node, const PrepareContext& ctx) {
  return make_binary(node, ctx, ElementwiseOp::sub);
}

Result<std::unique_ptr<Operator>> make_mul(const NodeView& node, const PrepareContext& ctx) {
  return make_binary(node, ctx, ElementwiseOp::mul);
}

Result<std::unique_ptr<Operator>> make_sigmoid(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY_VOID(check_arity(node, 1, 1, 1, 1));
  QUERN_TRY_VOID(AttributeReader(node).finish());
  QUERN_TRY_VOID(check_dtype(node, 0, DType::f32));
  return std::unique_ptr<Operator>(std::make_unique<Sigmoid>(ctx.features));
}

}  // namespace quern::ops
