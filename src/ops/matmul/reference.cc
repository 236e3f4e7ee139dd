// SPDX-License-Identifier: Apache-2.0
// matmul straight from the formula. Never optimised.
#include <cstring>

#include "ops/matmul/kernels.h"

namespace quern::ops {

void matmul_f32_reference(const MatMulKernelArgs& k) noexcept {
  const auto* b = reinterpret_cast<const unsigned char*>(k.b);
  for (int64_t i = 0; i < k.m; i++) {
    for (int64_t j = 0; j < k.n; j++) {
      double sum = 0;
      for (int64_t l = 0; l < k.k; l++) {
        float w;
        std::memcpy(&w, b + (l * k.ldb + j) * static_cast<int64_t>(sizeof(float)), sizeof(float));
        sum += static_cast<double>(k.a[i * k.lda + l]) * static_cast<double>(w);
      }
      k.y[i * k.ldy + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace quern::ops
