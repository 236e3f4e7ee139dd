// SPDX-License-Identifier: Apache-2.0
// hyper_mix: each part by hand, strides, threads and refusals. The comparison with the reference library is
// tests/oracle/test_qwen4_mixer.py.
#include "ops/hyper_mix/hyper_mix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ops/hyper_mix/kernels.h"
#include "ops/kernel_list.h"
#include "tests/support/allocation_count.h"
#include "tests/support/elements.h"
#include "tests/support/one_node.h"

namespace quern::ops {

std::span<const VariantInfo> hyper_mix_variants();

namespace {

using support::Elements;
using support::kElementTypes;
using support::Machine;
using support::Random;

// Every instruction set that this processor has and a variant is written for, against the reference.
TEST(HyperMix, VariantsAgreeWithTheReference) {
  Machine reference;
  reference.context.features = {};
  int compared = 0, elements = 0, different = 0;
  std::set<cpu::Isa> isas;
  for (const VariantInfo& v : hyper_mix_variants()) isas.insert(v.isa);
  isas.erase(cpu::Isa::scalar);
  for (const cpu::Isa isa : isas) {
    if (!cpu::detect_features().has(isa)) continue;
    Machine variant;
    variant.context.features = *cpu::cap_features(cpu::detect_features(), cpu::isa_name(isa));
    Random random(3);
    for (const DType type : kElementTypes) {
      for (const int64_t hidden : {1, 7, 8, 9, 16, 31, 250}) {
        for (const int32_t streams : {2, 3, 4}) {
          const Elements n(type, hidden * streams), m(type, n.size()), y(type, hidden), z(type, streams);
          // Wide enough for both ends of the exponential.
          for (const auto* e : {&n, &y}) e->fill_normal(random);
          m.fill_normal(random, 40);
          z.fill_normal(random, 40);
          std::vector<float> seen[2];
          for (Machine* machine : {&reference, &variant}) {
            const Elements a(type, m.values()), u(type, hidden), x(type, n.values());
            const HyperMixParams params{type, 1, hidden, streams};
            ASSERT_TRUE(hyper_gate(machine->context, {type, 1, hidden * streams, streams}, {a.data(), 0}, "").ok());
            ASSERT_TRUE(hyper_mix(machine->context, params, {{n.data(), 0}, {m.data(), 0}, {u.data(), 0}}, "").ok());
            ASSERT_TRUE(
                hyper_scatter(machine->context, params, {{x.data(), 0}, {y.data(), 0}, {z.data(), 0}}, "").ok());
            auto& all = seen[machine == &variant];
            for (const auto* e : {&a, &u, &x}) {
              const auto values = e->values();
              all.insert(all.end(), values.begin(), values.end());
            }
          }
          // 2 ulp of the exponential and the operations behind it, of terms that are 4 at most. In bfloat16 a value
          // beside a midpoint may go to its other side; that is rare.
          for (size_t i = 0; i < seen[0].size(); i++) {
            const float step = type == DType::bf16 ? 0x1p-7f : 0x1p-21f;
            ASSERT_NEAR(seen[1][i], seen[0][i], step * std::max(std::fabs(seen[0][i]), 4.0f)) << hidden << " at " << i;
            if (type != DType::bf16) continue;
            elements++;
            different += seen[1][i] != seen[0][i];
          }
          compared++;
        }
      }
    }
  }
  EXPECT_LE(different * 500, elements);
  if (compared == 0) GTEST_SKIP() << "this processor has no instruction set with a variant";
}

TEST(HyperGate, IsSiluOfTheQuotient) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements a(type, {0, 4, -4, 400, -4000});
    ASSERT_TRUE(hyper_gate(machine.context, {type, 1, 5, 4}, {a.data(), 5}, "").ok());
    const Elements wanted(type, {0, 0.731058579f, -0.268941421f, 100, 0});
    for (int64_t i = 0; i < 5; i++) EXPECT_NEAR(a[i], wanted[i], 1e-7) << i;
  }
}

// Gates of 1/2 and 1 over two streams [1, 2 | 6, 8].
TEST(HyperMix, IsTheMeanOfGatedStreams) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements normed(type, {1, 2, 6, 8}), logits(type, {0, 0, 100, 0}), u(type, 2);
    ASSERT_TRUE(
        hyper_mix(machine.context, {type, 1, 2, 2}, {{normed.data(), 4}, {logits.data(), 4}, {u.data(), 2}}, "").ok());
    EXPECT_EQ(u.values(), (std::vector<float>{3.25f, 2.5f}));
  }
}

// The sum has more bits than a bfloat16, so r(sum / 3) differs from r(r(sum) / 3).
TEST(HyperMix, TheMeanIsRoundedOnce) {
  Machine machine;
  const Elements normed(DType::bf16, {1, 0x1.0ap+0f, 1}), logits(DType::bf16, {100, 100, 100});
  const Elements u(DType::bf16, 1);
  ASSERT_TRUE(
      hyper_mix(machine.context, {DType::bf16, 1, 1, 3}, {{normed.data(), 3}, {logits.data(), 3}, {u.data(), 1}}, "")
          .ok());
  const float sum = normed[0] + normed[1] + normed[2];
  const float once = BrainElement::round(sum / 3), twice = BrainElement::round(BrainElement::round(sum) / 3);
  ASSERT_NE(once, twice) << "the case shows nothing";
  EXPECT_EQ(u[0], once);
}

