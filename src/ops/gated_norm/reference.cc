// SPDX-License-Identifier: Apache-2.0
// gated_norm straight from the formula. Never optimised.
#include <cmath>

#include "ops/element.h"
#include "ops/gated_norm/kernels.h"

namespace quern::ops {

void gated_norm_reference(DType type, const GatedNormKernelArgs& k) noexcept {
  with_element(type, [&](auto e) {
    double squares = 0;
    for (int64_t j = 0; j < k.n; j++) {
      const auto x = static_cast<double>(e.load(k.x, j));
      squares += x * x;
    }
    const float mean = static_cast<float>(squares / static_cast<double>(k.n));
    const float scale = 1 / std::sqrt(mean + k.epsilon);
    for (int64_t j = 0; j < k.n; j++) {
      const float normed = e.round(e.load(k.weight, j) * e.round(e.load(k.x, j) * scale));
      e.store(k.y, j, normed * activate(k.activation, e.load(k.gate, j)));
    }
  });
}

}  // namespace quern::ops
