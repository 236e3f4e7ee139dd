// SPDX-License-Identifier: Apache-2.0
// rms_norm straight from the formula. Never optimised.
#include <cmath>

#include "ops/rms_norm/kernels.h"

namespace quern::ops {

void rms_norm_f32_reference(const RmsNormKernelArgs& k) noexcept {
  for (int64_t i = k.row_begin; i < k.row_end; i++) {
    const float* x = k.x + i / k.inner * k.outer_stride + i % k.inner * k.inner_stride;
    const float* skip = k.skip == nullptr ? nullptr : k.skip + i % k.skip_rows * k.n;
    float* y = k.y + i * k.n;
    float* residual = k.residual == nullptr ? nullptr : k.residual + i * k.n;
    double squares = 0;
    for (int64_t j = 0; j < k.n; j++) {
      float r = x[j];
      if (skip != nullptr) r += skip[j];
      if (k.bias != nullptr) r += k.bias[j];
      squares += static_cast<double>(r) * static_cast<double>(r);
      // y may be the storage of skip: it takes r before the next pass normalises it.
      if (residual != nullptr) residual[j] = r;
      if (residual == nullptr) y[j] = r;
    }
    const float mean = static_cast<float>(squares / static_cast<double>(k.n));
    const float root = std::sqrt(mean + k.epsilon);
    const float* r = residual != nullptr ? residual : y;
    for (int64_t j = 0; j < k.n; j++) y[j] = r[j] / root * k.gamma[j];
  }
}

}  // namespace quern::ops
