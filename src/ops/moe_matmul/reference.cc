// SPDX-License-Identifier: Apache-2.0
// moe_matmul straight from the formula, one token after the other. Never optimised.
#include <cstdint>
#include <vector>

#include "ops/activation.h"
#include "ops/element.h"
#include "ops/moe_matmul/kernels.h"

namespace quern::ops {
namespace {

using Row = std::vector<float>;

template <class E>
float dot(const void* w, int64_t row, const Row& x) {
  const auto depth = static_cast<int64_t>(x.size());
  double sum = 0;
  for (int64_t k = 0; k < depth; k++) {
    sum += static_cast<double>(E::load(w, row * depth + k)) * static_cast<double>(x[static_cast<size_t>(k)]);
  }
  return E::round(static_cast<float>(sum));
}

template <class E>
Row mlp(const ExpertWeights& w, int64_t width, const Row& x) {
  Row a, y;
  for (int64_t j = 0; j < width; j++) {
    a.push_back(E::round(E::round(silu(dot<E>(w.gate, j, x))) * dot<E>(w.up, j, x)));
  }
  for (int64_t n = 0; n < static_cast<int64_t>(x.size()); n++) y.push_back(dot<E>(w.down, n, a));
  return y;
}

template <class E>
void mix(const MoeMatmulParams& p, const MoeMatmulArgs& a, int64_t t) {
  Row x, routed(static_cast<size_t>(p.hidden), 0.0f);
  for (int64_t i = 0; i < p.hidden; i++) x.push_back(E::load(a.x.data, t * a.x.stride + i));
  for (int64_t k = 0; k < p.chosen; k++) {
    const auto slot = static_cast<size_t>(t * p.chosen + k);
    const Row y = mlp<E>(a.experts[static_cast<size_t>(a.chosen_experts[slot])], p.width, x);
    for (size_t n = 0; n < y.size(); n++) routed[n] += E::round(y[n] * a.chosen_weights[slot]);
  }
  const float gate = E::round(sigmoid(dot<E>(a.shared_gate, 0, x)));
  const Row shared = mlp<E>(a.shared, p.shared_width, x);
  for (size_t n = 0; n < shared.size(); n++) {
    E::store(a.out.data, t * a.out.stride + static_cast<int64_t>(n), E::round(routed[n]) + E::round(gate * shared[n]));
  }
}

}  // namespace

void moe_matmul_reference(const MoeMatmulParams& p, const MoeMatmulArgs& a) {
  with_element(p.type, [&](auto element) {
    for (int64_t t = 0; t < p.tokens; t++) mix<decltype(element)>(p, a, t);
  });
}

}  // namespace quern::ops
