// SPDX-License-Identifier: Apache-2.0
// Owns what the kernel variants of this room are given. Plain data only: files built for several instruction sets
// include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// scores[b] = sum_h max(0, q[h] . keys[b]) / root  for b < blocks; NaN products count as 0
// The order of a dot product depends on d only, heads are added in their order: a score does not depend on the other
// blocks of the call. No pointer needs alignment.
struct BlockScoreArgs {
  const float* q;    // [heads][d]
  const void* keys;  // [blocks][d], of the type in the kernel's name
  int64_t blocks;
  int32_t heads;
  int32_t d;  // a multiple of 8
  float root;
  float* scores;
};

using BlockScoreFunction = void(const BlockScoreArgs&) noexcept;

}  // namespace quern::ops
