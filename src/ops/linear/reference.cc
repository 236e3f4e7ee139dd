// SPDX-License-Identifier: Apache-2.0
// linear straight from the formula. Never optimised.
#include "ops/element.h"
#include "ops/linear/kernels.h"
#include "ops/linear/layout.h"

namespace quern::ops {
namespace {

template <class Weight>
void multiply(const LinearKernelArgs& k, DType weight_type) {
  for (int64_t i = 0; i < k.m; i++) {
    for (int64_t j = 0; j < k.n; j++) {
      double sum = 0;
      for (int64_t d = 0; d < k.k; d++) {
        const float x = k.x[i * k.ldx + linear_place(weight_type, d)];
        sum += static_cast<double>(x) * static_cast<double>(Weight::load(k.w, j * k.k + d));
      }
      k.y[i * k.ldy + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void linear_f32_reference(const LinearKernelArgs& k) noexcept { multiply<FloatElement>(k, DType::f32); }
void linear_bf16_reference(const LinearKernelArgs& k) noexcept { multiply<BrainElement>(k, DType::bf16); }

}  // namespace quern::ops
