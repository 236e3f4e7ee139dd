// SPDX-License-Identifier: Apache-2.0
// Owns the norm at the end of a Gated DeltaNet layer: plain weights, then a gate. Does not own the norms of qwen4_exp
// whose weights are stored around zero (centred_rms_norm).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/activation.h"
#include "ops/context.h"
#include "ops/tensor.h"

namespace quern::ops {

// For each row of n (a value head of a token):
//   s = 1 / sqrt(mean(x^2) + epsilon);  y[k] = r(r(w[k] * r(x[k] * s)) * f(z[k]))
// f is sigmoid or silu and stays float32; w is the same for all rows. Source: Qwen4ExpTextRMSNormGated of
// transformers 5.17 with eager kernels.
//
// x, z, w and y are float32 or all bfloat16. Arithmetic is float32, r rounds to the type (nothing for float32). y may
// be x in the same layout, otherwise it overlaps nothing else.
// Class close: the sum of squares may be added in any order, |dy| <= (n / 16 + 12) * eps_f32 * |y| before r; a row's
// bits depend neither on the other rows nor on the number of threads.
struct GatedNormParams {
  DType type = DType::f32;  // f32 or bf16
  int64_t rows = 0;
  int64_t n = 0;      // >= 1
  float epsilon = 0;  // >= 0
  Activation gate = Activation::sigmoid;
};

struct GatedNormArgs {
  const void* x = nullptr;
  RowLayout x_layout;
  const void* gate = nullptr;  // z
  RowLayout gate_layout;
  const void* weight = nullptr;  // [n]
  void* y = nullptr;
  RowLayout y_layout;
};

// Errors: unsupported for another type, bad_request for params outside of the contract. `where` is the place for
// errors.
Result<void> gated_norm(const Context& ctx, const GatedNormParams& params, const GatedNormArgs& args,
                        std::string_view where);

// What runs on every machine, for reports.
inline constexpr std::string_view kGatedNormVariant = "gated_norm_reference";

}  // namespace quern::ops
