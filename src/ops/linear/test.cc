// SPDX-License-Identifier: Apache-2.0
// linear: every variant against the reference, one order of summation for all, rounding, strides and refusals. The
// comparison with the reference library is tests/oracle/test_qwen4_mixer.py.
#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/checked.h"
#include "ops/linear/kernels.h"
#include "ops/linear/layout.h"
#include "tests/support/allocation_count.h"
#include "tests/support/elements.h"
#include "tests/support/one_node.h"

namespace quern::ops {

#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(void symbol(const LinearKernelArgs& k) noexcept;)
#include "ops/linear/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::Elements;
using support::kElementTypes;
using support::Machine;
using support::Random;

using Kernel = void(const LinearKernelArgs&) noexcept;
const TypedVariant<Kernel> kVariants[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/linear/kernels.inc"
#undef QUERN_KERNEL
};

// Rows of x as a kernel wants them: padded with zeros, aligned, in the order of layout.h.
struct PaddedRows {
  PaddedRows(DType weight_type, const std::vector<float>& x, int64_t rows, int64_t k)
      : ld(ceil_div(k, kLinearStep) * kLinearStep), storage(static_cast<size_t>(rows * ld) + 16) {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    data = storage.data() + (64 - address % 64) % 64 / 4;
    for (int64_t i = 0; i < rows; i++) {
      for (int64_t d = 0; d < k; d++) data[i * ld + linear_place(weight_type, d)] = x[static_cast<size_t>(i * k + d)];
    }
  }
  int64_t ld;
  std::vector<float> storage;
  float* data;
};

class LinearVariant : public testing::TestWithParam<TypedVariant<Kernel>> {
 protected:
  void SetUp() override {
    if (!cpu::detect_features().has(GetParam().isa))
      GTEST_SKIP() << "this processor lacks " << cpu::isa_name(GetParam().isa);
  }
};

TEST_P(LinearVariant, AgreesWithTheReferenceForEverySize) {
  const DType type = GetParam().type;
  const auto reference = type == DType::bf16 ? &linear_bf16_reference : &linear_f32_reference;
  Random random(1);
  for (const int64_t m : {1, 2, 3, 4, 5, 8, 9}) {
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
      for (const int64_t k : {1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 65, 260}) {
        std::vector<float> x(static_cast<size_t>(m * k));
        random.fill_normal(x);
        const PaddedRows rows(type, x, m, k);
        const Elements w(type, n * k), y(DType::f32, m * n), wanted(DType::f32, m * n);
        w.fill_normal(random);
        y.fill_normal(random);
        GetParam().run({rows.data, rows.ld, w.data(), static_cast<float*>(y.data()), n, m, n, k});
        reference({rows.data, rows.ld, w.data(), static_cast<float*>(wanted.data()), n, m, n, k});
        for (int64_t i = 0; i < m; i++) {
          for (int64_t j = 0; j < n; j++) {
            double magnitude = 0;
            for (int64_t d = 0; d < k; d++) {
              magnitude += std::fabs(static_cast<double>(x[static_cast<size_t>(i * k + d)]) * w[j * k + d]);
            }
            // The bound of the contract.
            const double bound =
                (static_cast<double>(k) / 16 + 6) * std::numeric_limits<float>::epsilon() / 2 * magnitude;
            ASSERT_NEAR(y[i * n + j], wanted[i * n + j], bound)
                << m << " x " << n << " x " << k << " at " << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST_P(LinearVariant, ARowHasTheSameBitsAloneAndAmongOthers) {
  const DType type = GetParam().type;
  constexpr int64_t kM = 11, kN = 21, kK = 330;
  Random random(2);
  std::vector<float> x(kM * kK);
  random.fill_normal(x);
  const PaddedRows rows(type, x, kM, kK);
  const Elements w(type, kN * kK), all(DType::f32, kM * kN), one(DType::f32, kN);
  w.fill_normal(random);
  GetParam().run({rows.data, rows.ld, w.data(), static_cast<float*>(all.data()), kN, kM, kN, kK});
  for (int64_t i = 0; i < kM; i++) {
    GetParam().run({rows.data + i * rows.ld, rows.ld, w.data(), static_cast<float*>(one.data()), kN, 1, kN, kK});
    for (int64_t j = 0; j < kN; j++) ASSERT_EQ(one[j], all[i * kN + j]) << i << ", " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, LinearVariant, testing::ValuesIn(kVariants),
                         [](const auto& line) { return std::string(line.param.symbol); });

TEST(Linear, VectorVariantsGiveTheSameBits) {
  constexpr int64_t kM = 6, kN = 19, kK = 1000;
  for (const DType type : kElementTypes) {
    Random random(3);
    std::vector<float> x(kM * kK), first;
    random.fill_normal(x);
    const PaddedRows rows(type, x, kM, kK);
    const Elements w(type, kN * kK);
    w.fill_normal(random);
    int compared = 0;
    for (const auto& v : kVariants) {
      if (v.type != type || v.isa == cpu::Isa::scalar || !cpu::detect_features().has(v.isa)) continue;
      std::vector<float> y(kM * kN);
      v.run({rows.data, rows.ld, w.data(), y.data(), kN, kM, kN, kK});
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << v.symbol;
      compared++;
    }
    if (compared < 2) GTEST_SKIP() << "this processor has fewer than two vector variants";
  }
}

TEST(Linear, HandComputedForEveryMixOfTypes) {
  Machine machine;
  for (const DType type : kElementTypes) {
    for (const DType weight_type : kElementTypes) {
      const Elements x(type, {1, 2, 3, 4, 5, 6}), w(weight_type, {1, 0, -1, 0.5f, 2, 1}), y(type, 4);
      ASSERT_TRUE(
          linear(machine.context, {type, weight_type, 2, 2, 3}, {{x.data(), 3}, w.data(), {y.data(), 2}}, "").ok());
      EXPECT_EQ(y.values(), (std::vector<float>{-2, 7.5f, -2, 18}));
    }
  }
}

// 1 + 2^-8 is a tie in bfloat16 and rounds to the even 1; a sum that rounded its parts would be 1 + 2^-7.
TEST(Linear, RoundsOnceToTheTypeOfTheResult) {
  Machine machine;
  const Elements x(DType::bf16, {1, 1, 1}), w(DType::bf16, {1, 0x1p-9f, 0x1p-9f}), y(DType::bf16, 1);
  ASSERT_TRUE(
      linear(machine.context, {DType::bf16, DType::bf16, 1, 1, 3}, {{x.data(), 3}, w.data(), {y.data(), 1}}, "").ok());
  EXPECT_EQ(y[0], 1);
  const Elements more(DType::bf16, {1, 0x1p-8f, 0x1p-12f});
  ASSERT_TRUE(
      linear(machine.context, {DType::bf16, DType::bf16, 1, 1, 3}, {{x.data(), 3}, more.data(), {y.data(), 1}}, "")
          .ok());
  EXPECT_EQ(y[0], 0x1.02p+0f);
}

TEST(Linear, ThreadsStridesAndNumberOfRowsDoNotChangeTheBits) {
  constexpr int64_t kM = 130, kN = 150, kK = 100, kStride = 107;
  for (const DType type : kElementTypes) {
    Random random(4);
    const Elements x(type, kM * kStride), w(type, kN * kK), one(type, kM * kStride * 2), many(type, one.size()),
        row(type, kN);
    for (const auto* e : {&x, &w}) e->fill_normal(random);
    Machine single(1), several(4);
    const LinearParams params{type, type, kM, kN, kK};
    ASSERT_TRUE(linear(single.context, params, {{x.data(), kStride}, w.data(), {one.data(), 2 * kStride}}, "").ok());
    ASSERT_TRUE(linear(several.context, params, {{x.data(), kStride}, w.data(), {many.data(), 2 * kStride}}, "").ok());
    EXPECT_EQ(one.values(), many.values());
    for (const int64_t i : {int64_t{0}, int64_t{63}, int64_t{64}, kM - 1}) {
      ASSERT_TRUE(linear(several.context, {type, type, 1, kN, kK},
                         {{element_at(type, x.data(), i * kStride), kStride}, w.data(), {row.data(), kN}}, "")
                      .ok());
      for (int64_t j = 0; j < kN; j++) ASSERT_EQ(row[j], one[i * 2 * kStride + j]) << i;
      for (int64_t j = kN; j < 2 * kStride; j++) ASSERT_EQ(one[i * 2 * kStride + j], 0) << "wrote behind a row";
    }
  }
}

TEST(Linear, CountsTheWeightsItReadsAndAllocatesNothingInTheSteadyState) {
  Machine machine(2);
  Random random(5);
  const Elements x(DType::bf16, 64), w(DType::bf16, 4096 * 64), y(DType::bf16, 4096);
  for (const auto* e : {&x, &w}) e->fill_normal(random);
  const auto run = [&] {
    EXPECT_TRUE(linear(machine.context, {DType::bf16, DType::bf16, 1, 4096, 64},
                       {{x.data(), 64}, w.data(), {y.data(), 4096}}, "")
                    .ok());
  };
  run();
  EXPECT_EQ(machine.counters.weight_bytes_read, 4096u * 64 * 2);
  EXPECT_EQ(support::allocations_in(run), 0);
  machine.context.counters = nullptr;  // nobody counts
  run();
}

TEST(Linear, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto message = [&](const LinearParams& params) {
    const auto done = linear(machine.context, params, {}, "here");
    return done.ok() ? std::string() : done.error().message();
  };
  EXPECT_EQ(message({DType::f16, DType::f32, 1, 1, 1}),
            "here: elements of type float16 are not supported (float32 or bfloat16)");
  EXPECT_EQ(message({DType::f32, DType::u8, 1, 1, 1}),
            "here: elements of type uint8 are not supported (float32 or bfloat16)");
  EXPECT_EQ(message({DType::f32, DType::f32, 1, 0, 1}),
            "here: weights of 0 rows of 1 elements are not allowed (1 or more)");
  EXPECT_EQ(message({DType::f32, DType::f32, 1, 1, 0}),
            "here: weights of 1 rows of 0 elements are not allowed (1 or more)");
  EXPECT_EQ(message({DType::f32, DType::f32, 0, 1, 1}), "");
}

}  // namespace
}  // namespace quern::ops
