// SPDX-License-Identifier: Apache-2.0
// Matrix product of float32 rows with packed 4- or 8-bit weights. q are the codes, z the zero points (8 or 128 where
// weights have none), scale the float32 scales; all sums run over k in order, all floats are float32.
//
// Activations s8 (accuracy level 4), per row m and block b of `block` consecutive k, missing elements being 0:
//     amax = max |x[m][k]|;  sa = amax / 127;  inv = 127 / amax (0 for amax = 0)     each one operation
//     a[k] = round_half_even(x[m][k] * inv)
//   y[m][n] = sum over b, in order, of  fma(float(sum_k a[k] * (q[n][k] - z[n][b])), scale[n][b] * sa, y)
//
// Activations f32 (levels 0 to 3), with zi = z, or the code nearest to a floating-point z, and s(k) of kernels.h, a
// power of two that changes no product:
//     p = fma over k in order of (x[m][k] * 2^-s, (q[n][k] - zi) * 2^s)
//     with floating-point zero points: p = fma(zi - z[n][b], sum_k x[m][k], p)
//   y[m][n] = sum over b, in order, of  fma(p, scale[n][b], y)
// Centring the codes first keeps p small where activations have a common sign or one of them is huge.
//
// Then y += bias[n], where there is one. x [M, k] and y [M, n] are contiguous; M = 0 is allowed. y must not overlap x.
// Special values, s8: a block with a NaN or an infinity makes sa a NaN, and so every y of that row. Where 127 / amax
// overflows (amax below 3.8e-37), the block counts as zero. f32: a NaN makes every y of its row a NaN, an infinity
// makes none of them finite; elements below 2^-110 lose up to 16 of their bits to the shift. Zero, negative and
// denormal scales are ordinary. Int8 rows cannot meet floating-point zero points. Numeric class: stable (in the default
// rounding mode, with denormals kept). The sums of s8 are exact integers (at most 127 * 255 * 256, which float32 has)
// and every float32 operation is written out in that order, so all variants, thread counts, groupings of rows and
// products give the same bits; a row's result does not depend on M. Tolerance against ONNX Runtime on the same codes:
// 1e-5 * max(1, max |y|), for its different order of sums. 2 bits and g_idx are refused by the ONNX adapter.
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

enum class NBitsActivations : uint8_t { s8, f32 };

// What rows are prepared for. Products whose weights need equal forms can read the same prepared rows.
struct NBitsRowsForm {
  NBitsActivations activations = NBitsActivations::s8;
  int64_t k = 0;
  int64_t block = 32;
  int64_t bits = 4;  // 4 for s8, which does not depend on it

  bool operator==(const NBitsRowsForm&) const = default;
};
NBitsRowsForm nbits_rows_form(const NBitsForm& weights, NBitsActivations activations);

// Rows in the layout of kernels.h. Borrowed: whoever made them owns the storage.
struct NBitsRows {
  const uint8_t* data = nullptr;
  int64_t rows = 0;
  NBitsRowsForm form;
};

// s8: rows * b * (block + 8), f32: rows * b * (4 block + 4), with b = ceil(k / block); nothing on overflow, negative
// values, or bits and blocks that there are not.
std::optional<size_t> nbits_rows_bytes(int64_t rows, const NBitsRowsForm& form);

struct PrepareNBitsRowsParams {
  int64_t rows = 0;
  NBitsRowsForm form;
  std::string_view where = "matmul_nbits";  // for errors
};
struct PrepareNBitsRowsArgs {
  std::span<const float> x;    // [rows, k]
  std::span<uint8_t> storage;  // at least nbits_rows_bytes(rows, form), 4-byte aligned
};

// The first half of the formula, once for all products that read the same rows. Errors: bad_request for sizes.
Result<NBitsRows> prepare_nbits_rows(const Context& ctx, const PrepareNBitsRowsParams& params,
                                     const PrepareNBitsRowsArgs& args);

// One weight matrix and its result.
struct NBitsProduct {
  const PackedWeights* weights = nullptr;
  std::span<const float> bias;  // [n], or empty for none
  std::span<float> y;           // [rows, n]
};

struct MatMulPreparedArgs {
  NBitsRows x;
  std::span<const NBitsProduct> products;
  std::string_view where = "matmul_nbits";
};

// The second half, for any number of matrices in one parallel section. Takes no memory. Adds the packed bytes to
// ctx.counters->weight_bytes_read, once for each pass over the weights (matmul_nbits_pass_rows rows share a pass).
// Errors: bad_request for sizes.
Result<void> matmul_prepared(const Context& ctx, const MatMulPreparedArgs& args);

struct MatMulNBitsParams {
  int64_t rows = 0;
  NBitsActivations activations = NBitsActivations::s8;
  std::string_view where = "matmul_nbits";
};
struct MatMulNBitsArgs {
  std::span<const float> x;                // [rows, k]
  std::span<const NBitsProduct> products;  // at least one, of equal rows forms
};

// Both halves; with few rows ctx.ahead is handed to the pool. Takes nbits_rows_bytes(min(rows, matmul_nbits_pass_rows),
// form) of ctx.scratch for the call, and nothing a thread. Errors: bad_request for sizes, no_memory.
Result<void> matmul_nbits(const Context& ctx, const MatMulNBitsParams& params, const MatMulNBitsArgs& args);

// Rows of one pass over the weights: 256, or down to 64 where 256 prepared rows would not stay in a core's cache. For
// forms that nbits_rows_bytes() has sizes of.
int64_t matmul_nbits_pass_rows(const NBitsRowsForm& form);

// The part of the weights that a product of few rows reads first on a thread that joins the calling one, of `threads`
// in all, as long as a second-level cache keeps it; empty where none joins. For Pool::read_ahead.
std::span<const std::byte> matmul_nbits_first_bytes(std::span<const NBitsProduct> products, int threads);

// Symbol of the product that `features` select.
std::string_view matmul_nbits_variant(const cpu::Features& features, NBitsActivations activations);

// All variants of all roles.
std::span<const VariantInfo> matmul_nbits_variants();

}  // namespace quern::ops
