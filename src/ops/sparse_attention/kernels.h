// SPDX-License-Identifier: Apache-2.0
// Owns what the kernel variants of this room are given. Plain data only: files built for several instruction sets
// include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// The most keys of one call.
inline constexpr int32_t kSparseTileKeys = 64;
// Floats of scratch a row: its scores, and what its earlier sums are multiplied with.
inline constexpr int32_t kSparseRowScratch = kSparseTileKeys + 1;

// One step of the online softmax: the query heads of one KV head against some of its keys. For each row r, over the
// keys t < keys, key t being row index[t] of the cache:
//   x[t] = dot(q[r], k[index[t]]) * scale;  m' = max(m[r], max x[t])
//   l[r] = l[r] * exp(m[r] - m') + sum exp(x[t] - m')
//   o[r] = o[r] * exp(m[r] - m') + sum exp(x[t] - m') * v[index[t]];  m[r] = m'
// Initial state: m = -infinity, l = 0, o = 0. A row's bits depend on its own numbers only, not on `rows`. NaN scores
// make their row NaN. Keys and values may be unaligned; q, o and scratch are 64-byte aligned.
struct SparseTileArgs {
  const float* q;  // [rows][d]
  const void* k;   // row i at element i * kv_stride; the type is in the kernel's name
  const void* v;
  int64_t kv_stride;
  const int64_t* index;
  int32_t rows;
  int32_t d;     // a multiple of 8
  int32_t keys;  // 1 to kSparseTileKeys
  float scale;
  float* m;
  float* l;
  float* o;        // [rows][d]
  float* scratch;  // rows * kSparseRowScratch floats
};

using SparseTileFunction = void(const SparseTileArgs&) noexcept;

}  // namespace quern::ops
