// SPDX-License-Identifier: Apache-2.0
// The functions of log_probs.h.
#include "engine/log_probs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quern::engine {

SoftmaxNorm softmax_norm(std::span<const float> logits) {
  SoftmaxNorm norm;
  norm.largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - norm.largest);
  norm.log_sum = std::log(sum);
  return norm;
}

TokenLogProbs token_log_probs(std::span<const float> logits, int32_t id, int32_t count) {
  const SoftmaxNorm norm = softmax_norm(logits);
  const auto entry = [&](int32_t i) { return TokenLogProbs::Entry{i, norm.log_prob(logits[static_cast<size_t>(i)])}; };
  TokenLogProbs result;
  result.chosen = entry(id);
  const auto kept = static_cast<ptrdiff_t>(std::min(static_cast<size_t>(count), logits.size()));
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (ptrdiff_t i = 0; i < kept; i++) result.top.push_back(entry(ids[static_cast<size_t>(i)]));
  return result;
}

}  // namespace quern::engine
