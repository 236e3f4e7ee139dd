// SPDX-License-Identifier: Apache-2.0
// Owns what the kernel of gated_norm is called with: one row of the contract in gated_norm.h.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/activation.h"

namespace quern::ops {

struct GatedNormKernelArgs {
  const void* x;
  const void* gate;
  const void* weight;
  void* y;
  int64_t n;
  float epsilon;
  Activation activation;
};

void gated_norm_reference(DType type, const GatedNormKernelArgs& k) noexcept;

}  // namespace quern::ops
