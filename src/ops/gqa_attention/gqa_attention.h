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
//   x[t] = scale * dot(rotate(q[b,s,h], p), keys[g][t]),  softcap > 0: x[t] = softcap * tanh(x[t] / softcap),
//   x[t] += bias[b,h,s,t],  lo <= t < n
//   out[b,s,h] = sum_t exp(x[t]) * values[g][t] / (sum_t exp(x[t]) + exp(sink[h]))
// without the addends that are absent. rotate turns the first `rotary` elements of a head by the angles of cos[p],
// sin[p]: see AttentionRotateArgs. A row whose x[t] are all -infinity gives 0.
//
// The cache keeps rows as one of the types of ops/kv_view.h; keys[g][t] and values[g][t] above are what is kept, those
// of this call too. They are converted exactly, a tile at a time, and an i8 row's scale meets the score (keys) or the
// weight (values): no element is ever scaled.
//
// The past rows [0, past) are read where they are; rows from `valid` on are never read as numbers and may hold
// anything. Class close: variants differ by rounding; for one instruction set the bits of a row of out depend on its
// query, the rows that it sees and the params alone, not on threads, batch or the number of tokens: a pass of S tokens
// and S passes of one token give the same bits (of a NaN, that it is one). Rows are appended with the same bits by
// every variant. Tolerance of out for inputs of unit variance: 2e-5 absolute (float sums of D and of n terms,
// exponential within 1.5e-7 relative), for every type of rows; 1e-2 where bf16 rows meet queries and weights that are
// rounded to bf16 (avx512bf16, see AttentionBlockArgs). No score matrix exists beyond a tile a worker (96 rows
// by 128 keys, or the rows of few tokens by as many).
//
// What keeping rows in a type costs: a value row is off by at most 2^-11 (f16), 2^-8 (bf16) of each element or half an
// i8 step, amax / 254, of the row; out, a mean of rows, by no more, and by |x[t]'s error| * spread of the values from
// the keys, where x[t] is off by at most scale * |q| * (the same bound on the key row as a vector).
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

// The addend of (b, h, s, t) is at b * batch_stride + h * head_stride + s * token_stride + t; a stride of 0 repeats.
struct AttentionBias {
  const float* data = nullptr;  // null for none
  int64_t batch_stride = 0, head_stride = 0, token_stride = 0;
  int64_t keys = 0;  // extent of t: at least every sequence's min(past + S, valid)
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
  const float* sink = nullptr;  // [Nq], null for none
  AttentionBias bias;
  float* out = nullptr;
};

// Errors: bad_request for params or sequences outside of the above (also for sequences whose caches differ in type),
// unsupported for a cache of another type, no_memory for scratch; in each case before anything is written. Counts
// cache_bytes_appended, scales included. `where` is the place for errors.
Result<void> attention(const Context& ctx, const AttentionParams& params, const AttentionArgs& args,
                       std::string_view where);

// Symbols of what attends over cache rows of `type`, one of those of ops/kv_view.h: of calls with up to
// kAttentionFewRows query rows for a KV head (a token), and of larger ones.
struct AttentionKernels {
  std::string_view few_rows, tile;
};
AttentionKernels attention_kernels(const cpu::Features& features, DType type);

// The lines of kernels.inc that are compiled in.
std::span<const VariantInfo> gqa_attention_variants();

}  // namespace quern::ops
