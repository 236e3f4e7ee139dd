// SPDX-License-Identifier: Apache-2.0
// Owns how attention sees the keys and values of one sequence: where rows are read and where new ones are appended.
// Does not own the memory (a caller's tensors, or a cache object), nor which rows hold something.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace quern::ops {

// Row t of KV head g starts g * head_stride + t * row_stride elements behind the base, for 0 <= t < capacity, and holds
// the head's elements without gaps. Keys are stored rotated. Both halves have the same geometry; they never overlap.
struct KvView {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::f32;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  int64_t capacity = 0;
};

}  // namespace quern::ops
