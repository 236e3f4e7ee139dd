// SPDX-License-Identifier: Apache-2.0
// Owns how attention sees the keys and values of one sequence: where rows are read and where new ones are appended.
// Does not own the memory (a caller's tensors, or a cache object), nor which rows hold something.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace quern::ops {

// Row t of KV head g starts g * head_stride + t * row_stride elements behind the base, for 0 <= t < capacity, and holds
// the head's elements without gaps. Keys are stored rotated. Both halves have the same geometry; they never overlap.
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
};

}  // namespace quern::ops
