// SPDX-License-Identifier: Apache-2.0
// The sampler by hand-computed cases, and the generator by the published values of its two parts.
#include "engine/sampler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "tests/support/allocation_count.h"

namespace quern::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kDraws = 20000;

SamplingOptions sampling(float temperature, int32_t top_k = 0, float top_p = 1.0f, uint64_t seed = 1) {
  SamplingOptions options;
  options.temperature = temperature;
  options.top_k = top_k;
  options.top_p = top_p;
  options.seed = seed;
  return options;
}

std::map<int32_t, int> draw(const SamplingOptions& options, std::span<const float> logits) {
  Sampler sampler(options);
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; i++) {
    const auto id = sampler.sample(logits);
    if (!id.ok()) ADD_FAILURE() << id.error().message();
    counts[*id]++;
  }
  return counts;
}

// Five standard deviations of the relative frequency of an event of probability p.
double margin(double p) { return 5 * std::sqrt(p * (1 - p) / kDraws); }

void expect_shares(const std::map<int32_t, int>& counts, const std::map<int32_t, double>& expected) {
  for (const auto& [id, count] : counts)
    EXPECT_TRUE(expected.contains(id)) << "id " << id << " was drawn " << count << " times";
  for (const auto& [id, p] : expected) {
    const auto at = counts.find(id);
    const double share = at == counts.end() ? 0 : static_cast<double>(at->second) / kDraws;
    EXPECT_NEAR(share, p, margin(p)) << "id " << id;
  }
}

// Lengths around the blocks and lanes in which the largest logit is looked for.
constexpr size_t kLengths[] = {1, 2, 31, 32, 33, 64, 4095, 4096, 4097, 8191, 12289};

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargestLogitWhereverItIs) {
  SamplingOptions options;
  options.greedy = true;
  Sampler sampler(options);
  for (const size_t length : kLengths) {
    std::vector<float> logits(length);
    for (size_t i = 0; i < length; i++) logits[i] = -1 - static_cast<float>(i * 7919 % length);
    for (const size_t at : {size_t{0}, length / 3, length / 2, length - 1}) {
      std::vector<float> row = logits;
      row[at] = row[length - 1] = 0;
      row[length - 1] = -0.0f;  // equal to zero
      const auto id = sampler.sample(row);
      ASSERT_TRUE(id.ok());
      EXPECT_EQ(*id, static_cast<int32_t>(at)) << "of " << length;
    }
    const auto lowest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(*sampler.sample(logits), lowest) << "of " << length;
  }
}

TEST(Sampler, TheFirstLogitThatIsNoNumberIsNamedWhereverItIs) {
  SamplingOptions options;
  options.greedy = true;
  Sampler sampler(options);
  for (const size_t length : kLengths) {
    for (const size_t at : {size_t{0}, length / 2, length - 1}) {
      for (const float wrong : {kNaN, kInfinity}) {
        std::vector<float> row(length, -kInfinity);
        row[at] = row[length - 1] = wrong;
        const auto id = sampler.sample(row);
        ASSERT_FALSE(id.ok());
        EXPECT_NE(id.error().message().find(fmt::format("token id {} are {}", at, wrong)), std::string::npos)
            << id.error().message();
      }
    }
    EXPECT_FALSE(sampler.sample(std::vector<float>(length, -kInfinity)).ok());
  }
}

TEST(Random, GeneratorGivesThePublishedSequence) {
  Random random(std::array<uint64_t, 4>{1, 2, 3, 4});
  EXPECT_EQ(random.next(), 11520u);
  EXPECT_EQ(random.next(), 0u);
  EXPECT_EQ(random.next(), 1509978240u);
  EXPECT_EQ(random.next(), 1215971899390074240u);
}

TEST(Random, SeedsAreSpreadByThePublishedMixer) {
  // The first four values of SplitMix64 for 1234567 are the state.
  Random seeded(1234567);
  Random expected(
      std::array<uint64_t, 4>{6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u});
  for (int i = 0; i < 8; i++) EXPECT_EQ(seeded.next(), expected.next());
}

