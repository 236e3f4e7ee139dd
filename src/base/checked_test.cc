// SPDX-License-Identifier: Apache-2.0
// Holds base/checked.h at and around the limits of its types.
#include "base/checked.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace quern {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(Checked, ProductsThatFit) {
  EXPECT_EQ(checked_mul<int64_t>(3, -4), -12);
  EXPECT_EQ(checked_mul<int64_t>(kMax, 1), kMax);
  EXPECT_EQ(checked_mul<int64_t>(kMax / 2, 2), kMax - 1);
  EXPECT_EQ(checked_mul<int64_t>(kMin, 1), kMin);
  EXPECT_EQ(checked_mul<int64_t>(0, kMin), 0);
  EXPECT_EQ(checked_mul<uint8_t>(15, 17), 255);
}

TEST(Checked, ProductsThatDoNotFitAreNothing) {
  EXPECT_FALSE(checked_mul<int64_t>(kMax, 2));
  EXPECT_FALSE(checked_mul<int64_t>(kMin, -1));
  EXPECT_FALSE(checked_mul<int64_t>(int64_t{1} << 32, int64_t{1} << 31));
  EXPECT_FALSE(checked_mul<uint8_t>(16, 16));
  EXPECT_FALSE(checked_mul<size_t>(SIZE_MAX, 2));
}

TEST(Checked, Sums) {
  EXPECT_EQ(checked_add<int64_t>(kMax, kMin), -1);
  EXPECT_EQ(checked_add<int64_t>(kMax - 1, 1), kMax);
  EXPECT_FALSE(checked_add<int64_t>(kMax, 1));
  EXPECT_FALSE(checked_add<int64_t>(kMin, -1));
  EXPECT_EQ(checked_add<uint8_t>(200, 55), 255);
  EXPECT_FALSE(checked_add<uint8_t>(200, 56));
  EXPECT_FALSE(checked_add<size_t>(SIZE_MAX, 1));
}

TEST(Checked, CeilDivDoesNotOverflowAtTheLimit) {
  EXPECT_EQ(ceil_div(0, 5), 0);
  EXPECT_EQ(ceil_div(1, 5), 1);
  EXPECT_EQ(ceil_div(5, 5), 1);
  EXPECT_EQ(ceil_div(6, 5), 2);
  EXPECT_EQ(ceil_div(kMax, int64_t{1}), kMax);
  EXPECT_EQ(ceil_div(kMax, int64_t{2}), kMax / 2 + 1);
  EXPECT_EQ(ceil_div(SIZE_MAX, SIZE_MAX), 1u);
}

TEST(Checked, RoundUp) {
  EXPECT_EQ(round_up(0, 64), 0);
  EXPECT_EQ(round_up(1, 64), 64);
  EXPECT_EQ(round_up(64, 64), 64);
  EXPECT_EQ(round_up(65, 64), 128);
  EXPECT_EQ(round_up(7, 3), 9);
}

TEST(Checked, WorksAtCompileTime) {
  static_assert(checked_mul(6, 7) == 42);
  static_assert(!checked_add(std::numeric_limits<int>::max(), 1));
  static_assert(round_up(5, 4) == 8);
}

}  // namespace
}  // namespace quern
