// SPDX-License-Identifier: Apache-2.0
// Owns log-probabilities from rows of logits: the softmax in double precision, and the most likely ids of a row.
// Does not own which ids may be chosen (sampler.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quern::engine {

// log sum exp(logits), kept in two parts so that small differences between large logits survive.
struct SoftmaxNorm {
  double largest = 0;  // logit
  double log_sum = 0;  // log sum exp(logits - largest)

  // log softmax at a logit of that row, in nats.
  double log_prob(float logit) const { return (static_cast<double>(logit) - largest) - log_sum; }
};

// Precondition: `logits` is not empty. NaN, +infinity or nothing above -infinity among them gives a norm that is not
// finite.
SoftmaxNorm softmax_norm(std::span<const float> logits);

// What the model itself thinks of one chosen token: before bias, penalties, temperature and limits, and over all
// columns of the logits.
struct TokenLogProbs {
  struct Entry {
    int32_t id = 0;
    double log_prob = 0;  // nats
  };
  Entry chosen;
  std::vector<Entry> top;  // most likely first, of equal ones the lowest id first
};

// Preconditions: id is an index of `logits`; count >= 0, cut to the row.
TokenLogProbs token_log_probs(std::span<const float> logits, int32_t id, int32_t count);

}  // namespace quern::engine