TEST(Random, UniformIsInTheUnitIntervalAndCentred) {
  Random random(3);
  double sum = 0;
  for (int i = 0; i < kDraws; i++) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 / std::sqrt(12.0 * kDraws));
}

TEST(Sampler, GreedyTakesTheLowestOfEqualIds) {
  SamplingOptions options;
  options.greedy = true;
  Sampler sampler(options);
  EXPECT_EQ(*sampler.sample(std::vector<float>{1, 3, 2, 3}), 1);
  EXPECT_EQ(*sampler.sample(std::vector<float>{-5, -5}), 0);
  EXPECT_EQ(*sampler.sample(std::vector<float>{-kInfinity, -9}), 1);
  EXPECT_EQ(*Sampler(sampling(0)).sample(std::vector<float>{1, 2, 2}), 1);
}

TEST(Sampler, RowsThatAreNotFiniteAreRefusedWithTheId) {
  for (const bool greedy : {true, false}) {
    SamplingOptions options;
    options.greedy = greedy;
    Sampler sampler(options);
    for (const auto& [row, id] : {std::pair{std::vector<float>{1, kNaN, 0}, "1"},
                                  {{1, 9, kNaN}, "2"},
                                  {{kNaN, 9}, "0"},
                                  {{kInfinity, 1}, "0"}}) {
      const auto result = sampler.sample(row);
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.error().code, Errc::bad_model);
      EXPECT_NE(result.error().message().find(std::string("token id ") + id), std::string::npos)
          << result.error().message();
    }
    EXPECT_FALSE(sampler.sample(std::vector<float>{-kInfinity, -kInfinity}).ok());
    EXPECT_FALSE(sampler.sample(std::vector<float>{}).ok());
  }
}

TEST(Sampler, SharesAreTheSoftmaxAtTheTemperature) {
  // exp(log 4 / 2) = 2: weights 1, 2, 1 at temperature 2, and 1, 4, 1 at temperature 1.
  const std::vector<float> logits = {0, std::log(4.0f), 0};
  expect_shares(draw(sampling(2), logits), {{0, 0.25}, {1, 0.5}, {2, 0.25}});
  expect_shares(draw(sampling(1), logits), {{0, 1.0 / 6}, {1, 4.0 / 6}, {2, 1.0 / 6}});
}

TEST(Sampler, TopKKeepsTheLargestAndWhatEqualsTheSmallestOfThem) {
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(2.0f), -kInfinity};
  expect_shares(draw(sampling(1, 1), logits), {{1, 1.0}});
  expect_shares(draw(sampling(1, 2), logits), {{1, 0.5}, {2, 0.25}, {3, 0.25}});
  expect_shares(draw(sampling(1, 100), logits), {{0, 1.0 / 9}, {1, 4.0 / 9}, {2, 2.0 / 9}, {3, 2.0 / 9}});
}

TEST(Sampler, TopPKeepsUntilTheSumIsReached) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(1.0f)};
  expect_shares(draw(sampling(1, 0, 0.4f), logits), {{1, 1.0}});
  expect_shares(draw(sampling(1, 0, 0.6f), logits), {{1, 2.0 / 3}, {2, 1.0 / 3}});
  expect_shares(draw(sampling(1, 0, 0.8f), logits), {{0, 1.0 / 7}, {1, 4.0 / 7}, {2, 2.0 / 7}});  // equal: the lower id
  expect_shares(draw(sampling(1, 0, 1e-6f), logits), {{1, 1.0}});
  expect_shares(draw(sampling(1, 0, 1), logits), {{0, 0.125}, {1, 0.5}, {2, 0.25}, {3, 0.125}});
}

