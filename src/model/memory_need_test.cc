// SPDX-License-Identifier: Apache-2.0
// Holds the choice of a context on needs and budgets by hand: what fits, what is cut, what is refused and the advice.
#include "model/memory_need.h"

#include <gtest/gtest.h>

namespace quern::model {
namespace {

constexpr size_t kMb = 1'000'000;

// 100 MB of weights, 10 of the rest, 10 kB a token, 5 of them in int8: 40,960 tokens take 410 MB.
constexpr MemoryNeed kNeed{.weights = 100 * kMb,
                           .state = 4 * kMb,
                           .workspace = 6 * kMb,
                           .token = 10'000,
                           .least_token = 5'000,
                           .least_kind = "int8"};
constexpr int32_t kMost = 40'960;

MemoryBudget budget(size_t mb) { return {mb * kMb, "RAM"}; }

TEST(ChooseContext, TheWholeContextWhereItFits) {
  EXPECT_EQ(*choose_context(kNeed, {}, 0, kMost), kMost);
  EXPECT_EQ(*choose_context(kNeed, budget(600), 0, kMost), kMost);
  EXPECT_EQ(*choose_context(kNeed, {110 * kMb + kNeed.token * kMost, "RAM"}, 0, kMost), kMost);
  EXPECT_LT(*choose_context(kNeed, {110 * kMb + kNeed.token * kMost - 1, "RAM"}, 0, kMost), kMost);
}

TEST(ChooseContext, WhatNobodyAskedForIsCutToTheRoom) {
  EXPECT_EQ(*choose_context(kNeed, budget(210), 0, kMost), 9'984);  // 10,000 tokens, in whole steps of 256
  EXPECT_EQ(*choose_context(kNeed, {110 * kMb + 2'048 * kNeed.token, "RAM"}, 0, kMost), 2'048);
}

TEST(ChooseContext, ButNotToLessThanAConversation) {
  const auto refused = choose_context(kNeed, {110 * kMb + 2'047 * kNeed.token, "RAM"}, 0, kMost);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::no_memory);
  EXPECT_EQ(*choose_context(kNeed, {110 * kMb + 2'047 * kNeed.token, "RAM"}, 0, 1'000), 1'000);
  EXPECT_FALSE(choose_context(kNeed, {110 * kMb + 999 * kNeed.token, "RAM"}, 0, 1'000).ok());
}

TEST(ChooseContext, WhatWasAskedForIsGivenOrRefusedWithFiguresAndWhatFits) {
  EXPECT_EQ(*choose_context(kNeed, budget(210), 1, kMost), 1);
  EXPECT_EQ(*choose_context(kNeed, budget(210), 10'000, kMost), 10'000);
  const auto refused = choose_context(kNeed, budget(210), 10'001, kMost);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::no_memory);
  EXPECT_EQ(
      refused.error().what,
      "the model needs 210 MB (weights 100, keys and values of 10001 tokens 100, states and workspace 10), and 210 "
      "MB are available: RAM; what fits is a context of 9984 tokens (ctx), or a context of 10001 tokens (ctx) with "
      "keys and values in int8 (kv)");
}

TEST(ChooseContext, AdviceLeavesOutWhatDoesNotHelp) {
  MemoryNeed one_kind = kNeed;
  one_kind.least_token = one_kind.token;
  one_kind.least_kind = "";
  const auto few = choose_context(one_kind, {110 * kMb + 99 * kNeed.token, "RAM"}, 0, kMost);
  ASSERT_FALSE(few.ok());
  EXPECT_NE(few.error().what.find("what fits is a context of 99 tokens (ctx)"), std::string::npos) << few.error().what;
  EXPECT_EQ(few.error().what.find("kv"), std::string::npos) << few.error().what;
  for (const size_t mb : {0, 50, 110}) {
    const auto none = choose_context(kNeed, budget(mb), 0, kMost);
    ASSERT_FALSE(none.ok());
    EXPECT_NE(none.error().what.find("no context fits beside the weights"), std::string::npos) << none.error().what;
  }
}

TEST(ChooseContext, MoreThanTheModelHasIsRefusedWithBothNumbers) {
  const auto refused = choose_context(kNeed, {}, 40'961, kMost);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::too_long);
  EXPECT_EQ(refused.error().what, "40961 tokens are asked for, the model has positions for 40960");
}

TEST(ChooseContext, AModelWithoutACacheFitsOrDoesNot) {
  MemoryNeed need;
  need.weights = 100 * kMb;
  EXPECT_EQ(*choose_context(need, budget(100), 0, kMost), kMost);
  EXPECT_FALSE(choose_context(need, budget(99), 0, kMost).ok());
}

}  // namespace
}  // namespace quern::model
