// SPDX-License-Identifier: Apache-2.0
// Owns the RMS norm of qwen4_exp: weights stored around zero, and the mean square taken over groups of a row. Does not
// own the norm with plain weights and a gate (gated_norm), nor ONNX's norms (rms_norm).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/tensor.h"

namespace quern::ops {

// For each group of `group` consecutive elements of a row of n:
//   s = 1 / sqrt(mean(x^2) + epsilon);  y[k] = r(x[k] * s * (1 + w[k]))
// w has the full width n. Source: Qwen4ExpTextRMSNorm of transformers 5.17.
//
// x, w and y are float32 or all bfloat16. Arithmetic is float32 in the order written; r rounds once to the type of y
// (nothing for float32). y may be x in the same layout, otherwise they do not overlap.
// Class close: the sum of squares may be added in any order, |dy| <= (group / 16 + 8) * eps_f32 * |y| before r; for one
// variant a row's bits depend neither on the other rows nor on the number of threads. Squares that overflow float32
// give 0; NaN stays in its group.
struct CentredRmsNormParams {
  DType type = DType::f32;  // f32 or bf16
  int64_t rows = 0;
  int64_t n = 0;      // >= 1
  int64_t group = 0;  // divides n; n for a plain norm
  float epsilon = 0;  // >= 0
};

struct CentredRmsNormArgs {
  const void* x = nullptr;  // rows as x_layout says, so that heads inside wider rows are rows too
  RowLayout x_layout;
  const void* weight = nullptr;  // [n]
  void* y = nullptr;
  RowLayout y_layout;
};

// Errors: unsupported for another type, bad_request for params outside of the contract. `where` is the place for
// errors.
Result<void> centred_rms_norm(const Context& ctx, const CentredRmsNormParams& params, const CentredRmsNormArgs& args,
                              std::string_view where);

// Symbol of the variant that runs for this type under these features.
std::string_view centred_rms_norm_variant(DType type, const cpu::Features& features);

}  // namespace quern::ops
