// SPDX-License-Identifier: Apache-2.0
// The choice of experts: numbers by hand, ties, special values. tests/oracle compares with transformers live.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/brain.h"
#include "ops/moe_route/kernels.h"
#include "ops/moe_route/moe_route.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

using support::Machine;

struct Routes {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routes route(MoeRouteParams p, const std::vector<float>& scores, int threads = 1) {
  Machine machine(threads);
  p.tokens = static_cast<int64_t>(scores.size()) / p.experts;
  std::vector<uint16_t> brains(scores.size());
  std::transform(scores.begin(), scores.end(), brains.begin(), float_to_brain);
  const void* data = p.type == DType::f32 ? static_cast<const void*>(scores.data()) : brains.data();
  const auto count = static_cast<size_t>(p.tokens * p.chosen);
  Routes r{std::vector<int32_t>(count), std::vector<float>(count)};
  const auto done = moe_route(machine.context, p, {{data, p.experts}, r.experts.data(), r.weights.data()}, "test");
  EXPECT_TRUE(done.ok()) << done.error().message();
  return r;
}

TEST(MoeRoute, LargestFirstWithNormalizedWeights) {
  const std::vector<float> scores{0, std::log(4.0f), std::log(2.0f), std::log(8.0f), -1};
  const Routes r = route({DType::f32, 1, 5, 3, true}, scores);
  EXPECT_EQ(r.experts, (std::vector<int32_t>{3, 1, 2}));
  for (size_t k = 0; k < 3; k++) EXPECT_NEAR(r.weights[k], (std::vector<float>{8, 4, 2})[k] / 14, 1e-6);
}

TEST(MoeRoute, WithoutNormalizationWeightsAreProbabilities) {
  const Routes r = route({DType::f32, 1, 4, 2, false}, {0, std::log(2.0f), 0, 0});
  EXPECT_EQ(r.experts, (std::vector<int32_t>{1, 0}));
  EXPECT_NEAR(r.weights[0], 0.4, 1e-6);
  EXPECT_NEAR(r.weights[1], 0.2, 1e-6);
}

TEST(MoeRoute, OfEqualExpertsTheLowerIndexComesFirst) {
  for (const DType type : {DType::f32, DType::bf16}) {
    EXPECT_EQ(route({type, 1, 6, 4, true}, {1, 2, 1, 2, 1, 1}).experts, (std::vector<int32_t>{1, 3, 0, 2}));
    EXPECT_EQ(route({type, 1, 5, 3, true}, {0, 0, 0, 0, 0}).experts, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(route({type, 1, 4, 3, true}, {-0.0f, 0.0f, -0.0f, 1}).experts, (std::vector<int32_t>{3, 0, 1}));
  }
}

TEST(MoeRoute, AllAndOneOfTheExperts) {
  EXPECT_EQ(route({DType::f32, 1, 4, 4, true}, {3, 1, 4, 2}).experts, (std::vector<int32_t>{2, 0, 3, 1}));
  const Routes one = route({DType::f32, 1, 4, 1, true}, {3, 1, 4, 2});
  EXPECT_EQ(one.experts, std::vector<int32_t>{2});
  EXPECT_EQ(one.weights, std::vector<float>{1});
}

TEST(MoeRoute, WeightsOfTheBfloat16FormAreRoundedOnce) {
  support::Random random(1);
  std::vector<float> scores(64 * 32);
  random.fill_normal(scores, 2);
  for (float& s : scores) s = brain_to_float(float_to_brain(s));
  const Routes narrow = route({DType::bf16, 0, 32, 5, true}, scores);
  const Routes wide = route({DType::f32, 0, 32, 5, true}, scores);
  EXPECT_EQ(narrow.experts, wide.experts);
  for (size_t i = 0; i < wide.weights.size(); i++) {
    EXPECT_EQ(narrow.weights[i], brain_to_float(float_to_brain(wide.weights[i]))) << i;
  }
}

TEST(MoeRoute, IsTheReferenceBitForBit) {
  support::Random random(2);
  Machine machine(3);
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const bool normalize : {true, false}) {
      for (const auto& [experts, chosen] : {std::pair{1, 1}, {7, 7}, {16, 3}, {100, 10}, {512, 64}}) {
        constexpr int64_t kTokens = 50;
        const MoeRouteParams p{type, kTokens, experts, chosen, normalize};
        std::vector<float> scores(static_cast<size_t>(kTokens * experts));
        for (float& s : scores) s = static_cast<float>(random.below(30)) / 8;  // many ties
        std::vector<uint16_t> brains(scores.size());
        std::transform(scores.begin(), scores.end(), brains.begin(), float_to_brain);
        const RowsIn rows{type == DType::f32 ? static_cast<const void*>(scores.data()) : brains.data(), experts};
        const auto count = static_cast<size_t>(kTokens * chosen);
        Routes found{std::vector<int32_t>(count), std::vector<float>(count)}, wanted = found;
        ASSERT_TRUE(moe_route(machine.context, p, {rows, found.experts.data(), found.weights.data()}, "test").ok());
        moe_route_reference(p, {rows, wanted.experts.data(), wanted.weights.data()});
        EXPECT_EQ(found.experts, wanted.experts) << experts;
        EXPECT_EQ(found.weights, wanted.weights) << experts;
      }
    }
  }
}

