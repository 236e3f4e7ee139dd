// SPDX-License-Identifier: Apache-2.0
// ONNX MatMul on the matmul entry, float32 only. Does not own the product.
#include <fmt/format.h>

#include "ops/matmul/matmul.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

class MatMul final : public Operator {
 public:
  MatMul(const NodeView& node, std::string_view variant)
      : where_(node.where()),
        b_is_weight_(node.input(1).constant),
        b_is_matrix_(b_is_weight_ && node.input(1).value.shape.rank() == 2),
        variant_(variant) {}

  DType output_dtype(int) const override { return DType::f32; }
  std::string_view variant() const override { return variant_; }
  bool row_wise() const override { return b_is_matrix_; }
  // Rows of a are read by scalar loads; b takes any address and is never copied.
  bool accepts_unaligned(int input) const override { return input == 1; }

  Result<void> resolve(const ResolveArgs& args) const override {
    QUERN_TRY(args.out[0], matmul_shape(args.in[0].shape, args.in[1].shape, where_));
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    QUERN_TRY_VOID(matmul(ctx, {in[0].shape, in[1].shape},
                          {in[0].as<const float>(), in[1].as<const float>(), out[0].as<float>()}, where_));
    if (b_is_weight_ && ctx.counters != nullptr && out[0].shape.checked_elements() != 0) {
      ctx.counters->weight_bytes_read += static_cast<uint64_t>(in[1].elements()) * sizeof(float) *
                                         static_cast<uint64_t>(matmul_passes_over_b(in[0].shape, in[1].shape));
    }
    return {};
  }

 private:
  std::string where_;
  bool b_is_weight_, b_is_matrix_;
  std::string_view variant_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_matmul(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY_VOID(check_arity(node, 2, 2, 1, 1));
  QUERN_TRY_VOID(AttributeReader(node).finish());
  QUERN_TRY_VOID(check_dtype(node, 0, DType::f32));
  QUERN_TRY_VOID(check_dtype(node, 1, DType::f32));
  return std::unique_ptr<Operator>(std::make_unique<MatMul>(node, matmul_variant(ctx.features)));
}

}  // namespace quern::ops
