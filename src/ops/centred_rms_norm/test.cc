// SPDX-License-Identifier: Apache-2.0
// centred_rms_norm: groups, layouts and roundings by hand, every variant against the reference, and refusals. The
// comparison with the reference library is tests/oracle/test_qwen4_mixer.py.
#include "ops/centred_rms_norm/centred_rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/centred_rms_norm/kernels.h"
#include "tests/support/allocation_count.h"
#include "tests/support/elements.h"
#include "tests/support/one_node.h"

namespace quern::ops {

#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(void symbol(const CentredRmsNormKernelArgs& k) noexcept;)
#include "ops/centred_rms_norm/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::Elements;
using support::kElementTypes;
using support::Machine;
using support::Random;

using Kernel = void(const CentredRmsNormKernelArgs&) noexcept;
const TypedVariant<Kernel> kVariants[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/centred_rms_norm/kernels.inc"
#undef QUERN_KERNEL
};

class CentredRmsNormVariant : public testing::TestWithParam<TypedVariant<Kernel>> {
 protected:
  void SetUp() override {
    if (!cpu::detect_features().has(GetParam().isa))
      GTEST_SKIP() << "this processor lacks " << cpu::isa_name(GetParam().isa);
  }
};

TEST_P(CentredRmsNormVariant, AgreesWithTheReferenceForEveryLengthAndGroup) {
  const DType type = GetParam().type;
  const auto reference = type == DType::bf16 ? &centred_rms_norm_bf16_reference : &centred_rms_norm_f32_reference;
  Random random(1);
  for (const int64_t group : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 1000, 2560}) {
    for (const int64_t groups : {1, 2, 4}) {
      const int64_t n = group * groups;
      const Elements x(type, n), weight(type, n), y(type, n), wanted(type, n);
      x.fill_normal(random, 3);
      weight.fill_normal(random, 0.3f);
      GetParam().run({x.data(), weight.data(), y.data(), n, group, 1e-6f});
      reference({x.data(), weight.data(), wanted.data(), n, group, 1e-6f});
      // The bound of the contract; in bfloat16 a value beside the midpoint of two may go either way.
      const float eps = std::numeric_limits<float>::epsilon() / 2;
      const float step = type == DType::bf16 ? 0x1p-7f : (static_cast<float>(group) / 16 + 8) * eps;
      for (int64_t i = 0; i < n; i++) ASSERT_NEAR(y[i], wanted[i], step * std::fabs(wanted[i])) << n << " at " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, CentredRmsNormVariant, testing::ValuesIn(kVariants),
                         [](const auto& line) { return std::string(line.param.symbol); });

// Root mean squares 5 and 10 in two groups, epsilon 0.
TEST(CentredRmsNorm, EachGroupHasItsOwnMeanAndWeightsAreAddedToOne) {
  Machine machine;
  for (const DType type : kElementTypes) {
    const Elements x(type, {1, 7, 2, -14}), weight(type, {0, 1, -0.5f, 0}), y(type, 4);
    ASSERT_TRUE(centred_rms_norm(machine.context, {type, 1, 4, 2, 0},
                                 {x.data(), {1, 0, 4}, weight.data(), y.data(), {1, 0, 4}}, "")
                    .ok());
    const std::vector<float> wanted{0.2f, 2.8f, 0.1f, -1.4f};
    for (int64_t i = 0; i < 4; i++) {
      EXPECT_EQ(y[i], support::rounded(type, wanted[static_cast<size_t>(i)])) << i;
    }
  }
}

// The product is rounded once, behind the weight: rounding x * s first would give another bfloat16.
TEST(CentredRmsNorm, RoundsOnce) {
  Machine machine;
  Random random(2);
  const Elements x(DType::bf16, 512), weight(DType::bf16, 512), y(DType::bf16, 512);
  x.fill_normal(random);
  weight.fill_normal(random, 0.3f);
  ASSERT_TRUE(centred_rms_norm(machine.context, {DType::bf16, 1, 512, 512, 1e-6f},
                               {x.data(), {1, 0, 512}, weight.data(), y.data(), {1, 0, 512}}, "")
                  .ok());
  double squares = 0;
  for (int64_t i = 0; i < 512; i++) squares += static_cast<double>(x[i]) * x[i];
  const double scale = 1 / std::sqrt(squares / 512 + 1e-6);
  for (int64_t i = 0; i < 512; i++) {
    const double exact = x[i] * scale * (1.0 + weight[i]);
    // Half a step of bfloat16, and a little for the float32 operations before the rounding.
    ASSERT_LE(std::fabs(y[i] - exact), std::fabs(exact) * 0x1.01p-8) << i;
  }
}

TEST(CentredRmsNorm, HeadsInsideWiderRowsAreRowsInPlace) {
  // Two tokens of [query | gate] for two heads of 4: the queries are normalised where they lie.
  for (const DType type : kElementTypes) {
    Machine machine;
    Random random(3);
    const Elements wide(type, 2 * 16), weight(type, 4), one(type, 4);
    wide.fill_normal(random);
    weight.fill_normal(random);
    const auto before = wide.values();
    const RowLayout heads{2, 8, 16};
    ASSERT_TRUE(centred_rms_norm(machine.context, {type, 4, 4, 4, 1e-6f},
                                 {wide.data(), heads, weight.data(), wide.data(), heads}, "")
                    .ok());
    for (int64_t i = 0; i < 32; i += 8) {
      const Elements row(type, std::vector<float>(before.begin() + i, before.begin() + i + 4));
      ASSERT_TRUE(centred_rms_norm(machine.context, {type, 1, 4, 4, 1e-6f},
                                   {row.data(), {1, 0, 4}, weight.data(), one.data(), {1, 0, 4}}, "")
                      .ok());
      for (int64_t j = 0; j < 4; j++) {
        EXPECT_EQ(wide[i + j], one[j]);
        EXPECT_EQ(wide[i + 4 + j], before[static_cast<size_t>(i + 4 + j)]) << "a gate changed";
      }
    }
  }
}

TEST(CentredRmsNorm, ThreadsDoNotChangeTheBitsAndNothingIsAllocated) {
  constexpr int64_t kRows = 40, kWidth = 1024;
  for (const DType type : kElementTypes) {
    Random random(4);
    const Elements x(type, kRows * kWidth), weight(type, kWidth), one(type, x.size()), many(type, x.size());
    x.fill_normal(random);
    weight.fill_normal(random);
    Machine single(1), several(4);
    const CentredRmsNormParams params{type, kRows, kWidth, 256, 1e-6f};
    const RowLayout rows{1, 0, kWidth};
    ASSERT_TRUE(centred_rms_norm(single.context, params, {x.data(), rows, weight.data(), one.data(), rows}, "").ok());
    EXPECT_EQ(
        support::allocations_in([&] {
          EXPECT_TRUE(
              centred_rms_norm(several.context, params, {x.data(), rows, weight.data(), many.data(), rows}, "").ok());
        }),
        0);
    EXPECT_EQ(one.values(), many.values());
  }
}

TEST(CentredRmsNorm, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto message = [&](const CentredRmsNormParams& params) {
    const auto done = centred_rms_norm(machine.context, params, {}, "here");
    return done.ok() ? std::string() : std::string(errc_name(done.error().code)) + " " + done.error().message();
  };
  EXPECT_EQ(message({DType::f16, 1, 4, 4, 0}),
            "unsupported here: elements of type float16 are not supported (float32 or bfloat16)");
  EXPECT_EQ(message({DType::f32, 1, 10, 4, 0}),
            "bad_request here: rows of 10 elements cannot be normalised in groups of 4");
  EXPECT_EQ(message({DType::f32, 1, 4, 0, 0}),
            "bad_request here: rows of 4 elements cannot be normalised in groups of 0");
  EXPECT_EQ(message({DType::f32, 1, 0, 1, 0}),
            "bad_request here: rows of 0 elements cannot be normalised in groups of 1");
  EXPECT_EQ(message({DType::f32, 1, 4, 4, -1}), "bad_request here: epsilon -1 is not allowed (0 or more)");
  EXPECT_EQ(message({DType::f32, 0, 4, 4, 0}), "");
}

}  // namespace
}  // namespace quern::ops
