// SPDX-License-Identifier: Apache-2.0
// Owns the causal depthwise convolutions of qwen4_exp with their activation and the rows they remember: the one in
// front of the delta rule (dilation 1) and the one of the n-gram embedding (dilated).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/rows.h"

namespace quern::ops {

// For each token t of a sequence and channel c, with past = (taps - 1) * dilation remembered rows:
//   h = r(sum_j w[c, j] * x[t - dilation * (taps - 1 - j), c])      j ascending from 0; the last tap meets token t
//   y[t, c] = r(silu(h))
// x before the first token of the call is `state`, [past][channels], oldest row first; zeros where a sequence begins.
// Afterwards state holds the last `past` rows of x (of state and x, where the call is shorter): it is read completely
// before it changes. Copying a state forks the sequence. Source: causal_conv1d_fn, causal_conv1d_update and
// Qwen4ExpTextPLELayer of transformers 5.17.
//
// x, w, state and y are float32 or all bfloat16. Products are added in float32, r rounds to the type (nothing for
// float32). y, x and state do not overlap. Class close: the order of the sum; one call and several calls over the same
// tokens, and any number of threads, give the same bits.
struct ShortConvParams {
  DType type = DType::f32;  // f32 or bf16
  int64_t tokens = 0;
  int64_t channels = 0;  // >= 1
  int32_t taps = 0;      // >= 1; with 1 nothing is remembered
  int32_t dilation = 0;  // >= 1
};

struct ShortConvArgs {
  RowsIn x;                      // [tokens][channels]
  const void* weight = nullptr;  // [channels][taps] without gaps
  void* state = nullptr;         // [past][channels] without gaps, in and out; may be null where past is 0
  RowsOut y;                     // [tokens][channels]
};

// Rows that a sequence remembers.
constexpr int64_t short_conv_past(int32_t taps, int32_t dilation) { return (int64_t{taps} - 1) * dilation; }

// Errors: unsupported for another type, bad_request for params outside of the contract. `where` is the place for
// errors.
Result<void> short_conv(const Context& ctx, const ShortConvParams& params, const ShortConvArgs& args,
                        std::string_view where);

// What runs on every machine, for reports.
inline constexpr std::string_view kShortConvVariant = "short_conv_reference";

}  // namespace quern::ops
