// SPDX-License-Identifier: Apache-2.0
// Owns the elementwise parts of the n-gram layer (PLE) of qwen4_exp: the gate on its values, and their way into the
// residual streams. Does not own the rows of the table (ngram_embed), its two projections (linear), the three norms
// (centred_rms_norm) nor the convolution (short_conv).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/rows.h"

namespace quern::ops {

// One token with C residual streams of H, stream-major; k and q are the normed keys and residual streams, v the values:
//   ple_gate, for each stream c:
//     d = r(sum_j r(k[c, j] * q[c, j]));  d = r(d / fl32(sqrt(H)))
//     s = r(sqrt(max(|d|, r(1e-6)))) * sign(d)                           0 for d = 0
//     g[c, j] = r(r(sigmoid(s)) * v[j])
//   ple_add:  x[c, j] = r(x[c, j] + r(g[c, j] + h[c, j]))               h the convolution of the normed g
// Source: Qwen4ExpTextPLELayer and Qwen4ExpTextDecoderLayer of transformers 5.17.
//
// All tensors of a call are float32 or all bfloat16; arithmetic is float32, r rounds to the type of the tensors
// (nothing for float32). Class close: the order of the sum over j; a row's bits depend neither on the other rows nor on
// the number of threads.
struct PleParams {
  DType type = DType::f32;  // f32 or bf16
  int64_t rows = 0;         // tokens
  int64_t hidden = 0;       // H, >= 1
  int32_t streams = 0;      // C, >= 1
};

struct PleGateArgs {
  RowsIn key_normed;    // k [rows][C * H]
  RowsIn query_normed;  // q [rows][C * H]
  RowsIn value;         // v [rows][H]
  RowsOut out;          // g [rows][C * H], overlaps nothing else
};
Result<void> ple_gate(const Context& ctx, const PleParams& params, const PleGateArgs& args, std::string_view where);

struct PleAddArgs {
  RowsOut x;     // [rows][C * H], added to in place
  RowsIn gated;  // g
  RowsIn conv;   // h
};
Result<void> ple_add(const Context& ctx, const PleParams& params, const PleAddArgs& args, std::string_view where);

// Errors of both: unsupported for another type, bad_request for extents outside of the above; before anything is
// written. `where` is the place for errors.

// What runs on every machine, for reports.
inline constexpr std::string_view kPleGateVariant = "ple_gate_reference";
inline constexpr std::string_view kPleAddVariant = "ple_add_reference";

}  // namespace quern::ops