// The nucleus is taken of what top_k left: of 4, 2, 1, 1 the two largest are 2/3 and 1/3 there, and 0.5 needs one of
// them. Were the nucleus first (one of 0.5 too), or the temperature last, 0.6 would tell: 4/8 < 0.6 < 4/6.
TEST(Sampler, OrderIsTemperatureThenTopKThenTopP) {
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(1.0f)};
  expect_shares(draw(sampling(1, 2, 0.6f), logits), {{1, 1.0}});
  expect_shares(draw(sampling(1, 2, 0.7f), logits), {{1, 2.0 / 3}, {2, 1.0 / 3}});
  // At temperature 2 the weights are 1, 2, sqrt 2, 1: the largest two are 0.586 and 0.414.
  const double sum = 2 + std::sqrt(2.0);
  expect_shares(draw(sampling(2, 2, 0.6f), logits), {{1, 2 / sum}, {2, std::sqrt(2.0) / sum}});
}

// How often ids come out is compared with transformers in tests/oracle/test_sampling.py.
TEST(Sampler, MaskedAndBannedIdsNeverComeOut) {
  SamplingOptions options = sampling(100);
  options.logit_bias = {{2, -kInfinity}};
  const std::array<int32_t, 3> masked = {0, 3, 99};  // 99 is outside of the row
  Sampler sampler(options, masked);
  const std::vector<float> logits = {9, 1, 9, 9, 1};
  for (int i = 0; i < 200; i++) {
    const int32_t id = *sampler.sample(logits);
    EXPECT_TRUE(id == 1 || id == 4) << id;
  }
  options.greedy = true;
  EXPECT_EQ(*Sampler(options, masked).sample(logits), 1);
}

TEST(Sampler, EveryChoiceCountsForTheNext) {
  SamplingOptions options;
  options.greedy = true;
  options.frequency_penalty = 1;
  const std::vector<float> logits = {2.5f, 1, 0};
  Sampler sampler(options);
  std::vector<int32_t> ids;
  for (int i = 0; i < 6; i++) ids.push_back(*sampler.sample(logits));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 0, 1, 0, 1, 2}));  // 2.5, 1.5, then 1 against 0.5, ...
  EXPECT_EQ(*Sampler(options).sample(logits), 0);
}

TEST(Sampler, HistoryOutsideOfTheRowIsLeftAlone) {
  SamplingOptions options;
  options.greedy = true;
  options.repetition_penalty = 2;
  Sampler sampler(options);
  sampler.see_prompt(std::array<int32_t, 3>{70, 1, 3});
  EXPECT_EQ(*sampler.sample(std::vector<float>{1, 1.5f, 0.5f}), 0);
}

TEST(Sampler, OptionsThatLeaveNothingAreABadRequestNotABadModel) {
  SamplingOptions options;
  options.logit_bias = {{0, -kInfinity}, {1, -kInfinity}};
  const std::vector<float> logits = {1, 2};
  EXPECT_EQ(Sampler(options).sample(logits).error().code, Errc::bad_request);
  options.logit_bias = {{0, 3e38f}};
  EXPECT_EQ(Sampler(options).sample(std::vector<float>{3e38f, 2}).error().code, Errc::bad_request);
  EXPECT_EQ(Sampler(options).sample(std::vector<float>{kNaN, 2}).error().code, Errc::bad_model);
  const std::array<int32_t, 2> masked = {0, 1};
  EXPECT_EQ(Sampler(SamplingOptions(), masked).sample(logits).error().code, Errc::bad_model);
}

TEST(Sampler, AllocatesNothingOnceItHasSeenItsLargestRow) {
  SamplingOptions everything = sampling(0.7f, 40, 0.95f);
  everything.min_p = 0.01f;
  everything.repetition_penalty = 1.1f;
  everything.frequency_penalty = 0.1f;
  everything.logit_bias = {{7, 1}, {8, -kInfinity}};
  SamplingOptions greedy;
  greedy.greedy = true;
  const std::array<int32_t, 2> masked = {1, 5};
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = static_cast<float>(i * 7919 % 5000) * 1e-3f;
  for (const SamplingOptions& options : {everything, greedy, sampling(1), sampling(1, 0, 0.9f), sampling(1, 20)}) {
    Sampler sampler(options, masked);
    std::vector<int32_t> all(logits.size());
    for (size_t i = 0; i < all.size(); i++) all[i] = static_cast<int32_t>(i);
    sampler.see_prompt(all);
    ASSERT_TRUE(sampler.sample(logits).ok());
    EXPECT_EQ(support::allocations_in([&] {
                for (int i = 0; i < 50; i++) EXPECT_TRUE(sampler.sample(logits).ok());
              }),
              0);
  }
}

