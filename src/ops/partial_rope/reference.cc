// SPDX-License-Identifier: Apache-2.0
// partial_rope straight from the formula. Never optimised.
#include "ops/element.h"
#include "ops/partial_rope/kernels.h"

namespace quern::ops {

void partial_rope_reference(DType type, const PartialRopeKernelArgs& k) noexcept {
  with_element(type, [&](auto e) {
    const int32_t half = k.rotary / 2;
    for (int32_t i = 0; i < half; i++) {
      const float low = e.load(k.x, i), high = e.load(k.x, i + half);
      e.store(k.y, i, e.round(low * k.cos[i]) + e.round(-high * k.sin[i]));
      e.store(k.y, i + half, e.round(high * k.cos[i]) + e.round(low * k.sin[i]));
    }
    for (int32_t i = k.rotary; i < k.head_size; i++) e.store(k.y, i, e.load(k.x, i));
  });
}

}  // namespace quern::ops
