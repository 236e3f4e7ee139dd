// SPDX-License-Identifier: Apache-2.0
// Owns the order of the depths of a row of x inside the kernels of linear, which is also the order of summation. For
// portable code and tests.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/linear/kernels.h"

namespace quern::ops {

// Where depth k of a row of x lies. For float32 weights as it is. For bfloat16 weights a step of 32 depths has its even
// ones first: in a register of 32 bfloat16 those are the lower halves of sixteen floats, the odd ones the upper halves.
// Partial sum p (0 to 15) adds the depths at places p, p + 16, p + 32 ... in this order.
inline int64_t linear_place(DType weight_type, int64_t k) {
  if (weight_type != DType::bf16) return k;
  const int64_t step = k / kLinearStep * kLinearStep, inside = k % kLinearStep;
  return step + inside / 2 + inside % 2 * (kLinearStep / 2);
}

}  // namespace quern::ops
