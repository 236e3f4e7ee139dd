// SPDX-License-Identifier: Apache-2.0
// centred_rms_norm straight from the formula. Never optimised.
#include <cmath>

#include "ops/centred_rms_norm/kernels.h"
#include "ops/element.h"

namespace quern::ops {
namespace {

template <class E>
void normalise(const CentredRmsNormKernelArgs& k) {
  for (int64_t begin = 0; begin < k.n; begin += k.group) {
    double squares = 0;
    for (int64_t j = begin; j < begin + k.group; j++) {
      const auto x = static_cast<double>(E::load(k.x, j));
      squares += x * x;
    }
    const float mean = static_cast<float>(squares / static_cast<double>(k.group));
    const float scale = 1 / std::sqrt(mean + k.epsilon);
    for (int64_t j = begin; j < begin + k.group; j++) {
      E::store(k.y, j, E::load(k.x, j) * scale * (1 + E::load(k.weight, j)));
    }
  }
}

}  // namespace

void centred_rms_norm_f32_reference(const CentredRmsNormKernelArgs& k) noexcept { normalise<FloatElement>(k); }
void centred_rms_norm_bf16_reference(const CentredRmsNormKernelArgs& k) noexcept { normalise<BrainElement>(k); }

}  // namespace quern::ops
