// SPDX-License-Identifier: Apache-2.0
// ONNX ReduceSum on the reduce_sum entry: axes from input 1, keepdims, noop_with_empty_axes. Does not own the sums.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "ops/reduce_sum/reduce_sum.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

class ReduceSum final : public Operator {
 public:
  ReduceSum(std::string where, DType dtype, bool keep_dims, bool none_when_empty, bool has_axes)
      : where_(std::move(where)),
        dtype_(dtype),
        keep_dims_(keep_dims),
        none_when_empty_(none_when_empty),
        has_axes_(has_axes) {}

  DType output_dtype(int) const override { return dtype_; }
  std::string_view variant() const override { return "reduce_sum_scalar"; }
  bool accepts_unaligned(int) const override { return true; }
  uint32_t shape_inputs() const override { return has_axes_ ? 1u << 1 : 0; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& shape = args.in[0].shape;
    if (has_axes_ && args.in[1].shape.rank() != 1) {
      return bad_request(
          where_, fmt::format("the axes are a tensor of shape {}, expected rank 1", args.in[1].shape.to_string()));
    }
    if (has_axes_ && !args.in_values[1].known) {
      return bad_request(
          where_, fmt::format("there are {} axes, at most {} are allowed", args.in[1].shape[0], IntValues::kMax));
    }
    QUERN_TRY(const uint32_t axes, find_axes(shape, has_axes_ ? args.in_values[1].span() : std::span<const int64_t>()));
    Shape out;
    for (int i = 0; i < shape.rank(); i++) {
      const bool reduced = (axes >> i & 1) != 0;
      if (!reduced) out.push_back(shape[i]);
      if (reduced && keep_dims_) out.push_back(1);
    }
    const auto elements = out.checked_elements();
    if (!elements || !storage_bytes(dtype_, *elements)) {
      return bad_request(where_, fmt::format("result shape {} is too large", out.to_string()));
    }
    args.out[0] = out;
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    std::array<int64_t, IntValues::kMax> axes{};
    size_t count = 0;
    if (has_axes_) {
      count = static_cast<size_t>(in[1].elements());
      if (count > axes.size())
        return bad_request(where_, fmt::format("there are {} axes, at most {} are allowed", count, axes.size()));
      // Constants of a file may be unaligned.
      if (count != 0) std::memcpy(axes.data(), in[1].data, count * sizeof(int64_t));
    }
    QUERN_TRY(const uint32_t bits, find_axes(in[0].shape, {axes.data(), count}));
    return reduce_sum(ctx, {dtype_, in[0].shape, bits}, {in[0].data, out[0].data}, where_);
  }

 private:
  Result<uint32_t> find_axes(const Shape& shape, std::span<const int64_t> axes) const {
    if (axes.empty()) return none_when_empty_ ? 0u : (1u << shape.rank()) - 1;
    return reduced_axes(shape, axes, where_);
  }

  std::string where_;
  DType dtype_;
  bool keep_dims_, none_when_empty_, has_axes_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_reduce_sum(const NodeView& node, const PrepareContext&) {
  QUERN_TRY_VOID(check_arity(node, 1, 2, 1, 1));
  AttributeReader attributes(node);
  QUERN_TRY(const int64_t keep_dims, attributes.int_or("keepdims", 1));
  QUERN_TRY(const int64_t none_when_empty, attributes.int_or("noop_with_empty_axes", 0));
  QUERN_TRY_VOID(attributes.finish());
  const DType dtype = node.input(0).dtype;
  if (!reduce_sum_supported(dtype)) {
    return unsupported(
        node.where(), fmt::format("input 0 of type {} is not supported (float32, int64 and int32)", dtype_name(dtype)));
  }
  QUERN_TRY_VOID(check_dtype(node, 1, DType::i64));
  if (node.has_input(1) && node.input(1).constant && node.input(1).value.shape.rank() != 1) {
    return bad_model(node.where(), fmt::format("the axes are a tensor of shape {}, expected rank 1",
                                               node.input(1).value.shape.to_string()));
  }
  return std::unique_ptr<Operator>(
      std::make_unique<ReduceSum>(node.where(), dtype, keep_dims != 0, none_when_empty != 0, node.has_input(1)));
}

}  // namespace quern::ops
