// SPDX-License-Identifier: Apache-2.0
// Owns the gated delta rule of a Gated DeltaNet layer: normalisation of keys and queries, decay and learning rate from
// their logits, and the recurrent state, token by token or a chunk at a time. Does not own the projections (linear),
// the convolution in front (short_conv) nor the norm behind (gated_norm).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/rows.h"

namespace quern::ops {

// For token t and value head h with key head h / (Nv / Nk), everything float32 but what r rounds:
//   k = k / sqrt(sum k^2 + 1e-6)                 q = q / sqrt(sum q^2 + 1e-6) / sqrt(Dk)
//   beta = r(sigmoid(b))                         decay = -exp(a_log) * softplus(a + dt_bias)        log, <= 0
//   S = exp(decay) * S;  S = S + k (x) (beta * (v - k^T S));  o = r(q^T S)                   S [Dk][Dv] of head h
// The recurrent form computes this as it is written. The chunked form takes Q = 64 tokens at once; with G[i] the sum of
// the decays up to token i of the chunk, D[i,j] = exp(G[i] - G[j]) for j <= i, and S the state before the chunk:
//   N[i] = beta[i] * (v[i] - exp(G[i]) * k[i]^T S - sum_{j<i} (k[i] . k[j]) D[i,j] N[j])      ascending i
//   o[i] = r(exp(G[i]) * q[i]^T S + sum_{j<=i} (q[i] . k[j]) D[i,j] N[j])
//   S    = exp(G[last]) * S + sum_j exp(G[last] - G[j]) * k[j] (x) N[j]
// Both are the same in exact arithmetic and share the layout of S, so they may follow each other on one sequence.
// Source: torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule and Qwen4ExpTextGatedDeltaNet of
// transformers 5.17; there the recurrent form runs for single tokens behind a state, the chunked one otherwise.
//
// qkv, b, a, a_log, dt_bias and out are float32 or all bfloat16, the state is float32 always: r rounds to the type
// (nothing for float32). out overlaps nothing else. The state, [Nv][Dk][Dv] without gaps, zeros where a sequence
// begins, is read and written in place; copying it forks the sequence.
// Class close: chunked and recurrent agree within 1e-5 of the largest |o| for decays and vectors of models; the
// recurrent form gives the same bits for any split of the tokens into calls, the chunked one for splits at multiples of
// 64; neither depends on the number of threads.
enum class DeltaForm : uint8_t { recurrent, chunked };

struct GatedDeltaRuleParams {
  DType type = DType::f32;  // f32 or bf16
  DeltaForm form = DeltaForm::recurrent;
  int64_t tokens = 0;
  int32_t key_heads = 0;    // Nk
  int32_t value_heads = 0;  // Nv, a multiple of Nk
  int32_t key_size = 0;     // Dk
  int32_t value_size = 0;   // Dv
};

struct GatedDeltaRuleArgs {
  RowsIn qkv;                     // row t: queries [Nk][Dk], keys [Nk][Dk], values [Nv][Dv]
  RowsIn b;                       // [tokens][Nv]
  RowsIn a;                       // [tokens][Nv]
  const void* a_log = nullptr;    // [Nv]
  const void* dt_bias = nullptr;  // [Nv]
  float* state = nullptr;         // [Nv][Dk][Dv], in and out
  RowsOut out;                    // [tokens][Nv * Dv]
};

// Errors: unsupported for another type, bad_request for params outside of the contract, no_memory for scratch; before
// anything is written. `where` is the place for errors.
Result<void> gated_delta_rule(const Context& ctx, const GatedDeltaRuleParams& params, const GatedDeltaRuleArgs& args,
                              std::string_view where);

// Symbol of the variant that runs for this form under these features.
std::string_view gated_delta_rule_variant(DeltaForm form, const cpu::Features& features);

}  // namespace quern::ops
