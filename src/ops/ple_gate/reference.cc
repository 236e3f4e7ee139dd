// SPDX-License-Identifier: Apache-2.0
// ple_gate straight from the formulas. Never optimised.
#include <algorithm>
#include <cmath>

#include "ops/activation.h"
#include "ops/element.h"
#include "ops/ple_gate/kernels.h"

namespace quern::ops {

void ple_gate_reference(DType type, const PleGateKernelArgs& k) noexcept {
  with_element(type, [&](auto e) {
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(k.hidden)));
    const float least = e.round(1e-6f);
    for (int32_t c = 0; c < k.streams; c++) {
      const int64_t begin = c * k.hidden;
      double sum = 0;
      for (int64_t j = begin; j < begin + k.hidden; j++) {
        sum += static_cast<double>(e.round(e.load(k.key_normed, j) * e.load(k.query_normed, j)));
      }
      const float d = e.round(e.round(static_cast<float>(sum)) / root);
      const float size = e.round(std::sqrt(std::max(std::fabs(d), least)));
      const float signed_size = d > 0 ? size : d < 0 ? -size : 0 * d;
      const float gate = e.round(sigmoid(signed_size));
      for (int64_t j = 0; j < k.hidden; j++) e.store(k.out, begin + j, gate * e.load(k.value, j));
    }
  });
}

void ple_add_reference(DType type, const PleAddKernelArgs& k) noexcept {
  with_element(type, [&](auto e) {
    for (int64_t j = 0; j < k.width; j++) {
      e.store(k.x, j, e.load(k.x, j) + e.round(e.load(k.gated, j) + e.load(k.conv, j)));
    }
  });
}

}  // namespace quern::ops
