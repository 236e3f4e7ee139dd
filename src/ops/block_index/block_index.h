// SPDX-License-Identifier: Apache-2.0
// Owns which blocks of past tokens a query attends to: the keys that stand for blocks, their scores, the choice. Does
// not own the projection that makes index queries and keys, the memory of a sequence's block keys, nor attention over
// what is chosen (ops/sparse_attention).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/block_selection.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/rows.h"

namespace quern::ops {

// Row s of z is the projection of the token at position p = past + s: H query heads of D elements, then one key. With c
// = ratio, r(x) rounding to type, norm of ops/centred_rms_norm and rotation of ops/partial_rope (both rounding):
//   block b of c tokens: key[b] = rotate(norm(r(sum of its c keys / c); k_weight), position c * b)
//   query[s][h] = rotate(norm(z[s][h]; q_weight), position p)
//   n = p + 1;  complete blocks: b < n / c (integer division)
//   score[b] = sum_h max(0, query[s][h] . key[b]) / sqrt(D)      float32 in both forms; NaN counts as 0
//   chosen(s) = all complete blocks if there are at most `budget`, without scoring them; else the `budget` ones of
//   largest score, of equal ones the lower b first; ascending in `selection`
// A block that is not complete for a query is no candidate of it; its tokens are the query's tail.
//
// State of a sequence: the keys of its complete blocks and the raw keys of the up to c - 1 tokens behind them. Reading
// past blocks never changes them, so a copy of the state at n tokens is the first n / c block keys and the open keys.
//
// Class close: variants differ by the order of the dot products. For one variant the choice depends neither on how the
// tokens are cut into calls nor on the number of threads. Dot products: D / 8 * 2^-24 * sum |query| |key|.
struct BlockIndexParams {
  DType type = DType::f32;  // of z, weights and keys: f32 or bf16
  int32_t heads = 0;        // H, query heads
  int32_t head_size = 0;    // D, a multiple of 8
  int32_t ratio = 0;        // c, at least 1
  int32_t budget = 0;       // blocks, at least 1
  int64_t tokens = 0;       // S, at least 1
  int64_t past = 0;
  float epsilon = 0;
};

struct BlockIndexState {
  void* keys = nullptr;  // [capacity][D]: row b is key[b]
  int64_t capacity = 0;  // at least (past + S) / c
  void* open = nullptr;  // [c - 1][D]: raw keys of positions n / c * c and so on
};

struct BlockIndexArgs {
  RowsIn z;                            // [S][(H + 1) * D]
  const void* q_weight = nullptr;      // [D]
  const void* k_weight = nullptr;      // [D]
  std::span<const float> frequencies;  // of the rotation, at most D / 2: ops/partial_rope
  BlockIndexState state;
  BlockSelection selection;  // written; stride at least min(budget, (past + S) / c)
};

// Errors: bad_request for params, a state or a selection outside of the above, unsupported for another type, no_memory
// for scratch; in each case before anything is written. `where` is the place for errors.
Result<void> block_index(const Context& ctx, const BlockIndexParams& params, const BlockIndexArgs& args,
                         std::string_view where);

// The lines of kernels.inc that are compiled in.
std::span<const VariantInfo> block_index_variants();

// Symbol of the variant that runs for this type under these features.
std::string_view block_index_variant(DType type, const cpu::Features& features);

}  // namespace quern::ops
