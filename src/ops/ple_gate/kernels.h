// SPDX-License-Identifier: Apache-2.0
// Owns what the kernels of ple_gate are called with: one row each of the contract in ple_gate.h.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace quern::ops {

struct PleGateKernelArgs {
  const void* key_normed;
  const void* query_normed;
  const void* value;
  void* out;
  int64_t hidden;
  int32_t streams;
};

struct PleAddKernelArgs {
  void* x;
  const void* gated;
  const void* conv;
  int64_t width;
};

void ple_gate_reference(DType type, const PleGateKernelArgs& k) noexcept;
void ple_add_reference(DType type, const PleAddKernelArgs& k) noexcept;

}  // namespace quern::ops
