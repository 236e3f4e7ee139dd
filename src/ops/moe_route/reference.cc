// SPDX-License-Identifier: Apache-2.0
// moe_route straight from the formula: all probabilities, sorted. Never optimised.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/element.h"
#include "ops/moe_route/kernels.h"

namespace quern::ops {

void moe_route_reference(const MoeRouteParams& p, const MoeRouteArgs& a) {
  with_element(p.type, [&](auto e) {
    for (int64_t t = 0; t < p.tokens; t++) {
      std::vector<float> probability;
      for (int32_t i = 0; i < p.experts; i++) probability.push_back(e.load(a.scores.data, t * a.scores.stride + i));
      const float top = *std::max_element(probability.begin(), probability.end());
      for (float& x : probability) x = std::exp(x - top);
      const float total = std::accumulate(probability.begin(), probability.end(), 0.0f);
      for (float& x : probability) x /= total;
      std::vector<int32_t> order(probability.size());
      std::iota(order.begin(), order.end(), 0);
      const auto at = [&](int32_t i) { return probability[static_cast<size_t>(i)]; };
      std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) { return at(i) > at(j); });
      order.resize(static_cast<size_t>(p.chosen));
      float sum = 0;
      for (const int32_t i : order) sum += at(i);
      for (size_t k = 0; k < order.size(); k++) {
        const int64_t slot = t * p.chosen + static_cast<int64_t>(k);
        a.experts[slot] = order[k];
        a.weights[slot] = e.round(p.normalize ? at(order[k]) / sum : at(order[k]));
      }
    }
  });
}

}  // namespace quern::ops
