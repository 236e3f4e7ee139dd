// SPDX-License-Identifier: Apache-2.0
// Owns what the kernel of short_conv is called with: a range of channels of the contract in short_conv.h.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace quern::ops {

struct ShortConvKernelArgs {
  const void* x;
  int64_t x_stride;
  const void* weight;
  void* state;
  void* y;
  int64_t y_stride;
  int64_t tokens, channels;
  int64_t channel_begin, channel_end;
  int32_t taps, dilation;
};

void short_conv_reference(DType type, const ShortConvKernelArgs& k) noexcept;

}  // namespace quern::ops
