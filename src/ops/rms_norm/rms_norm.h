// SPDX-License-Identifier: Apache-2.0
// Owns the normalisation engine: RMS norm of rows, alone or after a residual addition. The ONNX operators
// SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization are adapters on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/registry.h"
#include "ops/tensor.h"

namespace quern::ops {

// r[i,k] = x[i,k] + skip[i mod skip_rows, k] + bias[k]        added in this order, skip and bias optional
// y[i,k] = r[i,k] / sqrt(mean_k(r[i,k]^2) + epsilon) * gamma[k]
// residual[i,k] = r[i,k]                                      optional, bit-exact
//
// All float32. x has `rows` rows of n in the given layout; skip, y and residual are row-major without gaps.
// Aliasing: y and residual may each be x or skip (the same rows, x without gaps, skip_rows == rows); y is not residual.
// Class close, with the sum of squares in float32: |dy| <= (n / 16 + 8) * eps_f32 * |y| against the formula in float64
// on the rounded r (a lane adds n / 8 squares at most, the root halves the error, and the rest is the last roundings).
// Where the squares overflow float32 (|r| above 1e19 / sqrt(n)), y is 0; NaN stays in its row.
// A row's result depends neither on the other rows nor on the number of threads.
struct RmsNormParams {
  int64_t rows = 0;
  int64_t n = 0;      // >= 1
  float epsilon = 0;  // >= 0
  int64_t skip_rows = 0;
};

struct RmsNormArgs {
  const float* x = nullptr;
  RowLayout x_layout;
  const float* gamma = nullptr;  // [n]
  const float* skip = nullptr;   // [skip_rows, n], or null
  const float* bias = nullptr;   // [n], or null
  float* y = nullptr;            // [rows, n]
  float* residual = nullptr;     // [rows, n], or null
};

// Errors: bad_request for params outside of the contract. `where` is the place for errors.
Result<void> rms_norm(const Context& ctx, const RmsNormParams& params, const RmsNormArgs& args, std::string_view where);

// One operator for `add`, z = a + b of float32 as ONNX Add defines it, and `norm`, a SimplifiedLayerNormalization of z:
// inputs a, b and gamma, outputs the normalised rows and z (which may be absent), each with the bits that the two give
// one after the other. Takes both. Null, and both stay, where `norm` is another operator or normalises more than the
// last dimension.
std::unique_ptr<Operator> make_add_norm(std::unique_ptr<Operator>& add, std::unique_ptr<Operator>& norm);

// Symbol of the variant that rms_norm() uses under these features.
std::string_view rms_norm_variant(const cpu::Features& features);

}  // namespace quern::ops
