// SPDX-License-Identifier: Apache-2.0
// Owns what the kernel variants of this room are given. Plain data only: files built for several instruction sets
// include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// The most keys of one block call, and the granularity to which the rows of `o` are padded.
inline constexpr int32_t kAttentionMaxKeys = 128;
inline constexpr int32_t kAttentionColumnPad = 32;
// The most rows that kernels of the kind `rows` take.
inline constexpr int32_t kAttentionFewRows = 8;

// Element types of 16 bits, kept apart so that loads can be chosen by type.
struct Half {
  uint16_t bits;  // IEEE binary16
};
struct Brain {
  uint16_t bits;  // bfloat16: the upper half of a float
};

// One step of the online softmax: a tile of query rows against a block of keys. For each row r, over the keys t that it
// sees (lo[r] <= t < hi[r]):
//   x[t] = dot(q[r], k[t]) * k_scale[t];  x[t] = softcap * tanh(x[t] / softcap) if softcap > 0;  x[t] += bias[r][t]
//   m'   = max(m[r], max x[t])             (taken as 0 in the exponents while it is -infinity)
//   l[r] = l[r] * exp(m[r] - m') + sum exp(x[t] - m')
//   o[r] = o[r] * exp(m[r] - m') + sum (exp(x[t] - m') * v_scale[t]) * v[t];  m[r] = m'
// without the factors where the element type has no scales. Rows with hi[r] <= lo[r] keep their state. Initial state:
// m = -infinity, l = 0, o = 0; the result is o / l. Keys and values that a row does not see never reach that row,
// whatever they hold (NaN too). Elements are converted exactly, a tile at a time; scales never meet single elements.
// Brain variants of avx512bf16 round q and the weights of v[t] (not those in l) to bfloat16, to the nearest, ties to
// even, subnormals to 0, and add the exact products of two elements, or of two keys from an even one on, at a time.
struct AttentionBlockArgs {
  const float* q;  // [rows][d], scaled (and rotated)
  const void* k;   // key t at element t * kv_stride; float, Half, Brain or int8_t, as the kernel's name says
  const void* v;
  const float* k_scale;  // [keys] for int8_t, unread otherwise
  const float* v_scale;
  int64_t kv_stride;  // elements, an even number
  int64_t kv_next;    // elements from k to the keys behind kAttentionMaxKeys, which will be read next; the same of v
  int32_t rows;
  int32_t d;     // a multiple of 8
  int32_t keys;  // at most kAttentionMaxKeys
  const int32_t* lo;
  const int32_t* hi;         // at most `keys`
  float softcap;             // 0 for none
  const float* const* bias;  // null for none; of row r, elements 0 to hi[r] - 1 are readable
  float* m;
  float* l;
  float* o;          // [rows][o_stride]; the columns from d on are padding without meaning
  int64_t o_stride;  // d rounded up to kAttentionColumnPad
  float* scratch;    // 64-byte aligned, attention_block_scratch_floats(rows, d) floats
};

// Joins two states over different keys: m' = max(m, part_m), l = l * exp(m - m') + part_l * exp(part_m - m'), o alike
// with whole rows of o_stride floats, m = m'; m' is taken as 0 in the exponents while it is -infinity. A state that has
// seen no key changes no number.
struct AttentionMergeArgs {
  int32_t rows;
  int64_t o_stride;
  float* m;
  float* l;
  float* o;
  const float* part_m;
  const float* part_l;
  const float* part_o;
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

// Converts `heads` rows of d floats to rows of a cache, by the rules of ops/kv_view.h. Every variant gives the same
// bits.
struct AttentionStoreArgs {
  const float* x;  // may be unaligned
  void* y;
  float* scale;  // of the first row; for int8_t only
  int64_t x_stride;
  int64_t y_stride;
  int64_t scale_stride;
  int32_t heads;
  int32_t d;  // a multiple of 8
};
// The least amax of an int8_t row that is not taken as zero: below it 127 / amax comes near the end of float's range.
inline constexpr float kAttentionLeastAmax = 0x1p-100f;

// Scratch of a block call in floats: scores of all rows, both halves of a block rearranged.
int64_t attention_block_scratch_floats(int64_t rows, int64_t d);

using AttentionBlockFunction = void(const AttentionBlockArgs&) noexcept;
using AttentionMergeFunction = void(const AttentionMergeArgs&) noexcept;
using AttentionRotateFunction = void(const AttentionRotateArgs&) noexcept;
using AttentionStoreFunction = void(const AttentionStoreArgs&) noexcept;

}  // namespace quern::ops
