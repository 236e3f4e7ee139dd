// SPDX-License-Identifier: Apache-2.0
// Owns the experts of a mixture: the chosen experts of each token, the shared expert that all tokens go through, and
// how their results are combined. Does not own the choice (ops/moe_route), nor the memory of the weights.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/rows.h"

namespace quern::ops {

// r(x) rounds to type: not at all in the float32 form, to nearest with ties to even in the bfloat16 form. A product of
// a matrix and a row is a float32 sum over the row, rounded once.
//   mlp(W, x)[n] = r(sum_j W.down[n][j] * a[j]),  a[j] = r(r(silu(r(W.gate[j] . x))) * r(W.up[j] . x))
//   v[k]   = r(mlp(experts[e_k], x) * w_k)     e_k, w_k: the K choices of the token, in the order of the router
//   routed = r(v[0] + v[1] + .. + v[K - 1])    a float32 sum in that order
//   gate   = r(sigmoid(r(shared_gate . x)))
//   out    = r(routed + r(gate * mlp(shared, x)))
// An expert of no token is not read. The products are those of ops/linear, variants and class (close) too: a token's
// bits depend on its row and its choices, neither on the other tokens nor on the number of threads.
struct MoeMatmulParams {
  DType type = DType::f32;  // of rows and weights: f32 or bf16
  int64_t tokens = 0;
  int64_t hidden = 0;        // H: elements of x and out
  int64_t width = 0;         // I: rows of gate and up of a routed expert
  int64_t shared_width = 0;  // of the shared expert
  int32_t chosen = 0;        // K, at least 1
};

// The matrices of one expert, row-major without gaps; gate and up are [width][hidden], down is [hidden][width]. Where a
// file stacks gate above up, up = gate + width * hidden. They may lie at any address and are read where they are.
struct ExpertWeights {
  const void* gate = nullptr;
  const void* up = nullptr;
  const void* down = nullptr;
};

struct MoeMatmulArgs {
  RowsIn x;  // [tokens][hidden], aligned for their type
  std::span<const ExpertWeights> experts;
  ExpertWeights shared;
  const void* shared_gate = nullptr;        // [hidden]
  std::span<const int32_t> chosen_experts;  // [tokens][K], indices into experts
  std::span<const float> chosen_weights;    // [tokens][K], w above
  RowsOut out;                              // [tokens][hidden], overlaps nothing else
};

// Errors: bad_request for params or choices outside of the above, unsupported for another type, no_memory for scratch;
// in each case before anything is written. `where` is the place for errors. Counts weight_bytes_read.
Result<void> moe_matmul(const Context& ctx, const MoeMatmulParams& params, const MoeMatmulArgs& args,
                        std::string_view where);

// Symbol of the tile of ops/linear that multiplies for this type under these features.
std::string_view moe_matmul_variant(DType type, const cpu::Features& features);

}  // namespace quern::ops
