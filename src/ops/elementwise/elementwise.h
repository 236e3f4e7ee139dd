// SPDX-License-Identifier: Apache-2.0
// Owns element-by-element arithmetic: add, sub and mul with NumPy broadcasting, the sigmoid, and its use as a gate.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/elementwise/kernels.h"
#include "ops/registry.h"
#include "ops/tensor.h"

namespace quern::ops {

// y = a + b, a - b or a * b, each element once, a and b broadcast to broadcast_shape(a, b).
// float32: IEEE, one rounding. int64, int32: modulo 2^64, 2^32. Class exact.
// a and b are row-major without gaps, aligned to their element. y may be a or b where it has as many elements.
struct BinaryParams {
  ElementwiseOp op = ElementwiseOp::add;
  DType dtype = DType::f32;  // f32, i64 or i32
  Shape a, b;
};

struct BinaryArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
};

bool binary_supported(DType dtype);

// Errors: bad_request for shapes that do not broadcast, unsupported for a type. `where` is the place for errors.
Result<void> binary(const Context& ctx, const BinaryParams& params, const BinaryArgs& args, std::string_view where);

// Errors: bad_request where two extents differ and neither is 1, or where the result overflows.
Result<Shape> broadcast_shape(const Shape& a, const Shape& b, std::string_view where);

// y[i] = 1 / (1 + exp(-x[i])). Class close: |dy| <= 2.5e-7 * y for x >= -87.3f; below, where the value is less than
// 1.3e-38, vector variants give 0 and the scalar one the nearest float. Exactly 1 and 0 at the infinities, NaN at NaN.
// y may be x.
// The bound: exp(-|x|) is within 2 units of its last place and enters with weight exp(-|x|) / (1 + exp(-|x|)) <= 1/2;
// the sum and the quotient round once each.
void sigmoid(const Context& ctx, std::span<const float> x, float* y);

// y[i] = (a[i] * sigmoid(a[i])) * b[i], with the bits that sigmoid() and two products give: |dy| <= 3.8e-7 * |y|, and
// what sigmoid() says of small and special values. y may be a or b.
void silu_mul(const Context& ctx, std::span<const float> a, const float* b, float* y);

// The operator y = (a * sigmoid(a)) * b for inputs a and b of float32: that of a Sigmoid node and two Mul nodes in one.
// b broadcasts as in Mul. `where` is the place for errors. Null where `sigmoid` is no operator of a Sigmoid node.
std::unique_ptr<Operator> make_silu_mul(std::string where, const Operator& sigmoid);

// Symbol of the variant that is used under these features.
std::string_view elementwise_variant(ElementwiseOp op, DType dtype, const cpu::Features& features);

}  // namespace quern::ops
