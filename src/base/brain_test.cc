// SPDX-License-Identifier: Apache-2.0
// Holds base/brain.h: every bfloat16 against its definition, and rounding against its two neighbours.
#include "base/brain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/random.h"

namespace quern {
namespace {

// 1 sign bit, 8 exponent bits with bias 127, 7 bits of significand. For finite values.
double defined(uint16_t brain) {
  const int exponent = brain >> 7 & 255;
  const int fraction = brain & 127;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134);
  return brain >> 15 != 0 ? -magnitude : magnitude;
}

bool is_finite(uint16_t brain) { return (brain & 0x7f80) != 0x7f80; }

TEST(Brain, EveryFiniteValueIsItsDefinedFloatAndComesBack) {
  for (uint32_t code = 0; code < 0x10000; code++) {
    const auto brain = static_cast<uint16_t>(code);
    if (!is_finite(brain)) continue;
    const float seen = brain_to_float(brain);
    ASSERT_EQ(static_cast<double>(seen), defined(brain)) << code;
    ASSERT_EQ(float_to_brain(seen), brain) << code;
  }
}

TEST(Brain, RoundsToTheNearerNeighbourAndTiesToEven) {
  support::Random random(1);
  for (int i = 0; i < 100000; i++) {
    const auto below = static_cast<uint16_t>(random.below(0x7f7f));
    const auto above = static_cast<uint16_t>(below + 1);
    const uint32_t between = i % 4 == 0 ? 0x8000u : static_cast<uint32_t>(random.below(0x10000));
    const float value = std::bit_cast<float>(static_cast<uint32_t>(below) << 16 | between);
    const double down = static_cast<double>(value) - defined(below);
    const double up = defined(above) - static_cast<double>(value);
    const uint16_t wanted = down < up || (down == up && below % 2 == 0) ? below : above;
    ASSERT_EQ(float_to_brain(value), wanted) << value;
    ASSERT_EQ(float_to_brain(-value), wanted | 0x8000) << -value;
  }
}

TEST(Brain, TooLargeBecomesInfinityAndNaNStays) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_brain(kInf), 0x7f80);
  EXPECT_EQ(float_to_brain(-kInf), 0xff80);
  EXPECT_EQ(float_to_brain(std::numeric_limits<float>::max()), 0x7f80);
  // The last float below the midpoint between the largest bfloat16 and 2^128.
  EXPECT_EQ(float_to_brain(std::bit_cast<float>(0x7f7f7fffu)), 0x7f7f);
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xff800001u, 0xffffffffu}) {
    const uint16_t brain = float_to_brain(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(brain_to_float(brain))) << bits;
    EXPECT_EQ(brain >> 15, bits >> 31) << bits;
    EXPECT_NE(brain & 0x40, 0) << bits;
  }
}

}  // namespace
}  // namespace quern
