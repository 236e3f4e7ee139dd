// SPDX-License-Identifier: Apache-2.0
// partial_rope: pairs and roundings by hand, layouts, threads and refusals, and the frequencies of the frozen
// checkpoint. The comparison with the reference library is tests/oracle/test_qwen4_mixer.py.
#include "ops/partial_rope/partial_rope.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "tests/support/allocation_count.h"
#include "tests/support/elements.h"
#include "tests/support/one_node.h"

namespace quern::ops {
namespace {

using support::Elements;
using support::kElementTypes;
using support::Machine;
using support::Random;

// inv_freq of theta 1e7 and 64 rotated elements, as Qwen4ExpTextRotaryEmbedding of transformers 5.17.0 with
// torch 2.13.0 (CPU) computes it; no seed is involved.
constexpr uint32_t kFrozenFrequencies[] = {
    0x3f800000u, 0x3f1ab32bu, 0x3ebaf81bu, 0x3e61f835u, 0x3e088d77u, 0x3da50956u, 0x3d47763fu, 0x3cf11177u,
    0x3c91ad39u, 0x3c301052u, 0x3bd4ca15u, 0x3b80967du, 0x3b1b690du, 0x3abbd3edu, 0x3a6301e2u, 0x3a092e02u,
    0x39a5cb60u, 0x394860c1u, 0x38f22ce2u, 0x3892587eu, 0x3830df52u, 0x37d5c441u, 0x37812dabu, 0x371c1fc4u,
    0x36bcb0c1u, 0x36640cc6u, 0x3609cf4au, 0x35a68e4cu, 0x35494c57u, 0x34f3499du, 0x3493048eu, 0x3431af44u};

TEST(RopeFrequencies, AreTheBitsOfTheReference) {
  std::array<float, 32> frequencies{};
  rope_frequencies(1e7, frequencies);
  for (size_t i = 0; i < frequencies.size(); i++) {
    EXPECT_EQ(std::bit_cast<uint32_t>(frequencies[i]), kFrozenFrequencies[i]) << i;
  }
}

TEST(PartialRope, AnglesAreProductsInFloat32) {
  // At this position a product in float64 lies more than 1e-3 away.
  const std::array<int64_t, 1> positions{262143};
  const std::array<float, 1> frequencies{0.604296386f};
  float c = 0, s = 0;
  fill_rope_table({DType::f32, positions, frequencies, &c, &s});
  const float angle = 262143.0f * frequencies[0];
  EXPECT_EQ(c, std::cos(angle));
  EXPECT_EQ(s, std::sin(angle));
  EXPECT_GT(std::fabs(std::cos(262143.0 * static_cast<double>(frequencies[0])) - static_cast<double>(c)), 1e-3);
  fill_rope_table({DType::bf16, positions, frequencies, &c, &s});
  EXPECT_EQ(c, BrainElement::round(std::cos(angle)));
  EXPECT_EQ(s, BrainElement::round(std::sin(angle)));
}

// Halves pair up, i with i + rotary / 2; the rest passes.
TEST(PartialRope, AQuarterTurnExchangesTheHalves) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements x(type, {1, 2, 3, 4, 5, 6}), y(type, 6);
    const std::array<float, 2> cos{0, 1}, sin{1, 0};
    const RowLayout row{1, 0, 6};
    ASSERT_TRUE(
        partial_rope(machine.context, {type, 1, 1, 6, 4}, {x.data(), row, cos.data(), sin.data(), y.data(), row}, "")
            .ok());
    EXPECT_EQ(y.values(), (std::vector<float>{-3, 2, 1, 4, 5, 6}));
  }
}

TEST(PartialRope, RoundsBothProductsAndTheSum) {
  Machine machine;
  Random random(1);
  constexpr int32_t kN = 256;
  const Elements x(DType::bf16, kN), y(DType::bf16, kN);
  x.fill_normal(random);
  std::vector<float> cos, sin;
  for (int i = 0; i < kN / 2; i++) {
    cos.push_back(BrainElement::round(random.uniform(-1, 1)));
    sin.push_back(BrainElement::round(random.uniform(-1, 1)));
  }
  const RowLayout row{1, 0, kN};
  ASSERT_TRUE(partial_rope(machine.context, {DType::bf16, 1, 1, kN, kN},
                           {x.data(), row, cos.data(), sin.data(), y.data(), row}, "")
                  .ok());
  const auto r = BrainElement::round;
  int differs = 0;
  for (int64_t i = 0; i < kN / 2; i++) {
    const float c = cos[static_cast<size_t>(i)], s = sin[static_cast<size_t>(i)];
    ASSERT_EQ(y[i], r(r(x[i] * c) + r(-x[i + kN / 2] * s)));
    ASSERT_EQ(y[i + kN / 2], r(r(x[i + kN / 2] * c) + r(x[i] * s)));
    differs += y[i] != r(x[i] * c - x[i + kN / 2] * s);
  }
  EXPECT_GT(differs, 0) << "the case shows nothing";
}

TEST(PartialRope, LayoutsAndThreadsDoNotChangeTheBitsAndNothingIsAllocated) {
  // Queries that lie interleaved with gates: [query | gate] for each head.
  constexpr int64_t kTokens = 60;
  constexpr int32_t kHeads = 5, kSize = 64, kRotary = 16;
  for (const DType type : kElementTypes) {
    Random random(2);
    const Elements x(type, kTokens * kHeads * 2 * kSize), one(type, kTokens * kHeads * kSize);
    x.fill_normal(random);
    const auto before = x.values();
    std::vector<float> cos(kTokens * kRotary / 2), sin(cos.size());
    random.fill_uniform(cos, -1, 1);
    random.fill_uniform(sin, -1, 1);
    const PartialRopeParams params{type, kTokens, kHeads, kSize, kRotary};
    const RowLayout wide{1, 0, 2 * kSize}, dense{1, 0, kSize};
    Machine single(1), several(4);
    ASSERT_TRUE(
        partial_rope(single.context, params, {x.data(), wide, cos.data(), sin.data(), one.data(), dense}, "").ok());
    EXPECT_EQ(
        support::allocations_in([&] {
          EXPECT_TRUE(
              partial_rope(several.context, params, {x.data(), wide, cos.data(), sin.data(), x.data(), wide}, "").ok());
        }),
        0);
    for (int64_t i = 0; i < kTokens * kHeads; i++) {
      for (int64_t j = 0; j < kSize; j++) {
        ASSERT_EQ(x[i * 2 * kSize + j], one[i * kSize + j]);
        ASSERT_EQ(x[(i * 2 + 1) * kSize + j], before[static_cast<size_t>((i * 2 + 1) * kSize + j)]);
      }
    }
  }
}

TEST(PartialRope, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto message = [&](const PartialRopeParams& params) {
    const auto done = partial_rope(machine.context, params, {}, "here");
    return done.ok() ? std::string() : done.error().message();
  };
  EXPECT_EQ(message({DType::f16, 1, 1, 8, 4}),
            "here: elements of type float16 are not supported (float32 or bfloat16)");
  EXPECT_EQ(message({DType::f32, 1, 0, 8, 4}), "here: 0 heads of 8 elements are not allowed (1 or more)");
  EXPECT_EQ(message({DType::f32, 1, 1, 8, 3}),
            "here: 3 rotated elements are not allowed (even, up to the head size 8)");
  EXPECT_EQ(message({DType::f32, 1, 1, 8, 10}),
            "here: 10 rotated elements are not allowed (even, up to the head size 8)");
  EXPECT_EQ(message({DType::f32, 0, 1, 8, 4}), "");
}

}  // namespace
}  // namespace quern::ops
