// SPDX-License-Identifier: Apache-2.0
// short_conv: taps, dilation and the state by hand, calls of any length, threads and refusals. The comparison with the
// reference library is tests/oracle/test_qwen4_mixer.py.
#include "ops/short_conv/short_conv.h"

#include <gtest/gtest.h>

#include <array>

#include "ops/activation.h"
#include "tests/support/allocation_count.h"
#include "tests/support/elements.h"
#include "tests/support/one_node.h"

namespace quern::ops {
namespace {

using support::Elements;
using support::kElementTypes;
using support::Machine;
using support::Random;

TEST(ShortConv, TheLastTapMeetsTheCurrentTokenAndTheStateComesFirst) {
  Machine machine;
  for (const DType type : kElementTypes) {
    // One channel, taps 1 10 100, dilation 2: y[t] = x[t-4] + 10 x[t-2] + 100 x[t].
    const Elements x(type, {0.5f, 0.25f}), w(type, {1, 10, 100}), state(type, {1, 2, 3, 4}), y(type, 2);
    ASSERT_TRUE(
        short_conv(machine.context, {type, 2, 1, 3, 2}, {{x.data(), 1}, w.data(), state.data(), {y.data(), 1}}, "")
            .ok());
    EXPECT_EQ(y.values(), (std::vector<float>{1 + 30 + 50, support::rounded(type, 2 + 40 + 25)}));
    EXPECT_EQ(state.values(), (std::vector<float>{3, 4, 0.5f, 0.25f}));
  }
}

TEST(ShortConv, ALongCallLeavesItsLastRowsAndOneTapLeavesNone) {
  Machine machine;
  const Elements x(DType::f32, {1, 2, 3, 4, 5}), w(DType::f32, {0, 0, 1}), state(DType::f32, {9, 9}), y(DType::f32, 5);
  ASSERT_TRUE(
      short_conv(machine.context, {DType::f32, 5, 1, 3, 1}, {{x.data(), 1}, w.data(), state.data(), {y.data(), 1}}, "")
          .ok());
  EXPECT_EQ(state.values(), (std::vector<float>{4, 5}));
  EXPECT_EQ(y[4], silu(5));
  const Elements scale(DType::f32, std::vector<float>{2});
  ASSERT_TRUE(
      short_conv(machine.context, {DType::f32, 5, 1, 1, 7}, {{x.data(), 1}, scale.data(), nullptr, {y.data(), 1}}, "")
          .ok());
  EXPECT_EQ(y[4], silu(10));
}

TEST(ShortConv, RoundsTheSumBeforeTheActivation) {
  Machine machine;
  // 1 + 2^-9 is 1 as bfloat16.
  const Elements x(DType::bf16, std::vector<float>{1}), w(DType::bf16, {0x1p-9f, 1}), y(DType::bf16, 1);
  const Elements state(DType::bf16, std::vector<float>{1});
  ASSERT_TRUE(
      short_conv(machine.context, {DType::bf16, 1, 1, 2, 1}, {{x.data(), 1}, w.data(), state.data(), {y.data(), 1}}, "")
          .ok());
  EXPECT_EQ(y[0], BrainElement::round(silu(1)));
}

TEST(ShortConv, PiecesStridesAndThreadsDoNotChangeTheBitsAndNothingIsAllocated) {
  constexpr int64_t kTokens = 40, kChannels = 150, kStride = 170;
  constexpr int32_t kTaps = 4, kDilation = 3;
  constexpr int64_t kPast = short_conv_past(kTaps, kDilation);
  for (const DType type : kElementTypes) {
    Random random(1);
    const Elements x(type, kTokens * kStride), w(type, kChannels * kTaps);
    const Elements begin(type, kPast * kChannels), whole_state(type, begin.size()), state(type, begin.size());
    for (const auto* e : {&x, &w, &begin}) e->fill_normal(random);
    for (int64_t i = 0; i < begin.size(); i++) {
      whole_state.set(i, begin[i]);
      state.set(i, begin[i]);
    }
    const Elements whole(type, kTokens * kStride), pieces(type, whole.size());
    Machine single(1), several(4);
    ASSERT_TRUE(short_conv(single.context, {type, kTokens, kChannels, kTaps, kDilation},
                           {{x.data(), kStride}, w.data(), whole_state.data(), {whole.data(), kStride}}, "")
                    .ok());
    int64_t at = 0;
    for (const int64_t tokens : std::array<int64_t, 6>{1, 2, 9, 1, 20, 7}) {
      EXPECT_EQ(support::allocations_in([&] {
                  EXPECT_TRUE(short_conv(several.context, {type, tokens, kChannels, kTaps, kDilation},
                                         {{element_at(type, x.data(), at * kStride), kStride},
                                          w.data(),
                                          state.data(),
                                          {element_at(type, pieces.data(), at * kStride), kStride}},
                                         "")
                                  .ok());
                }),
                0);
      at += tokens;
    }
    ASSERT_EQ(at, kTokens);
    EXPECT_EQ(whole.values(), pieces.values());
    EXPECT_EQ(whole_state.values(), state.values());
    EXPECT_EQ(whole[kChannels], 0) << "wrote behind a row";
  }
}

TEST(ShortConv, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto message = [&](const ShortConvParams& params) {
    const auto done = short_conv(machine.context, params, {}, "here");
    return done.ok() ? std::string() : done.error().message();
  };
  EXPECT_EQ(message({DType::f16, 1, 1, 1, 1}),
            "here: elements of type float16 are not supported (float32 or bfloat16)");
  EXPECT_EQ(message({DType::f32, 1, 1, 0, 3}),
            "here: 1 channels, 0 taps and a dilation of 3 are not allowed (1 or more of each)");
  EXPECT_FALSE(message({DType::f32, 1, 0, 1, 1}).empty());
  EXPECT_FALSE(message({DType::f32, 1, 1, 1, 0}).empty());
  EXPECT_EQ(message({DType::f32, 0, 1, 1, 1}), "");
}

}  // namespace
}  // namespace quern::ops
