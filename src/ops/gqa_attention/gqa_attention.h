// SPDX-License-Identifier: Apache-2.0
// Owns causal attention over a cache of keys and values: rotation, append, online softmax, and how that is cut across
// threads. Does not own the cache's memory, nor any file format's idea of an attention node (gqa_attention_onnx.cc).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/kv_view.h"
#include "ops/tensor.h"

namespace quern::ops {

// For each sequence b and new token s < S, with position p = past + s, query head h and KV head g = h / (Nq / Nk):
//   keys[g][p] = rotate(k[b,s,g], p);  values[g][p] = v[b,s,g]            (all S rows, padding too)
//   n = min(p + 1, valid);  lo = window >= 1 ? max(0, n - window) : 0
//   x[t] = scale * dot(rotate(q[b,s,h], p), keys[g][t]),  softcap > 0: x[t] = softcap * tanh(x[t] / softcap),  lo <= t
//   < n out[b,s,h] = sum_t softmax(x)[t] * values[g][t]
// rotate turns the first `rotary` elements of a head by the angles of cos[p], sin[p]: see AttentionRotateArgs.
//
// The past rows [0, past) are read where they are; rows from `valid` on are never read as numbers and may hold
// anything. Class close: variants differ by rounding; for one variant the bits depend neither on the thread count nor
// on what else is in the batch. Keys are appended with the same bits by every variant, values bit for bit. Tolerance of
// out for inputs of unit variance: 2e-5 absolute (float sums of D and of n terms, exponential within 1.5e-7 relative).
// No score matrix exists beyond a tile a worker (96 rows by 64 keys, or the rows of few tokens by 128). A pass of S
// tokens and S passes of one token agree within the same tolerance.
struct AttentionParams {
  int32_t query_heads = 0;  // Nq, a multiple of Nk
  int32_t kv_heads = 0;     // Nk
  int32_t head_size = 0;    // D, a multiple of 8, at most kMaxHeadSize
  int64_t tokens = 0;       // S, new tokens of every sequence, at least 1
  float scale = 1;
  float softcap = 0;   // 0 for none
  int64_t window = 0;  // 0 for none
  int32_t rotary = 0;  // rotated elements of a head, 0 for none; a multiple of 16, at most D
  bool interleaved = false;
};

inline constexpr int32_t kMaxHeadSize = 256;

struct AttentionSequence {
  KvView cache;       // capacity >= past + S
  int64_t past = 0;   // rows before this call; the new ones follow
  int64_t valid = 0;  // 1 .. past + S: keys from here on belong to padding tokens
};

// Row b * S + s of q (Nq * D elements), k and v (Nk * D each) starts where its layout says. q, k, v and the tables may
// be unaligned; out is [B * S][Nq * D] without gaps. out and the appended rows overlap nothing else.
struct AttentionArgs {
  std::span<const AttentionSequence> sequences;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  RowLayout q_rows, k_rows, v_rows;
  const void* cos = nullptr;  // [table_rows][rotary / 2]
  const void* sin = nullptr;
  int64_t table_rows = 0;
  float* out = nullptr;
};

// Errors: bad_request for params or sequences outside of the above, unsupported for a cache of another type, no_memory
// for scratch; in each case before anything is written. Counts cache_bytes_appended. `where` is the place for errors.
Result<void> attention(const Context& ctx, const AttentionParams& params, const AttentionArgs& args,
                       std::string_view where);

// The lines of kernels.inc that are compiled in.
std::span<const VariantInfo> gqa_attention_variants();

}  // namespace quern::ops
