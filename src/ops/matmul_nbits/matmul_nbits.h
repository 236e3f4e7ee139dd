// SPDX-License-Identifier: Apache-2.0
// Matrix product of float32 rows with packed 4-bit weights, through int8 activations (accuracy level 4).
//
//   per row m and block b of 32 consecutive k, missing elements being 0:
//     amax = max |x[m][k]|;  sa = amax / 127;  inv = 127 / amax (0 for amax = 0)     each one float32 operation
//     a[k] = round_half_even(x[m][k] * inv)
//   y[m][n] = sum over b, in order, of  fma(float(sum_k a[k] * (q[n][k] - z[n][b])), scale[n][b] * sa, y)
//
// q are the codes 0..15, z the zero points (8 where weights have none). x [M, k] and y [M, n] are contiguous; M = 0 is
// allowed. y must not overlap x.
// Special values: a block with a NaN or an infinity makes sa a NaN, and so every y of that row. Where 127 / amax
// overflows (amax below 3.8e-37), the block counts as zero. Zero, negative and denormal scales are ordinary.
// Numeric class: stable. The inner sums are exact integers and every float32 operation above is written out in that
// order, so all variants, thread counts and groupings of rows give the same bits; a row's result does not depend on M.
// Tolerance against ONNX Runtime on the same codes: 1e-5 * max(1, max |y|), for its different order of the block sum.
// Bias, g_idx, block sizes 16..256, 2 and 8 bits are refused by the ONNX adapter; kernels.h says where they would fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/matmul_nbits/pack.h"

namespace quern::ops {

// Rows after quantization, in the layout of kernels.h. Borrowed: whoever made them owns the storage.
struct QuantizedRows {
  const uint8_t* data = nullptr;
  int64_t rows = 0;
  int64_t k = 0;
};

// rows * ceil(k/32) * 40; nothing on overflow or negative values.
std::optional<size_t> quantized_rows_bytes(int64_t rows, int64_t k);

struct QuantizeRowsParams {
  int64_t rows = 0, k = 0;
  std::string_view where = "matmul_nbits";  // for errors
};
struct QuantizeRowsArgs {
  std::span<const float> x;    // [rows, k]
  std::span<uint8_t> storage;  // at least quantized_rows_bytes(rows, k), 4-byte aligned
};

// The first half of the formula, once for all products that read the same rows. Errors: bad_request for sizes.
Result<QuantizedRows> quantize_rows(const Context& ctx, const QuantizeRowsParams& params, const QuantizeRowsArgs& args);

struct MatMulPrequantizedArgs {
  QuantizedRows x;
  const PackedWeights* weights = nullptr;
  std::span<float> y;  // [rows, n]
  std::string_view where = "matmul_nbits";
};

// The second half. Takes no memory. Adds the packed bytes to ctx.counters->weight_bytes_read, once for each pass over
// the weights (matmul_nbits_pass_rows(k) rows share a pass). Errors: bad_request for sizes.
Result<void> matmul_prequantized(const Context& ctx, const MatMulPrequantizedArgs& args);

struct MatMulNBitsParams {
  int64_t rows = 0;
  std::string_view where = "matmul_nbits";
};
struct MatMulNBitsArgs {
  std::span<const float> x;  // [rows, k]
  const PackedWeights* weights = nullptr;
  std::span<float> y;  // [rows, n]
};

// Both halves. Takes quantized_rows_bytes(min(rows, matmul_nbits_pass_rows(k)), k) of ctx.scratch for the call, and
// nothing a thread. Errors: bad_request for sizes, no_memory.
Result<void> matmul_nbits(const Context& ctx, const MatMulNBitsParams& params, const MatMulNBitsArgs& args);

// Rows of one pass over the weights: 128, or down to 64 where 128 quantized rows would not stay in a core's cache.
int64_t matmul_nbits_pass_rows(int64_t k);

// Symbol of the product that `features` select.
std::string_view matmul_nbits_variant(const cpu::Features& features);

// All variants, quantization and product.
std::span<const VariantInfo> matmul_nbits_variants();

}  // namespace quern::ops
