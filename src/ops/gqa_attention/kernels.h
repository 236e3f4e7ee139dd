// SPDX-License-Identifier: Apache-2.0
// Owns what the kernel variants of this room are given. Plain data only: files built for several instruction sets
// include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// The most keys of one block call, and the granularity to which the rows of `o` are padded.
inline constexpr int32_t kAttentionMaxKeys = 128;
inline constexpr int32_t kAttentionColumnPad = 32;

// One step of the online softmax: a tile of query rows against a block of keys. For each row r, over the keys t that it
// sees (lo[r] <= t < hi[r]), with x[t] = dot(q[r], k[t]), x[t] = softcap * tanh(x[t] / softcap) if softcap > 0:
//   m'   = max(m[r], max x[t])             (taken as 0 in the exponents while it is -infinity)
//   l[r] = l[r] * exp(m[r] - m') + sum exp(x[t] - m')
//   o[r] = o[r] * exp(m[r] - m') + sum exp(x[t] - m') * v[t];  m[r] = m'
// Rows with hi[r] <= lo[r] keep their state. Initial state: m = -infinity, l = 0, o = 0; the result is o / l.
// Keys and values that a row does not see never reach that row, whatever they hold (NaN too).
struct AttentionBlockArgs {
  const float* q;     // [rows][d], scaled (and rotated)
  const float* k;     // key t at k + t * kv_stride
  const float* v;     // value t at v + t * kv_stride
  int64_t kv_stride;  // elements
  int32_t rows;
  int32_t d;     // a multiple of 8
  int32_t keys;  // at most kAttentionMaxKeys
  const int32_t* lo;
  const int32_t* hi;  // at most `keys`
  float softcap;      // 0 for none
  float* m;
  float* l;
  float* o;          // [rows][o_stride]; the columns from d on are padding without meaning
  int64_t o_stride;  // d rounded up to kAttentionColumnPad
  float* scratch;    // 64-byte aligned, attention_block_scratch_floats(rows, d) floats
};

// y[h] = scale * rotate(x[h]) for `heads` heads of one token. The first `rotary` elements (even) rotate, the rest is
// only scaled; cos and sin have rotary / 2 elements each and may be unaligned. Half-split form pairs j with
// j + rotary / 2, the interleaved form 2j with 2j + 1: y_a = x_a cos - x_b sin, y_b = x_b cos + x_a sin, each product
// and each sum rounded to float. y must not overlap x.
struct AttentionRotateArgs {
  const float* x;
  float* y;
  int64_t x_stride;
  int64_t y_stride;
  const void* cos;  // may be null when rotary is 0
  const void* sin;
  int32_t heads;
  int32_t d;
  int32_t rotary;
  bool interleaved;
  float scale;
};

// Scratch of a block call in floats: scores of all rows, both halves of a block rearranged, one factor a row.
int64_t attention_block_scratch_floats(int64_t rows, int64_t d);

using AttentionBlockFunction = void(const AttentionBlockArgs&) noexcept;
using AttentionRotateFunction = void(const AttentionRotateArgs&) noexcept;

}  // namespace quern::ops
