// SPDX-License-Identifier: Apache-2.0
// Owns attention over chosen blocks of a cache with a gate on its output; dense attention is the same with all blocks
// chosen. Does not own the choice (ops/block_index), the norm and rotation of queries and keys, nor the cache's memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/block_selection.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/kv_view.h"
#include "ops/rows.h"

namespace quern::ops {

// For each new token s < S with position p = past + s, query head h and KV head g = h / (Nq / Nk):
//   keys[g][p] = k[s][g];  values[g][p] = v[s][g]                                   appended as they are
//   A = the tokens of the chosen blocks of s and its tail (ops/block_selection.h), ascending
//   x[t] = dot(q[s][h], keys[g][t]) * scale,  t in A
//   o = sum_t exp(x[t]) * values[g][t] / sum_t exp(x[t])
//   out[s][h] = r(r(o) * r(sigmoid(gate[s][h])))                                    r rounds to type
// Scores, softmax and sums are float32 in both forms. The reference's eager bfloat16 attention also rounds scores,
// scaled scores and weights: out differs from it by at most 4 units in the last place of the largest |value|.
//
// Class close: variants differ by rounding. For one variant the bits of a token depend on its query, on A and on what
// the cache holds there, in the order of A, and on nothing else: all blocks chosen by name give the bits of kAllBlocks,
// and the same tokens in one call, in pieces or one by one, on any number of threads, give the same bits. Tolerance of
// o for inputs of unit variance: 2e-5 absolute.
struct SparseAttentionParams {
  DType type = DType::f32;  // of all rows and of the cache: f32 or bf16
  int32_t query_heads = 0;  // Nq, a multiple of Nk
  int32_t kv_heads = 0;     // Nk
  int32_t head_size = 0;    // D, a multiple of 8, at most 512
  int64_t tokens = 0;       // S, at least 1
  int64_t past = 0;         // rows in the cache before this call
  int32_t ratio = 0;        // tokens of a block, at least 1
  float scale = 1;
};

// Head h of token s starts s * stride + h * head_stride elements behind `data`.
struct HeadRowsIn {
  const void* data = nullptr;
  int64_t stride = 0;
  int64_t head_stride = 0;
};

struct SparseAttentionArgs {
  HeadRowsIn q, gate;  // [S][Nq][D] each
  HeadRowsIn k, v;     // [S][Nk][D] each
  KvView cache;        // capacity >= past + S; the rows of a head in one stretch
  BlockSelection selection;
  RowsOut out;  // [S][Nq * D]; out and the appended rows overlap nothing else
};

// Errors: bad_request for params, a cache or a selection outside of the above (also where a token would have no key at
// all), unsupported for another type, no_memory for scratch; in each case before anything is written. Counts
// cache_bytes_appended. `where` is the place for errors.
Result<void> sparse_attention(const Context& ctx, const SparseAttentionParams& params, const SparseAttentionArgs& args,
                              std::string_view where);

// The lines of kernels.inc that are compiled in.
std::span<const VariantInfo> sparse_attention_variants();

// Symbol of the variant that runs for this type under these features.
std::string_view sparse_attention_variant(DType type, const cpu::Features& features);

}  // namespace quern::ops
