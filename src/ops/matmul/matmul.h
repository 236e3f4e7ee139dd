// SPDX-License-Identifier: Apache-2.0
// Owns the float32 matrix product with NumPy semantics. Does not own quantized weights (matmul_nbits).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/tensor.h"

namespace quern::ops {

// y[.., i, j] = sum_k a[.., i, k] * b[.., k, j]
//
// a and b float32, row-major without gaps, of rank 1 or more; a vector a is one row, a vector b one column, and that
// dimension is absent in y. The dimensions before the last two broadcast. b needs no alignment. y overlaps neither.
// Class close: |dy| <= (K + 1) * eps_f32 / 2 * sum_k |a[i,k] * b[k,j]| against the formula in float64: products are
// added one after the other by fused multiply-adds, K roundings of half an ulp of a partial sum. That order is the same
// for every vector variant, number of rows and number of threads, and so are the bits.
struct MatMulParams {
  Shape a, b;
};

struct MatMulArgs {
  const float* a = nullptr;
  const float* b = nullptr;
  float* y = nullptr;
};

// Errors: bad_request for shapes that do not multiply, no_memory. `where` is the place for errors.
Result<void> matmul(const Context& ctx, const MatMulParams& params, const MatMulArgs& args, std::string_view where);

// Errors: bad_request for a scalar, inner extents that differ, leading extents that do not broadcast, a result that
// overflows or has more than kMaxRank dimensions.
Result<Shape> matmul_shape(const Shape& a, const Shape& b, std::string_view where);

// How often a product with these operands reads b from front to back.
int64_t matmul_passes_over_b(const Shape& a, const Shape& b);

// Symbol of the variant that matmul() uses under these features.
std::string_view matmul_variant(const cpu::Features& features);

}  // namespace quern::ops