// Gates 2 * sigmoid(z / 2): 1 for z = 0, 2 for a large z; the addition goes to x, not to a norm of it.
TEST(HyperScatter, AddsTheGatedOutputToEveryStream) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements x(type, {1, 2, 3, 4}), y(type, {0.5f, -1}), z(type, {0, 100});
    ASSERT_TRUE(
        hyper_scatter(machine.context, {type, 1, 2, 2}, {{x.data(), 4}, {y.data(), 2}, {z.data(), 2}}, "").ok());
    EXPECT_EQ(x.values(), (std::vector<float>{1.5f, 1, 4, 2}));
  }
}

// The product and the sum are rounded apart.
TEST(HyperScatter, GateIsTwiceTheSigmoidOfTheLogitOverTheStreams) {
  Machine machine;
  // sigmoid(log(3)) = 3/4.
  const float logit = 4 * std::log(3.0f);
  const Elements x(DType::f32, 4), y(DType::f32, std::vector<float>{1}), z(DType::f32, {logit, -logit, 0, 400});
  ASSERT_TRUE(
      hyper_scatter(machine.context, {DType::f32, 1, 1, 4}, {{x.data(), 4}, {y.data(), 1}, {z.data(), 4}}, "").ok());
  for (int64_t c = 0; c < 4; c++)
    EXPECT_NEAR(x[c], (std::vector<float>{1.5f, 0.5f, 1, 2})[static_cast<size_t>(c)], 1e-6);
}

TEST(HyperScatter, RoundsTheProductBeforeTheSum) {
  Machine machine;
  // y * g = (1 + 2^-7) * (1 + 2^-7) has a bit at 2^-14, which the first rounding drops; the sum with 2^-8 would keep
  // it.
  const float gate_logit = 2 * std::log(0x1.02p-1f / (1 - 0x1.02p-1f));
  const Elements x(DType::bf16, {0x1p-8f, 0}), y(DType::bf16, std::vector<float>{0x1.02p+0f}),
      z(DType::bf16, {gate_logit, gate_logit});
  ASSERT_TRUE(
      hyper_scatter(machine.context, {DType::bf16, 1, 1, 2}, {{x.data(), 2}, {y.data(), 1}, {z.data(), 2}}, "").ok());
  EXPECT_EQ(x[0], BrainElement::round(0x1p-8f + x[1]));
}

TEST(HyperMix, StridesAndThreadsDoNotChangeTheBitsAndNothingIsAllocated) {
  constexpr int64_t kRows = 50, kHidden = 256;
  constexpr int32_t kStreams = 4;
  constexpr int64_t kWidth = kHidden * kStreams, kStride = kWidth + 3;
  for (const DType type : kElementTypes) {
    Random random(1);
    const Elements n(type, kRows * kStride), m(type, kRows * kStride), z(type, kRows * kStreams);
    for (const auto* e : {&n, &m, &z}) e->fill_normal(random, 2);
    const HyperMixParams params{type, kRows, kHidden, kStreams};
    const Elements u(type, kRows * kHidden), x(type, kRows * kStride);
    const auto run = [&](Machine& machine) {
      x.fill_normal(random, 0);
      EXPECT_EQ(support::allocations_in([&] {
                  EXPECT_TRUE(hyper_mix(machine.context, params,
                                        {{n.data(), kStride}, {m.data(), kStride}, {u.data(), kHidden}}, "")
                                  .ok());
                  EXPECT_TRUE(hyper_scatter(machine.context, params,
                                            {{x.data(), kStride}, {u.data(), kHidden}, {z.data(), kStreams}}, "")
                                  .ok());
                }),
                0);
      auto all = u.values();
      const auto scattered = x.values();
      all.insert(all.end(), scattered.begin(), scattered.end());
      return all;
    };
    Machine single(1), several(4);
    const auto one = run(single);
    EXPECT_EQ(one, run(several));
    for (int64_t i = 0; i < kRows; i++) EXPECT_EQ(x[i * kStride + kWidth], 0) << "wrote behind a row";
    const HyperMixParams last{type, 1, kHidden, kStreams};
    const Elements alone(type, kHidden);
    const int64_t at = (kRows - 1) * kStride;
    ASSERT_TRUE(hyper_mix(single.context, last,
                          {{element_at(type, n.data(), at), kStride},
                           {element_at(type, m.data(), at), kStride},
                           {alone.data(), kHidden}},
                          "")
                    .ok());
    for (int64_t j = 0; j < kHidden; j++) ASSERT_EQ(alone[j], u[(kRows - 1) * kHidden + j]);
  }
}

TEST(HyperMix, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto mix = hyper_mix(machine.context, {DType::f16, 1, 4, 4}, {}, "here");
  ASSERT_FALSE(mix.ok());
  EXPECT_EQ(mix.error().message(), "here: elements of type float16 are not supported (float32 or bfloat16)");
  const auto scatter = hyper_scatter(machine.context, {DType::f32, 1, 4, 1}, {}, "here");
  ASSERT_FALSE(scatter.ok());
  EXPECT_EQ(scatter.error().message(), "here: 1 streams of 4 elements are not allowed (2 or more, of 1 or more)");
  EXPECT_FALSE(hyper_gate(machine.context, {DType::f32, 1, 0, 4}, {}, "here").ok());
  EXPECT_TRUE(hyper_mix(machine.context, {DType::f32, 0, 4, 4}, {}, "here").ok());
}

}  // namespace
}  // namespace quern::ops
