// SPDX-License-Identifier: Apache-2.0
// Candidates are ordered lazily through a heap: a vocabulary has far more ids than a draw ever looks at.
#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

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

// The largest of some logits; `finite` becomes false where one of them is a NaN or +infinity. Several maxima side by
// side, because the compiler makes vectors of them: a vocabulary of 151,936 takes 24 instead of 85 us.
float largest_of(std::span<const float> logits, bool* finite) {
  constexpr size_t kLanes = 32;
  std::array<float, kLanes> largest;
  largest.fill(-kInfinity);
  uint32_t odd = 0;
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; j++) largest[j] = logits[i + j] > largest[j] ? logits[i + j] : largest[j];
    for (size_t j = 0; j < kLanes; j++) odd |= static_cast<uint32_t>(!(logits[i + j] < kInfinity));
  }
  for (; i < logits.size(); i++) {
    largest[0] = logits[i] > largest[0] ? logits[i] : largest[0];
    odd |= static_cast<uint32_t>(!(logits[i] < kInfinity));
  }
  *finite = odd == 0;
  return *std::max_element(largest.begin(), largest.end());
}

// The lowest id among those with the largest logit.
Result<int32_t> best_of(std::span<const float> logits) {
  constexpr size_t kBlock = 4096;
  float best = -kInfinity;
  size_t block = logits.size();  // the first one with the best logit in it
  for (size_t i = 0; i < logits.size(); i += kBlock) {
    const auto part = logits.subspan(i, std::min(kBlock, logits.size() - i));
    bool finite = true;
    const float largest = largest_of(part, &finite);
    if (!finite) {
      const auto at = std::find_if(part.begin(), part.end(), [](float x) { return !(x < kInfinity); });
      return bad_model("logits", fmt::format("of token id {} are {}, expected a finite number",
                                             i + static_cast<size_t>(at - part.begin()), *at));
    }
    if (largest <= best) continue;
    best = largest;
    block = i;
  }
  if (block == logits.size()) {
    return bad_model("logits", fmt::format("of all {} token ids are -infinity", logits.size()));
  }
  return static_cast<int32_t>(std::find(logits.begin() + static_cast<ptrdiff_t>(block), logits.end(), best) -
                              logits.begin());
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

Result<void> check_sampling(const SamplingOptions& options, int32_t vocab) {
  const auto refuse = [](const char* option, float value, const char* allowed) {
    return bad_request(option, fmt::format("is {}, allowed are {}", value, allowed));
  };
  const auto in_range = [](float value, float least, float most) { return value >= least && value <= most; };
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (!in_range(options.temperature, 0, kLargest)) {
    return refuse("temperature", options.temperature, "finite numbers from 0");
  }
  if (options.top_k < 0) return bad_request("top_k", fmt::format("is {}, allowed are numbers from 0", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return refuse("top_p", options.top_p, "numbers above 0 and up to 1");
  }
  if (!in_range(options.min_p, 0, 1)) return refuse("min_p", options.min_p, "numbers from 0 to 1");
  if (!(options.repetition_penalty > 0 && options.repetition_penalty < kInfinity)) {
    return refuse("repetition_penalty", options.repetition_penalty, "finite numbers above 0");
  }
  if (!in_range(options.presence_penalty, -kLargest, kLargest)) {
    return refuse("presence_penalty", options.presence_penalty, "finite numbers");
  }
  if (!in_range(options.frequency_penalty, -kLargest, kLargest)) {
    return refuse("frequency_penalty", options.frequency_penalty, "finite numbers");
  }
  std::set<int32_t> biased;
  for (const LogitBias& b : options.logit_bias) {
    if (b.id < 0 || b.id >= vocab) {
      return bad_request("logit_bias", fmt::format("has id {}, allowed are 0 to {}", b.id, vocab - 1));
    }
    if (!biased.insert(b.id).second) return bad_request("logit_bias", fmt::format("names id {} twice", b.id));
    if (!(b.bias < kInfinity)) return refuse("logit_bias", b.bias, "finite numbers and -infinity");
  }
  return {};
}

Sampler::Sampler(SamplingOptions options, std::span<const int32_t> masked)
    : options_(std::move(options)), masked_(masked.begin(), masked.end()), random_(options_.seed) {}

Sampler::Seen& Sampler::see(int32_t id) {
  const auto at = static_cast<size_t>(id);
  if (at >= seen_at_.size()) seen_at_.resize(at + 1, -1);
  if (seen_at_[at] < 0) {
    seen_at_[at] = static_cast<int32_t>(seen_.size());
    seen_.push_back({id, 0});
  }
  return seen_[static_cast<size_t>(seen_at_[at])];
}

void Sampler::see_prompt(std::span<const int32_t> ids) {
  if (!penalizes()) return;
  for (const int32_t id : ids) see(id);
}

void Sampler::adjust(std::span<float> logits) const {
  const auto inside = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); };
  for (const LogitBias& b : options_.logit_bias) {
    if (inside(b.id)) logits[static_cast<size_t>(b.id)] += b.bias;
  }
  for (const Seen& seen : seen_) {
    if (!inside(seen.id)) continue;
    float& logit = logits[static_cast<size_t>(seen.id)];
    logit = logit < 0 ? logit * options_.repetition_penalty : logit / options_.repetition_penalty;
    if (seen.generated == 0) continue;
    logit -= options_.presence_penalty + static_cast<float>(seen.generated) * options_.frequency_penalty;
  }
  for (const int32_t id : masked_) {
    if (inside(id)) logits[static_cast<size_t>(id)] = -kInfinity;
  }
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
  QUERN_TRY(int32_t best, best_of(logits));
  if (!options_.logit_bias.empty() || !seen_.empty() || !masked_.empty()) {
    adjusted_.assign(logits.begin(), logits.end());
    adjust(adjusted_);
    logits = adjusted_;
    auto adjusted_best = best_of(logits);
    const bool as_asked = !options_.logit_bias.empty() || !seen_.empty();
    if (!adjusted_best.ok() && as_asked) {
      return bad_request("logits behind bias and penalties", adjusted_best.error().what);
    }
    QUERN_TRY(best, std::move(adjusted_best));
  }
  const int32_t id = options_.greedy || options_.temperature == 0 ? best : choose(logits, best);
  if (penalizes()) see(id).generated++;
  return id;
}

int32_t Sampler::choose(std::span<const float> logits, int32_t best) {
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
  const bool nucleus = options_.top_p < 1 || options_.min_p > 0;
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
    // The largest has the weight 1.
    if (weight(c) < static_cast<double>(options_.min_p)) break;
    sum += weight(c);
    kept_.push_back(sum);
    kept_ids_.push_back(c.id);
  } while (sum < static_cast<double>(options_.top_p) * total && end != candidates_.begin());
  const auto at = std::upper_bound(kept_.begin(), kept_.end(), u * sum);
  return at == kept_.end() ? kept_ids_.back() : kept_ids_[static_cast<size_t>(at - kept_.begin())];
}

}  // namespace quern::engine
