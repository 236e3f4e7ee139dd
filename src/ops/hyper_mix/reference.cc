// SPDX-License-Identifier: Apache-2.0
// hyper_mix straight from the formulas. Never optimised.
#include "ops/activation.h"
#include "ops/element.h"
#include "ops/hyper_mix/kernels.h"

namespace quern::ops {
namespace {

template <class E>
void gate(const HyperGateKernelArgs& k) {
  const auto streams = static_cast<float>(k.streams);
  for (int64_t j = 0; j < k.rank; j++) E::store(k.a, j, silu(E::round(E::load(k.a, j) / streams)));
}

template <class E>
void mix(const HyperMixKernelArgs& k) {
  for (int64_t j = 0; j < k.hidden; j++) {
    float sum = 0;
    for (int32_t c = 0; c < k.streams; c++) {
      const int64_t at = c * k.hidden + j;
      sum += E::round(E::round(sigmoid(E::load(k.gate_logits, at))) * E::load(k.normed, at));
    }
    E::store(k.out, j, sum / static_cast<float>(k.streams));
  }
}

template <class E>
void scatter(const HyperScatterKernelArgs& k) {
  const auto streams = static_cast<float>(k.streams);
  for (int32_t c = 0; c < k.streams; c++) {
    const float factor = E::round(2 * E::round(sigmoid(E::round(E::load(k.inject_logits, c) / streams))));
    for (int64_t j = 0; j < k.hidden; j++) {
      const int64_t at = c * k.hidden + j;
      E::store(k.x, at, E::load(k.x, at) + E::round(E::load(k.y, j) * factor));
    }
  }
}

}  // namespace

void hyper_gate_f32_reference(const HyperGateKernelArgs& k) noexcept { gate<FloatElement>(k); }
void hyper_gate_bf16_reference(const HyperGateKernelArgs& k) noexcept { gate<BrainElement>(k); }
void hyper_mix_f32_reference(const HyperMixKernelArgs& k) noexcept { mix<FloatElement>(k); }
void hyper_mix_bf16_reference(const HyperMixKernelArgs& k) noexcept { mix<BrainElement>(k); }
void hyper_scatter_f32_reference(const HyperScatterKernelArgs& k) noexcept { scatter<FloatElement>(k); }
void hyper_scatter_bf16_reference(const HyperScatterKernelArgs& k) noexcept { scatter<BrainElement>(k); }

}  // namespace quern::ops