TEST(Sampler, SeedDecidesEverything) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = static_cast<float>(i % 17) * 0.1f;
  std::vector<int32_t> a, b, c;
  Sampler first(sampling(1, 0, 0.9f, 42)), second(sampling(1, 0, 0.9f, 42)), third(sampling(1, 0, 0.9f, 43));
  for (int i = 0; i < 50; i++) {
    a.push_back(*first.sample(logits));
    b.push_back(*second.sample(logits));
    c.push_back(*third.sample(logits));
  }
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(Sampler, HugeRangesStayFinite) {
  const std::vector<float> logits = {-3e38f, 3e38f, 0};
  expect_shares(draw(sampling(1e-3f), logits), {{1, 1.0}});
  expect_shares(draw(sampling(1e-30f, 2, 0.5f), logits), {{1, 1.0}});
}

TEST(Sampler, OptionsOutOfRangeAreRefusedByName) {
  const auto name = [](const SamplingOptions& options) {
    const auto checked = check_sampling(options, 100);
    return checked.ok() ? std::string() : checked.error().where;
  };
  EXPECT_EQ(name(sampling(-1)), "temperature");
  EXPECT_EQ(name(sampling(kNaN)), "temperature");
  EXPECT_EQ(name(sampling(kInfinity)), "temperature");
  EXPECT_EQ(name(sampling(1, -1)), "top_k");
  EXPECT_EQ(name(sampling(1, 0, 1.5f)), "top_p");
  EXPECT_EQ(name(sampling(1, 0, -0.1f)), "top_p");
  EXPECT_EQ(name(sampling(1, 0, kNaN)), "top_p");
  EXPECT_EQ(name(sampling(1, 0, 0)), "top_p");
  EXPECT_EQ(name(sampling(1, 0, 1e-45f)), "");
  EXPECT_EQ(name(sampling(0)), "");
  EXPECT_EQ(name(sampling(2, 50, 1)), "");
  const auto with = [&](auto change) {
    SamplingOptions options;
    change(options);
    return name(options);
  };
  for (const float bad : {-0.1f, 1.1f, kNaN}) {
    EXPECT_EQ(with([&](SamplingOptions& o) { o.min_p = bad; }), "min_p");
  }
  for (const float bad : {0.0f, -1.0f, kInfinity, kNaN}) {
    EXPECT_EQ(with([&](SamplingOptions& o) { o.repetition_penalty = bad; }), "repetition_penalty");
  }
  for (const float bad : {kInfinity, -kInfinity, kNaN}) {
    EXPECT_EQ(with([&](SamplingOptions& o) { o.presence_penalty = bad; }), "presence_penalty");
    EXPECT_EQ(with([&](SamplingOptions& o) { o.frequency_penalty = bad; }), "frequency_penalty");
  }
  for (const LogitBias bad : {LogitBias{-1, 0}, {100, 0}, {5, kInfinity}, {5, kNaN}}) {
    EXPECT_EQ(with([&](SamplingOptions& o) { o.logit_bias = {bad}; }), "logit_bias");
  }
  EXPECT_EQ(with([](SamplingOptions& o) { o.logit_bias = {{5, 1}, {6, 1}, {5, 2}}; }), "logit_bias");
  EXPECT_EQ(with([](SamplingOptions& o) { o.logit_bias = {{0, 1}, {99, -kInfinity}}; }), "");
}

}  // namespace
}  // namespace quern::engine
