// SPDX-License-Identifier: Apache-2.0
// ONNX Reshape: relabels its input, and copies only where the input's row layout cannot carry the new shape.
#include <fmt/format.h>

#include "ops/registry.h"
#include "ops/reshape/reshape.h"

namespace quern::ops {
namespace {

class Reshape final : public Operator {
 public:
  Reshape(std::string where, DType dtype, bool allow_zero)
      : where_(std::move(where)), dtype_(dtype), allow_zero_(allow_zero) {}

  DType output_dtype(int) const override { return dtype_; }
  std::string_view variant() const override { return "reshape_copy"; }
  uint32_t shape_inputs() const override { return 1u << 1; }
  bool makes_views() const override { return true; }
  bool accepts_unaligned(int input) const override { return input == 1; }  // known when shapes are resolved
  bool accepts_rows(int input) const override { return input == 0; }
  bool folds_known_values() const override { return true; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Tensor& x = args.in[0];
    const Shape& request = args.in[1].shape;
    if (request.rank() != 1) {
      return bad_request(
          where_, fmt::format("the requested shape is a tensor of shape {}, expected rank 1", request.to_string()));
    }
    if (!args.in_values[1].known) {
      return bad_request(
          where_, fmt::format("the requested shape has {} entries, at most {} are allowed", request[0], kMaxRank));
    }
    QUERN_TRY(args.out[0], reshape_shape(x.shape, args.in_values[1].span(), allow_zero_, where_));
    if (const auto rows = reshape_rows(x, args.out[0]); rows && !args.views.empty()) {
      args.views[0] = {.of = 0, .offset = 0, .layout = rows->layout, .contiguous = rows->contiguous};
    }
    if (args.in_values[0].known) args.out_values[0] = args.in_values[0];
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    if (out[0].data != in[0].data) reshape_copy(ctx, in[0], out[0].data);
    return {};
  }

 private:
  std::string where_;
  DType dtype_;
  bool allow_zero_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_reshape(const NodeView& node, const PrepareContext&) {
  QUERN_TRY_VOID(check_arity(node, 2, 2, 1, 1));
  AttributeReader attributes(node);
  int64_t allow_zero = 0;
  if (node.opset >= 14) {
    QUERN_TRY(allow_zero, attributes.int_or("allowzero", 0));
  }
  QUERN_TRY_VOID(attributes.finish());
  if (bits_of(node.input(0).dtype) < 8) {
    return unsupported(node.where(), fmt::format("input 0 of type {} is not supported (types of whole bytes only)",
                                                 dtype_name(node.input(0).dtype)));
  }
  QUERN_TRY_VOID(check_dtype(node, 1, DType::i64));
  if (node.input(1).constant && node.input(1).value.shape.rank() != 1) {
    return bad_model(node.where(), fmt::format("the requested shape is a tensor of shape {}, expected rank 1",
                                               node.input(1).value.shape.to_string()));
  }
  return std::unique_ptr<Operator>(std::make_unique<Reshape>(node.where(), node.input(0).dtype, allow_zero != 0));
}

}  // namespace quern::ops
