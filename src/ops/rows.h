// SPDX-License-Identifier: Apache-2.0
// Owns how the rooms of a model that calls them directly are given matrices (rows at a stride) and how work on rows is
// cut across threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/context.h"

namespace quern::ops {

// Row r starts r * stride elements behind `data` and lies there without gaps. Elements may be unaligned.
struct RowsIn {
  const void* data = nullptr;
  int64_t stride = 0;
};
struct RowsOut {
  void* data = nullptr;
  int64_t stride = 0;
};

// Rows of together fewer elements than this cost less than waking a worker.
inline constexpr int64_t kInlineRowElements = 16 * 1024;

// Calls f(begin, end, worker) for ranges that cover [0, rows), on the pool where there is enough to do; a row stands
// for about `elements` elements that are read or written.
inline void for_rows(const Context& ctx, int64_t rows, int64_t elements, cpu::RangeFunction f) {
  if (rows <= 0) return;
  const int64_t chunk = std::max<int64_t>(1, kInlineRowElements / std::max<int64_t>(1, elements));
  if (rows <= chunk) {
    f(0, rows, 0);
  } else {
    ctx.pool->parallel_for(rows, chunk, f);
  }
}

}  // namespace quern::ops
