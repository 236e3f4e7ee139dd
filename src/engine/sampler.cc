// SPDX-License-Identifier: Apache-2.0
// Candidates are ordered lazily through a heap: a vocabulary has far more ids than a draw ever looks at.
#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace quern::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// SplitMix64 (Steele, Lea, Flood 2014): spreads seeds that differ in few bits over all four words.
uint64_t split_mix(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The lowest id among those with the largest logit.
Result<int32_t> best_of(std::span<const float> logits) {
  float best = -kInfinity;
  int32_t id = -1;
  for (size_t i = 0; i < logits.size(); i++) {
    // False for a NaN, too, so that the scan has one comparison per id.
    if (logits[i] <= best) continue;
    if (!(logits[i] < kInfinity)) {
      return bad_model("logits", fmt::format("of token id {} are {}, expected a finite number", i, logits[i]));
    }
    best = logits[i];
    id = static_cast<int32_t>(i);
  }
  if (id < 0) return bad_model("logits", fmt::format("of all {} token ids are -infinity", logits.size()));
  return id;
}

}  // namespace

Random::Random(uint64_t seed) {
  for (uint64_t& word : state_) word = split_mix(seed);
}

// xoshiro256** 1.0 (Blackman, Vigna 2018).
uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

Result<void> check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !(options.temperature < kInfinity)) {
    return bad_request("temperature", fmt::format("is {}, allowed are finite numbers from 0", options.temperature));
  }
  if (options.top_k < 0) return bad_request("top_k", fmt::format("is {}, allowed are numbers from 0", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return bad_request("top_p", fmt::format("is {}, allowed are numbers above 0 and up to 1", options.top_p));
  }
  return {};
}

float Sampler::kth_largest(std::span<const float> logits, size_t k) {
  heap_.assign(logits.begin(), logits.begin() + static_cast<ptrdiff_t>(k));
  const auto smallest_first = std::greater<float>();
  std::make_heap(heap_.begin(), heap_.end(), smallest_first);
  for (size_t i = k; i < logits.size(); i++) {
    if (logits[i] <= heap_.front()) continue;
    std::pop_heap(heap_.begin(), heap_.end(), smallest_first);
    heap_.back() = logits[i];
    std::push_heap(heap_.begin(), heap_.end(), smallest_first);
  }
  return heap_.front();
}

Result<int32_t> Sampler::sample(std::span<const float> logits) {
  QUERN_TRY(const int32_t best, best_of(logits));
  if (options_.greedy || options_.temperature == 0) return best;
  const bool limited = options_.top_k > 0 && static_cast<size_t>(options_.top_k) < logits.size();
  const float least = limited ? kth_largest(logits, static_cast<size_t>(options_.top_k)) : -kInfinity;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); i++) {
    if (logits[i] >= least && logits[i] > -kInfinity) candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  return draw(logits[static_cast<size_t>(best)]);
}

int32_t Sampler::draw(float largest) {
  const double rate = 1.0 / static_cast<double>(options_.temperature);
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - static_cast<double>(largest)) * rate);
  };
  double total = 0;
  for (const Candidate& c : candidates_) total += weight(c);

  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto end = candidates_.end();
  const auto next = [&] {
    std::pop_heap(candidates_.begin(), end, less_likely);
    return *--end;
  };
  const double u = random_.uniform();
  const bool nucleus = options_.top_p < 1;
  double sum = 0;
  if (!nucleus) {
    Candidate c{};
    do {
      c = next();
      sum += weight(c);
    } while (sum <= u * total && end != candidates_.begin());
    return c.id;
  }
  kept_.clear();
  kept_ids_.clear();
  do {
    const Candidate c = next();
    sum += weight(c);
    kept_.push_back(sum);
    kept_ids_.push_back(c.id);
  } while (sum < static_cast<double>(options_.top_p) * total && end != candidates_.begin());
  const auto at = std::upper_bound(kept_.begin(), kept_.end(), u * sum);
  return at == kept_.end() ? kept_ids_.back() : kept_ids_[static_cast<size_t>(at - kept_.begin())];
}

}  // namespace quern::engine
