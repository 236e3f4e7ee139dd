// SPDX-License-Identifier: Apache-2.0
// Owns what a variant of linear is called with. No functions: files of several instruction sets include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// Depths that a step of the vector variants takes; rows of x are padded with zeros to a multiple.
inline constexpr int64_t kLinearStep = 32;

// y[i * ldy + j] = sum_k x[i * ldx + k] * w[j * k + k]  for i < m, j < n; all at least 1.
// x is float32 whatever the caller's type is, ldx a multiple of kLinearStep, rows 64-byte aligned and zero from k on,
// in the order that layout.h says. w is [n][k] of the type in the variant's name, unaligned. y is float32.
struct LinearKernelArgs {
  const float* x;
  int64_t ldx;
  const void* w;
  float* y;
  int64_t ldy;
  int64_t m, n, k;
};

}  // namespace quern::ops
