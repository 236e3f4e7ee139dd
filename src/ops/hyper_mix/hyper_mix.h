// SPDX-License-Identifier: Apache-2.0
// Owns the elementwise parts of the hyper-connection around a sub-layer of qwen4_exp: how C residual streams become
// the input of the sub-layer, and how its output goes back to them. Does not own the norm of the streams
// (centred_rms_norm) nor the three projections between the parts (linear).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/rows.h"

namespace quern::ops {

// One token, residual x of C streams of H, stream-major (x[c * H + j]), and n its grouped norm:
//   a = linear(n, down)    [rank]   hyper_gate:     a = r(silu(r(a / C)))
//   m = linear(a, up)      [C * H]  hyper_mix:      u[j] = r(sum_c r(r(sigmoid(m[c, j])) * n[c, j]) / C)
//   z = linear(n, inject)  [C]      hyper_scatter:  g[c] = r(2 * r(sigmoid(r(z[c] / C))))
//   y = sub-layer(u)       [H]                      x[c, j] = r(x[c, j] + r(y[j] * g[c]))
// Source: Qwen4ExpTextGatedResidual and Qwen4ExpTextDecoderLayer of transformers 5.17.
//
// All tensors of a call are float32 or all bfloat16; arithmetic is float32, r rounds to the type of the tensors
// (nothing for float32). The sum over c ascends. Class close: only exp differs between variants (at most 2 ulp);
// a row's bits depend neither on the other rows nor on the number of threads.
struct HyperMixParams {
  DType type = DType::f32;  // f32 or bf16
  int64_t rows = 0;         // tokens
  int64_t hidden = 0;       // H, >= 1
  int32_t streams = 0;      // C, >= 2
};

struct HyperGateParams {
  DType type = DType::f32;  // f32 or bf16
  int64_t rows = 0;         // tokens
  int64_t rank = 0;         // >= 1
  int32_t streams = 0;      // C, >= 2
};
// a [rows][rank], in place.
Result<void> hyper_gate(const Context& ctx, const HyperGateParams& params, RowsOut a, std::string_view where);

struct HyperMixArgs {
  RowsIn normed;       // n [rows][C * H]
  RowsIn gate_logits;  // m [rows][C * H]
  RowsOut out;         // u [rows][H], overlaps neither
};
Result<void> hyper_mix(const Context& ctx, const HyperMixParams& params, const HyperMixArgs& args,
                       std::string_view where);

struct HyperScatterArgs {
  RowsOut x;             // [rows][C * H], added to in place
  RowsIn y;              // [rows][H]
  RowsIn inject_logits;  // z [rows][C]
};
Result<void> hyper_scatter(const Context& ctx, const HyperMixParams& params, const HyperScatterArgs& args,
                           std::string_view where);

// Errors of all three: unsupported for another type, bad_request for extents outside of the above; before anything is
// written. `where` is the place for errors.

// Symbols of the variants that run for this type under these features.
std::string_view hyper_gate_variant(DType type, const cpu::Features& features);
std::string_view hyper_mix_variant(DType type, const cpu::Features& features);
std::string_view hyper_scatter_variant(DType type, const cpu::Features& features);

}  // namespace quern::ops
