// SPDX-License-Identifier: Apache-2.0
// Owns what a variant of centred_rms_norm is called with. No functions: files of several instruction sets include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// One row of the contract in centred_rms_norm.h: n elements in groups of `group`. No pointer needs alignment.
struct CentredRmsNormKernelArgs {
  const void* x;
  const void* weight;
  void* y;
  int64_t n, group;
  float epsilon;
};

}  // namespace quern::ops
