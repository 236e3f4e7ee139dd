// SPDX-License-Identifier: Apache-2.0
// short_conv straight from the formula. Never optimised.
#include "ops/activation.h"
#include "ops/element.h"
#include "ops/short_conv/kernels.h"

namespace quern::ops {

void short_conv_reference(DType type, const ShortConvKernelArgs& k) noexcept {
  with_element(type, [&](auto e) {
    const int64_t past = (int64_t{k.taps} - 1) * k.dilation;
    // x of token t, which is a remembered one below 0.
    const auto input = [&](int64_t t, int64_t c) {
      return t < 0 ? e.load(k.state, (past + t) * k.channels + c) : e.load(k.x, t * k.x_stride + c);
    };
    for (int64_t t = 0; t < k.tokens; t++) {
      for (int64_t c = k.channel_begin; c < k.channel_end; c++) {
        float sum = 0;
        for (int32_t j = 0; j < k.taps; j++) {
          sum += e.load(k.weight, c * k.taps + j) * input(t - int64_t{k.dilation} * (k.taps - 1 - j), c);
        }
        e.store(k.y, t * k.y_stride + c, silu(e.round(sum)));
      }
    }
    // Ascending, so that a row is read before a younger one takes its place.
    for (int64_t i = 0; i < past; i++) {
      for (int64_t c = k.channel_begin; c < k.channel_end; c++) {
        e.store(k.state, i * k.channels + c, input(k.tokens - past + i, c));
      }
    }
  });
}

}  // namespace quern::ops
