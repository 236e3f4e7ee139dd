// SPDX-License-Identifier: Apache-2.0
// gated_norm: formula and roundings by hand, layouts, threads and refusals. The comparison with the reference library
// is tests/oracle/test_qwen4_mixer.py.
#include "ops/gated_norm/gated_norm.h"

#include <gtest/gtest.h>

#include "tests/support/allocation_count.h"
#include "tests/support/elements.h"
#include "tests/support/one_node.h"

namespace quern::ops {
namespace {

using support::Elements;
using support::kElementTypes;
using support::Machine;
using support::Random;

// Root mean square 5; the weight is plain, a gate of 0 is 1/2 under sigmoid and 0 under silu.
TEST(GatedNorm, PlainWeightsAndBothGates) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements x(type, {1, 7}), z(type, {0, 100}), weight(type, {2, 0.5f}), y(type, 2);
    const RowLayout row{1, 0, 2};
    GatedNormParams params{type, 1, 2, 0, Activation::sigmoid};
    const GatedNormArgs args{x.data(), row, z.data(), row, weight.data(), y.data(), row};
    ASSERT_TRUE(gated_norm(machine.context, params, args, "").ok());
    EXPECT_EQ(y[0], support::rounded(type, support::rounded(type, 0.2f) * 2 * 0.5f));
    EXPECT_EQ(y[1], support::rounded(type, support::rounded(type, 1.4f) * 0.5f));
    params.gate = Activation::silu;
    ASSERT_TRUE(gated_norm(machine.context, params, args, "").ok());
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], support::rounded(type, support::rounded(type, 1.4f) * 0.5f * 100));
  }
}

// Three roundings: an element for which leaving out either of the first two gives another result.
TEST(GatedNorm, RoundsTheNormTheWeightAndTheGate) {
  Machine machine;
  Random random(1);
  constexpr int64_t kN = 512;
  const Elements x(DType::bf16, kN), z(DType::bf16, kN), weight(DType::bf16, kN), y(DType::bf16, kN);
  for (const auto* e : {&x, &z, &weight}) e->fill_normal(random);
  const RowLayout row{1, 0, kN};
  ASSERT_TRUE(gated_norm(machine.context, {DType::bf16, 1, kN, 1e-6f, Activation::sigmoid},
                         {x.data(), row, z.data(), row, weight.data(), y.data(), row}, "")
                  .ok());
  double squares = 0;
  for (int64_t i = 0; i < kN; i++) squares += static_cast<double>(x[i]) * x[i];
  const float scale = 1 / std::sqrt(static_cast<float>(squares / kN) + 1e-6f);
  const auto r = BrainElement::round;
  int without_first = 0, without_second = 0;
  for (int64_t i = 0; i < kN; i++) {
    const float gate = sigmoid(z[i]);
    ASSERT_EQ(y[i], r(r(weight[i] * r(x[i] * scale)) * gate)) << i;
    without_first += y[i] != r(r(weight[i] * (x[i] * scale)) * gate);
    without_second += y[i] != r(weight[i] * r(x[i] * scale) * gate);
  }
  EXPECT_GT(without_first, 0);
  EXPECT_GT(without_second, 0);
}

TEST(GatedNorm, LayoutsAndThreadsDoNotChangeTheBitsAndNothingIsAllocated) {
  // 40 tokens of 6 heads; the gates lie behind something else in wider rows.
  constexpr int64_t kTokens = 40, kHeads = 6, kN = 128, kWide = 1000;
  for (const DType type : kElementTypes) {
    Random random(2);
    const Elements x(type, kTokens * kHeads * kN), z(type, kTokens * kWide), weight(type, kN);
    const Elements dense(type, x.size()), one(type, x.size()), many(type, x.size());
    for (const auto* e : {&x, &z, &weight}) e->fill_normal(random);
    const int64_t at = kWide - kHeads * kN;
    for (int64_t t = 0; t < kTokens; t++) {
      for (int64_t i = 0; i < kHeads * kN; i++) dense.set(t * kHeads * kN + i, z[t * kWide + at + i]);
    }
    const GatedNormParams params{type, kTokens * kHeads, kN, 1e-6f, Activation::sigmoid};
    const RowLayout rows{1, 0, kN}, heads{kHeads, kN, kWide};
    Machine single(1), several(4);
    ASSERT_TRUE(
        gated_norm(single.context, params, {x.data(), rows, dense.data(), rows, weight.data(), one.data(), rows}, "")
            .ok());
    const void* gates = element_at(type, static_cast<const void*>(z.data()), at);
    EXPECT_EQ(support::allocations_in([&] {
                EXPECT_TRUE(gated_norm(several.context, params,
                                       {x.data(), rows, gates, heads, weight.data(), many.data(), rows}, "")
                                .ok());
              }),
              0);
    EXPECT_EQ(one.values(), many.values());
    ASSERT_TRUE(
        gated_norm(single.context, params, {x.data(), rows, dense.data(), rows, weight.data(), x.data(), rows}, "")
            .ok());
    EXPECT_EQ(one.values(), x.values()) << "in place";
  }
}

TEST(GatedNorm, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto message = [&](const GatedNormParams& params) {
    const auto done = gated_norm(machine.context, params, {}, "here");
    return done.ok() ? std::string() : done.error().message();
  };
  EXPECT_EQ(message({DType::i8, 1, 4, 0, Activation::silu}),
            "here: elements of type int8 are not supported (float32 or bfloat16)");
  EXPECT_EQ(message({DType::f32, 1, 0, 0, Activation::silu}),
            "here: rows of 0 elements cannot be normalised (at least 1)");
  EXPECT_EQ(message({DType::f32, 1, 4, -1, Activation::silu}), "here: epsilon -1 is not allowed (0 or more)");
  EXPECT_EQ(message({DType::f32, 0, 4, 0, Activation::silu}), "");
}

}  // namespace
}  // namespace quern::ops
