// SPDX-License-Identifier: Apache-2.0
// Owns the choice of the next token from one row of logits, and the random numbers it is drawn with.
// Does not own where logits come from or when text ends (session.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace quern::engine {

// Random numbers that depend on nothing but the seed: xoshiro256**, its four words drawn from the seed by SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed);
  // The generator at a given state, which must not be all zero.
  explicit Random(const std::array<uint64_t, 4>& state) : state_(state) {}

  uint64_t next();
  // In [0, 1), the upper 53 bits of next() over 2^53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::array<uint64_t, 4> state_{};
};

struct SamplingOptions {
  bool greedy = false;       // the best token always; everything below has no influence
  float temperature = 1.0f;  // >= 0; 0 is greedy
  int32_t top_k = 0;         // >= 0; 0: no limit
  float top_p = 1.0f;        // 0 < p <= 1; 1: no limit
  uint64_t seed = 0;
};

// Errors: bad_request, naming the option, the value seen and the values allowed.
Result<void> check_sampling(const SamplingOptions& options);

// One stream of choices. The same options and logits give the same ids. For one thread.
class Sampler {
 public:
  // Precondition: check_sampling(options) is ok.
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  // The id (index into `logits`) that comes next. -infinity is never chosen. Greedy: the largest logit, of equal ones
  // the lowest id. Otherwise, in this order:
  //   temperature  x = logit / temperature
  //   top_k        the k largest x stay, and all that equal the smallest of them
  //   top_p        of the probabilities p = softmax(x), in falling order (equal ones by rising id), those stay before
  //                which less than top_p has been summed up; the first always
  //   draw         one uniform() u; the first id, in the same order, with sum(p) > u * (sum of all that stayed)
  // Allocates only until the largest row has been seen. Errors: bad_model (NaN or +infinity in the row, with the id; no
  // id above -infinity): finite weights and finite caches cannot give those.
  Result<int32_t> sample(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  static bool less_likely(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  }
  float kth_largest(std::span<const float> logits, size_t k);
  int32_t draw(float largest);

  SamplingOptions options_;
  Random random_;
  std::vector<Candidate> candidates_;
  std::vector<float> heap_;
  std::vector<double> kept_;  // running sums of probability over the candidates that stay
  std::vector<int32_t> kept_ids_;
};

}  // namespace quern::engine