TEST(MoeRoute, SpecialScores) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Routes out = route({DType::f32, 1, 4, 2, true}, {-kInf, 0, -kInf, -kInf});
  EXPECT_EQ(out.experts, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(out.weights, (std::vector<float>{1, 0}));
  const Routes large = route({DType::f32, 1, 3, 2, true}, {3e38f, -3e38f, 3e38f});
  EXPECT_EQ(large.experts, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(large.weights, (std::vector<float>{0.5f, 0.5f}));
  for (const auto& scores : {std::vector<float>{0, kNan, 2, 1}, {kNan, kNan, kNan, kNan}, {0, kInf, 1, 2}}) {
    const Routes r = route({DType::f32, 1, 4, 3, true}, scores);
    const std::set<int32_t> different(r.experts.begin(), r.experts.end());
    EXPECT_EQ(different.size(), 3u);
    EXPECT_GE(*different.begin(), 0);
    EXPECT_LT(*different.rbegin(), 4);
    for (const float w : r.weights) EXPECT_TRUE(std::isnan(w));
  }
}

TEST(MoeRoute, RowsWithGapsThreadsAndNoReadPastTheEnd) {
  constexpr int64_t kTokens = 40, kStride = 19;
  constexpr int32_t kExperts = 17, kChosen = 3;
  support::Random random(3);
  const support::GuardedArray<uint16_t> scores(static_cast<size_t>((kTokens - 1) * kStride + kExperts));
  std::vector<float> packed;
  for (size_t i = 0; i < scores.size(); i++) {
    scores[i] = float_to_brain(random.normal());
    if (i % kStride < kExperts) packed.push_back(brain_to_float(scores[i]));
  }
  const Routes wanted = route({DType::bf16, 0, kExperts, kChosen, true}, packed);
  Machine machine(4);
  const support::GuardedArray<int32_t> experts(kTokens * kChosen);
  const support::GuardedArray<float> weights(kTokens * kChosen);
  const MoeRouteArgs args{{scores.data(), kStride}, experts.data(), weights.data()};
  EXPECT_EQ(
      support::allocations_in([&] {
        EXPECT_TRUE(moe_route(machine.context, {DType::bf16, kTokens, kExperts, kChosen, true}, args, "test").ok());
      }),
      0);
  EXPECT_TRUE(std::equal(experts.begin(), experts.end(), wanted.experts.begin()));
  EXPECT_TRUE(std::equal(weights.begin(), weights.end(), wanted.weights.begin()));
}

TEST(MoeRoute, RefusesParamsOutsideOfTheContract) {
  const auto refused = [&](Errc code, MoeRouteParams p, int64_t stride) {
    Machine machine;
    std::vector<float> scores(64), weights(64);
    std::vector<int32_t> experts(64);
    const auto done =
        moe_route(machine.context, p, {{scores.data(), stride}, experts.data(), weights.data()}, "router");
    return !done.ok() && done.error().code == code && done.error().where == "router";
  };
  EXPECT_FALSE(refused(Errc::bad_request, {DType::f32, 2, 4, 2, true}, 4));
  EXPECT_TRUE(refused(Errc::unsupported, {DType::f16, 2, 4, 2, true}, 4));
  EXPECT_TRUE(refused(Errc::bad_request, {DType::f32, 2, 0, 0, true}, 4));
  EXPECT_TRUE(refused(Errc::bad_request, {DType::f32, 2, 4, 0, true}, 4));
  EXPECT_TRUE(refused(Errc::bad_request, {DType::f32, 2, 4, 5, true}, 5));
  EXPECT_TRUE(refused(Errc::bad_request, {DType::f32, 2, 100, kMaxChosenExperts + 1, true}, 100));
  EXPECT_TRUE(refused(Errc::bad_request, {DType::f32, -1, 4, 2, true}, 4));
  EXPECT_TRUE(refused(Errc::bad_request, {DType::f32, 2, 4, 2, true}, 3));
}

}  // namespace
}  // namespace quern::ops
