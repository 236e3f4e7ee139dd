// SPDX-License-Identifier: Apache-2.0
// Owns what a variant of matmul is called with. No functions: files of several instruction sets include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// Floats of scratch that a variant may use to lay out a block of b.
inline constexpr int64_t kMatMulPanelFloats = 256 * 32;

// Up to this many rows a variant streams b from memory as it lies, in the widest blocks; above, it lays b out first.
inline constexpr int64_t kMatMulStreamedRows = 4;

// y[i * ldy + j] = sum_k a[i * lda + k] * b[k * ldb + j]  for i < m, j < n; m, n and k are at least 1.
// b needs no alignment, a and y that of a float. panel has kMatMulPanelFloats, 64-byte aligned, contents arbitrary.
struct MatMulKernelArgs {
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* y;
  int64_t ldy;
  int64_t m, n, k;
  float* panel;
};

}  // namespace quern::ops
