// SPDX-License-Identifier: Apache-2.0
// Owns the linear projections of models that keep their weights as the checkpoint has them: float32 or bfloat16, one
// row an output, read where the file is mapped. Does not own quantized weights (matmul_nbits), products with NumPy
// semantics (matmul), nor experts (moe_matmul).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/linear/kernels.h"
#include "ops/linear/layout.h"
#include "ops/rows.h"

namespace quern::ops {

// y[i, j] = r(sum_k x[i, k] * w[j, k])
//
// x and y are float32 or both bfloat16, w either. Elements widen exactly, products are accumulated in float32 by fused
// multiply-adds, r rounds once to the type of y (nothing for float32): the bfloat16 linear of PyTorch up to the order
// of the sum. y overlaps nothing else; w may be unaligned.
// Class close: |dy| <= (K / 16 + 6) * eps_f32 / 2 * sum_k |x[i,k] * w[j,k]| before r against the formula in float64:
// sixteen partial sums, partial p of the elements that layout.h names, then a tree over the sixteen. Vector variants,
// numbers of rows and numbers of threads share that order, and so the bits; the reference sums in float64.
struct LinearParams {
  DType type = DType::f32;         // of x and y: f32 or bf16
  DType weight_type = DType::f32;  // f32 or bf16
  int64_t m = 0;                   // rows, 0 for none
  int64_t n = 0;                   // outputs, >= 1
  int64_t k = 0;                   // depth, >= 1
};

struct LinearArgs {
  RowsIn x;                      // [m][k]
  const void* weight = nullptr;  // [n][k] without gaps
  RowsOut y;                     // [m][n]
};

// Errors: unsupported for another type, bad_request for extents outside of the contract, no_memory for scratch; before
// anything is written. Counts weight_bytes_read. `where` is the place for errors.
Result<void> linear(const Context& ctx, const LinearParams& params, const LinearArgs& args, std::string_view where);

// The product inside linear(), for rooms that cut their work in their own way (moe_matmul): what linear_tile() gives
// computes the sums of LinearKernelArgs with the bits of linear() before r. A row of x in the form it reads takes
// linear_row_floats(k) floats, 64-byte aligned; prepare_linear_row() makes one of k elements of `type` at any address.
using LinearTile = void(const LinearKernelArgs&) noexcept;
LinearTile* linear_tile(DType weight_type, const cpu::Features& features);
int64_t linear_row_floats(int64_t k);
void prepare_linear_row(DType type, DType weight_type, const void* x, int64_t k, float* row);

// Symbol of the variant that linear() uses for this type of weights under these features.
std::string_view linear_variant(DType weight_type, const cpu::Features& features);

}  // namespace quern::ops
