// SPDX-License-Identifier: Apache-2.0
// Owns how attention sees the keys and values of one sequence: where rows are read and where new ones are appended.
// Does not own the memory (a caller's tensors, or a cache object), nor which rows hold something.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace quern::ops {

// Rows of a block, where rows lie in blocks.
inline constexpr int64_t kKvBlockRows = 128;

// Row t of KV head g, for 0 <= t < capacity, starts offset(g, t) elements behind the base and holds the head's elements
// without gaps. Keys are stored rotated. Both halves have the same geometry; they never overlap.
//
// dtype says how a float x of a row is kept:
//   f32   as it is
//   f16   rounded to nearest, ties to even; from 65520 on it becomes infinity, as in IEEE 754 and ONNX Cast
//   bf16  rounded to nearest, ties to even
//   i8    as a code c in [-127, 127], meaning c * s with s the row's scale (elements of one head and one row share it):
//         s = amax / 127, c = round_half_even(x * (127 / amax)) with amax the largest |x|, in float operations
// NaN stays NaN (quiet, with sign and the leading bits of its payload). An i8 row that holds a NaN or an infinity gets
// codes of 0 and a scale of NaN, so that whoever sees it knows; one whose amax is below 2^-100 gets scale and codes 0.
struct KvView {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::f32;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  int64_t capacity = 0;
  // For i8 only, null otherwise: the scale of row t of head g is at g * scale_head_stride + t.
  float* key_scales = nullptr;
  float* value_scales = nullptr;
  int64_t scale_head_stride = 0;
  // 0: the rows of a head lie in one stretch. Else they lie in blocks of kKvBlockRows, and this is from one to the
  // next.
  int64_t block_stride = 0;

  int64_t offset(int64_t head, int64_t row) const {
    if (block_stride == 0) return head * head_stride + row * row_stride;
    return row / kKvBlockRows * block_stride + head * head_stride + row % kKvBlockRows * row_stride;
  }
};

}  // namespace quern::ops
