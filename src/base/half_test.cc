// SPDX-License-Identifier: Apache-2.0
// Holds base/half.h: every half against its definition, and rounding against a search for the nearest half.
#include "base/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/random.h"

namespace quern {
namespace {

constexpr uint16_t kInfinity = 0x7c00;

// IEEE 754: 1 sign bit, 5 exponent bits with bias 15, 10 bits of significand. For finite halves.
double defined(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return half >> 15 != 0 ? -magnitude : magnitude;
}

// The half that is nearest to a number >= 0, and of two the one with an even code. 2^16 stands for infinity.
uint16_t nearest(double value) {
  static const std::vector<double> all = [] {
    std::vector<double> halves;
    for (uint16_t h = 0; h < kInfinity; h++) halves.push_back(defined(h));
    halves.push_back(0x1p16);
    return halves;
  }();
  const auto above = std::ranges::lower_bound(all, value);
  if (above == all.end()) return kInfinity;
  const auto code = static_cast<uint16_t>(above - all.begin());
  if (code == 0) return 0;
  const double up = *above - value;
  const double down = value - all[code - 1u];
  if (up == down) return code % 2 == 0 ? code : static_cast<uint16_t>(code - 1);
  return up < down ? code : static_cast<uint16_t>(code - 1);
}

void expect_rounds(float value) {
  ASSERT_EQ(float_to_half(value), nearest(static_cast<double>(value))) << value;
  ASSERT_EQ(float_to_half(-value), 0x8000 | nearest(static_cast<double>(value))) << -value;
}

TEST(Half, EveryFiniteHalfIsItsDefinedFloat) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const auto half = static_cast<uint16_t>(h);
    if ((half & kInfinity) == kInfinity) continue;
    const float seen = half_to_float(half);
    ASSERT_EQ(static_cast<double>(seen), defined(half)) << h;
    ASSERT_EQ(std::signbit(seen), half >> 15 != 0) << h;
  }
}

TEST(Half, InfinitiesAndNaNsStayWhatTheyAre) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(half_to_float(0x7c00), kInf);
  EXPECT_EQ(half_to_float(0xfc00), -kInf);
  EXPECT_EQ(float_to_half(kInf), 0x7c00);
  EXPECT_EQ(float_to_half(-kInf), 0xfc00);
  for (uint16_t fraction = 1; fraction < 1024; fraction++) {
    for (const uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
      const auto half = static_cast<uint16_t>(sign | kInfinity | fraction);
      const float seen = half_to_float(half);
      ASSERT_TRUE(std::isnan(seen)) << half;
      ASSERT_EQ(std::signbit(seen), sign != 0) << half;
      const uint16_t back = float_to_half(seen);
      ASSERT_GT(back & 0x7fff, kInfinity) << half;
      ASSERT_EQ(back & 0x8000, sign) << half;
    }
  }
  // A payload that only a float's low bits hold must not become an infinity.
  EXPECT_GT(float_to_half(std::bit_cast<float>(0x7f800001u)) & 0x7fff, kInfinity);
}

TEST(Half, EveryHalfComesBack) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const auto half = static_cast<uint16_t>(h);
    if ((half & 0x7fff) > kInfinity) continue;
    ASSERT_EQ(float_to_half(half_to_float(half)), half);
  }
}

TEST(Half, TiesGoToEvenAndTheirNeighboursToTheNearest) {
  for (uint16_t h = 0; h < kInfinity; h++) {
    // 65520 lies between the largest half and 2^16.
    const double next = h + 1 == kInfinity ? 0x1p16 : defined(static_cast<uint16_t>(h + 1));
    const auto tie = static_cast<float>((defined(h) + next) / 2);
    ASSERT_EQ(static_cast<double>(tie), (defined(h) + next) / 2) << "a tie is a float, " << h;
    ASSERT_EQ(float_to_half(tie), h % 2 == 0 ? h : h + 1) << h;
    ASSERT_EQ(float_to_half(std::nextafter(tie, 0.0f)), h) << h;
    ASSERT_EQ(float_to_half(std::nextafter(tie, 1e9f)), h + 1) << h;
  }
}

TEST(Half, EdgesRoundByTheRule) {
  EXPECT_EQ(float_to_half(0.0f), 0);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_EQ(float_to_half(1.0f), 0x3c00);
  EXPECT_EQ(float_to_half(-2.0f), 0xc000);
  EXPECT_EQ(float_to_half(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(float_to_half(0x1p-24f), 1);
  EXPECT_EQ(float_to_half(0x1p-25f), 0);
  EXPECT_EQ(float_to_half(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(float_to_half(0x1p-14f), 0x0400);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Half, RandomFloatsRoundToTheNearest) {
  support::Random random(71);
  for (int i = 0; i < 500000; i++) {
    // Exponents from below the smallest half to above the largest, and any float.
    const auto fraction = static_cast<uint32_t>(random.bits()) & 0x007fffffu;
    const auto exponent = static_cast<uint32_t>(100 + random.below(46));
    expect_rounds(std::bit_cast<float>(exponent << 23 | fraction));
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random.bits()) & 0x7fffffffu);
    if (std::isfinite(any)) expect_rounds(any);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace quern
