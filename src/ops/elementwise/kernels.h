// SPDX-License-Identifier: Apache-2.0
// Owns what a variant of the elementwise room is called with. No functions: files of several instruction sets include
// it.
#pragma once

#include <cstdint>

namespace quern::ops {

enum class ElementwiseOp : uint8_t { add, sub, mul, sigmoid, silu_mul };

// y[i] = a[i * a_step] op b[i * b_step] for i < n, steps 0 or 1 and not both 0 unless n <= 1. The element type is that
// of the variant. b is null for the sigmoid, whose a_step is 1; silu_mul takes steps of 1 only. y may be an operand of
// step 1. Pointers are aligned to their element only.
struct ElementwiseKernelArgs {
  const void* a;
  const void* b;
  void* y;
  int64_t n;
  int32_t a_step, b_step;
};

}  // namespace quern::ops
