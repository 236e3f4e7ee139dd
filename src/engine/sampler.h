// SPDX-License-Identifier: Apache-2.0
// Owns the choice of the next token from one row of logits and the tokens so far, and the random numbers it is drawn
// with. Does not own where logits come from or when text ends (session.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
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

struct LogitBias {
  int32_t id = 0;
  float bias = 0;  // -infinity: never this id
};

struct SamplingOptions {
  bool greedy = false;                // the best token always; temperature, top_k, top_p and min_p have no influence
  float temperature = 1.0f;           // >= 0; 0 is greedy
  int32_t top_k = 0;                  // >= 0; 0: no limit
  float top_p = 1.0f;                 // 0 < p <= 1; 1: no limit
  float min_p = 0.0f;                 // 0 <= p <= 1; 0: no limit
  float repetition_penalty = 1.0f;    // > 0; 1: none
  float presence_penalty = 0.0f;      // finite
  float frequency_penalty = 0.0f;     // finite
  std::vector<LogitBias> logit_bias;  // every id once; finite or -infinity
  uint64_t seed = 0;
};

// What a caller says about sampling. What is absent is as the model's authors want it: see Engine::choose_sampling().
struct SamplingChoice {
  bool greedy = false;  // the four that follow have no influence then
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<LogitBias> logit_bias;
  uint64_t seed = 0;
};

// `vocab`: ids that a bias may name are below it. Errors: bad_request, naming the option, the value seen and the values
// allowed.
Result<void> check_sampling(const SamplingOptions& options, int32_t vocab);

// One stream of choices, each of which counts as generated for those after it. The same options, history and logits
// give the same ids. For one thread.
class Sampler {
 public:
  // `masked` are ids that never come out; they may be outside of a row. Precondition: check_sampling(options) is ok.
  explicit Sampler(SamplingOptions options, std::span<const int32_t> masked = {});

  // Tokens before the first choice: the repetition penalty falls on them, the other two do not. Ids are >= 0.
  void see_prompt(std::span<const int32_t> ids);

  // The id (index into `logits`) that comes next. Logits are changed and ids left out in the order of transformers
  // (GenerationMixin), in float32 up to the temperature; presence and frequency, which it does not have, are OpenAI's:
  //   logit_bias   logit + bias
  //   repetition   where the id was seen (prompt or generated): logit * penalty if negative, else logit / penalty
  //   presence, frequency   where the id was generated n > 0 times: logit - (presence + n * frequency)
  //   masked       -infinity, which is never chosen
  // Greedy: the largest of these, of equal ones the lowest id. Otherwise:
  //   temperature  x = logit / temperature
  //   top_k        the k largest x stay, and all that equal the smallest of them
  //   top_p        of the probabilities p = softmax(x), in falling order (equal ones by rising id), those stay before
  //                which less than top_p has been summed up; the first always
  //   min_p        those stay whose p is at least min_p times the largest
  //   draw         one uniform() u; the first id, in the same order, with sum(p) > u * (sum of all that stayed)
  // Allocates only until the largest row and the largest id have been seen. Errors: bad_model (NaN or +infinity in the
  // row, with the id; no id above -infinity): finite weights and finite caches cannot give those; bad_request (bias or
  // penalties leave no id, or make a logit infinite).
  Result<int32_t> sample(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  struct Seen {
    int32_t id;
    int32_t generated;  // times
  };
  static bool less_likely(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  }
  bool penalizes() const {
    return options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0;
  }
  Seen& see(int32_t id);
  void adjust(std::span<float> logits) const;
  int32_t choose(std::span<const float> logits, int32_t best);
  float kth_largest(std::span<const float> logits, size_t k);
  int32_t draw(float largest);

  SamplingOptions options_;
  std::vector<int32_t> masked_;
  Random random_;
  std::vector<Seen> seen_;        // each id once; empty unless there are penalties
  std::vector<int32_t> seen_at_;  // by id: its place in seen_, or -1
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
  std::vector<float> heap_;
  std::vector<double> kept_;  // running sums of probability over the candidates that stay
  std::vector<int32_t> kept_ids_;
};

}  // namespace quern::engine
