// SPDX-License-Identifier: Apache-2.0
// Owns what the kernel of partial_rope is called with: one head of the contract in partial_rope.h.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace quern::ops {

struct PartialRopeKernelArgs {
  const void* x;
  const float* cos;
  const float* sin;
  void* y;
  int32_t head_size, rotary;
};

void partial_rope_reference(DType type, const PartialRopeKernelArgs& k) noexcept;

}  // namespace quern::ops
