// SPDX-License-Identifier: Apache-2.0
// ple_gate: the gate at its special points and its roundings, strides, threads and refusals. The comparison with the
// reference library is tests/oracle/test_qwen4_mixer.py.
#include "ops/ple_gate/ple_gate.h"

#include <gtest/gtest.h>

#include <cmath>

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

// Two streams of 4, sqrt(H) = 2: d = 8 / 2 = 4 gives a gate of sigmoid(2), d = -18 / 2 one of sigmoid(-3).
TEST(PleGate, IsTheSigmoidOfTheSignedRootForEachStream) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements k(type, {1, 1, 1, 1, 2, 0, 0, 1}), q(type, {2, 2, 2, 2, -8, 5, 5, -2}), v(type, {1, 2, 4, -8});
    const Elements g(type, 8);
    ASSERT_TRUE(
        ple_gate(machine.context, {type, 1, 4, 2}, {{k.data(), 8}, {q.data(), 8}, {v.data(), 4}, {g.data(), 8}}, "")
            .ok());
    const float first = support::rounded(type, sigmoid(2)), second = support::rounded(type, sigmoid(-3));
    EXPECT_EQ(g.values(), (std::vector<float>{first, 2 * first, 4 * first, -8 * first, second, 2 * second, 4 * second,
                                              -8 * second}));
  }
}

TEST(PleGate, ZeroGivesAHalfAndTinyOnesTheFloorWithTheirSign) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements k(type, {0, 0x1p-60f, -0x1p-60f}), q(type, {5, 1, 1}), v(type, std::vector<float>{1});
    const Elements g(type, 3);
    ASSERT_TRUE(
        ple_gate(machine.context, {type, 1, 1, 3}, {{k.data(), 3}, {q.data(), 3}, {v.data(), 1}, {g.data(), 3}}, "")
            .ok());
    const float root = support::rounded(type, std::sqrt(support::rounded(type, 1e-6f)));
    EXPECT_NEAR(root, 1e-3f, 1e-5f);
    EXPECT_EQ(g[0], 0.5f);
    EXPECT_EQ(g[1], support::rounded(type, sigmoid(root)));
    EXPECT_EQ(g[2], support::rounded(type, sigmoid(-root)));
  }
}

// Products, their sum, the quotient by sqrt(H), the root and the sigmoid are rounded one after the other.
TEST(PleGate, RoundsEveryStep) {
  constexpr int64_t kHidden = 80, kRows = 200;
  Machine machine;
  Random random(1);
  const Elements k(DType::bf16, kRows * kHidden), q(DType::bf16, k.size()), v(DType::bf16, kRows * kHidden),
      g(DType::bf16, k.size());
  k.fill_normal(random);
  q.fill_normal(random);
  for (int64_t i = 0; i < v.size(); i++) v.set(i, 1);
  ASSERT_TRUE(ple_gate(machine.context, {DType::bf16, kRows, kHidden, 1},
                       {{k.data(), kHidden}, {q.data(), kHidden}, {v.data(), kHidden}, {g.data(), kHidden}}, "")
                  .ok());
  const auto r = BrainElement::round;
  int without[3] = {0, 0, 0};
  for (int64_t i = 0; i < kRows; i++) {
    double sum = 0, plain_sum = 0;
    for (int64_t j = i * kHidden; j < (i + 1) * kHidden; j++) {
      sum += static_cast<double>(r(k[j] * q[j]));
      plain_sum += static_cast<double>(k[j] * q[j]);
    }
    const auto gate_of = [&](float d) {
      const float size = r(std::sqrt(std::fabs(d)));
      return r(sigmoid(d < 0 ? -size : size));
    };
    const float root = std::sqrt(80.0f);
    ASSERT_EQ(g[i * kHidden], gate_of(r(r(static_cast<float>(sum)) / root))) << i;
    without[0] += g[i * kHidden] != gate_of(r(r(static_cast<float>(plain_sum)) / root));
    without[1] += g[i * kHidden] != gate_of(r(static_cast<float>(sum) / root));
    without[2] += g[i * kHidden] != gate_of(r(r(static_cast<float>(sum)) / r(root)));
  }
  for (const int differs : without) EXPECT_GT(differs, 0) << "the case shows nothing";
}

TEST(PleAdd, RoundsTheInnerSum) {
  Machine machine;
  // 1 + 2^-8 is 1 as bfloat16, so the inner sum loses what would be 1 + 2^-7 together with x.
  const Elements x(DType::bf16, {0x1p-8f, 1}), g(DType::bf16, {1, 2}), h(DType::bf16, {0x1p-8f, 3});
  ASSERT_TRUE(ple_add(machine.context, {DType::bf16, 1, 2, 1}, {{x.data(), 2}, {g.data(), 2}, {h.data(), 2}}, "").ok());
  EXPECT_EQ(x.values(), (std::vector<float>{1, 6}));
  const Elements wide(DType::f32, {0x1p-8f, 1}), wide_g(DType::f32, {1, 2}), wide_h(DType::f32, {0x1p-8f, 3});
  ASSERT_TRUE(
      ple_add(machine.context, {DType::f32, 1, 2, 1}, {{wide.data(), 2}, {wide_g.data(), 2}, {wide_h.data(), 2}}, "")
          .ok());
  EXPECT_EQ(wide.values(), (std::vector<float>{0x1.02p+0f, 6}));
}

TEST(PleGate, StridesAndThreadsDoNotChangeTheBitsAndNothingIsAllocated) {
  constexpr int64_t kRows = 60, kHidden = 100;
  constexpr int32_t kStreams = 4;
  constexpr int64_t kWidth = kHidden * kStreams, kStride = kWidth + 5;
  for (const DType type : kElementTypes) {
    Random random(2);
    const Elements k(type, kRows * kStride), q(type, k.size()), v(type, kRows * kHidden), g(type, k.size()),
        x(type, k.size());
    for (const auto* e : {&k, &q, &v}) e->fill_normal(random);
    const PleParams params{type, kRows, kHidden, kStreams};
    const auto run = [&](Machine& machine) {
      x.fill_normal(random, 0);
      EXPECT_EQ(support::allocations_in([&] {
                  EXPECT_TRUE(
                      ple_gate(machine.context, params,
                               {{k.data(), kStride}, {q.data(), kStride}, {v.data(), kHidden}, {g.data(), kStride}}, "")
                          .ok());
                  EXPECT_TRUE(ple_add(machine.context, params,
                                      {{x.data(), kStride}, {g.data(), kStride}, {k.data(), kStride}}, "")
                                  .ok());
                }),
                0);
      return x.values();
    };
    Machine single(1), several(4);
    EXPECT_EQ(run(single), run(several));
    EXPECT_EQ(x[kWidth], 0) << "wrote behind a row";
  }
}

TEST(PleGate, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto gate = ple_gate(machine.context, {DType::f16, 1, 4, 4}, {}, "here");
  ASSERT_FALSE(gate.ok());
  EXPECT_EQ(gate.error().message(), "here: elements of type float16 are not supported (float32 or bfloat16)");
  const auto add = ple_add(machine.context, {DType::f32, 1, 0, 4}, {}, "here");
  ASSERT_FALSE(add.ok());
  EXPECT_EQ(add.error().message(), "here: 4 streams of 0 elements are not allowed (1 or more)");
  EXPECT_TRUE(ple_gate(machine.context, {DType::f32, 0, 4, 4}, {}, "here").ok());
}

}  // namespace
}  // namespace quern::ops
