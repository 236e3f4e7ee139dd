// SPDX-License-Identifier: Apache-2.0
// Every variant of matmul against the reference, NumPy's shape rules, and the independence of rows and threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/kernel_list.h"
#include "ops/matmul/kernels.h"
#include "ops/matmul/matmul.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_matmul(const NodeView& node, const PrepareContext& ctx);
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa(void symbol(const MatMulKernelArgs& k) noexcept;)
#include "ops/matmul/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::GuardedArray;
using support::Machine;
using support::OneNode;
using support::OwnedTensor;
using support::Random;
using support::tensor;

using Kernel = void(const MatMulKernelArgs&) noexcept;
const Variant<Kernel> kVariants[] = {
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa({cpu::Isa::isa, &symbol, #symbol}, )
#include "ops/matmul/kernels.inc"
#undef QUERN_KERNEL
};

alignas(64) float panel[kMatMulPanelFloats];

class MatMulVariant : public testing::TestWithParam<Variant<Kernel>> {
 protected:
  void SetUp() override {
    if (!cpu::detect_features().has(GetParam().isa))
      GTEST_SKIP() << "this processor lacks " << cpu::isa_name(GetParam().isa);
  }
};

TEST_P(MatMulVariant, AgreesWithTheReferenceForEverySize) {
  Random random(1);
  for (int64_t m : {1, 2, 4, 5, 6, 7, 8, 9, 17}) {
    for (int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 64}) {
      for (int64_t k : {1, 3, 7, 8, 9, 64, 255, 256, 257, 520}) {
        const GuardedArray<float> a(static_cast<size_t>(m * k)), b(static_cast<size_t>(k * n)),
            y(static_cast<size_t>(m * n));
        const GuardedArray<float> wanted(y.size());
        random.fill_normal(a.span());
        random.fill_normal(b.span());
        std::fill(y.begin(), y.end(), std::nanf(""));
        MatMulKernelArgs args{a.data(), k, b.data(), n, y.data(), n, m, n, k, panel};
        GetParam().run(args);
        args.y = wanted.data();
        matmul_f32_reference(args);
        for (int64_t i = 0; i < m; i++) {
          for (int64_t j = 0; j < n; j++) {
            double magnitude = 0;
            for (int64_t l = 0; l < k; l++) {
              magnitude +=
                  std::fabs(static_cast<double>(a[static_cast<size_t>(i * k + l)]) * b[static_cast<size_t>(l * n + j)]);
            }
            // The bound of the contract.
            const double bound = static_cast<double>(k + 1) * std::numeric_limits<float>::epsilon() / 2 * magnitude;
            const auto at = static_cast<size_t>(i * n + j);
            ASSERT_NEAR(y[at], wanted[at], bound) << m << " x " << k << " x " << n << " at " << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST_P(MatMulVariant, BlocksOfLargerMatricesLeaveTheRestAlone) {
  constexpr int64_t kM = 7, kN = 21, kK = 19, kLda = 25, kLdb = 40, kLdy = 33;
  Random random(2);
  std::vector<float> a(kM * kLda), b(kK * kLdb), y(kM * kLdy, 7), wanted(y);
  random.fill_normal(a);
  random.fill_normal(b);
  MatMulKernelArgs args{a.data(), kLda, b.data() + 1, kLdb, y.data() + 3, kLdy, kM, kN, kK, panel};
  GetParam().run(args);
  args.y = wanted.data() + 3;
  matmul_f32_reference(args);
  for (size_t i = 0; i < y.size(); i++) ASSERT_NEAR(y[i], wanted[i], 1e-4) << i;
  EXPECT_EQ(y[2], 7);
  EXPECT_EQ(y[3 + kN], 7);
}

TEST_P(MatMulVariant, ARowHasTheSameBitsAloneAndAmongOthers) {
  constexpr int64_t kM = 13, kN = 45, kK = 700;
  Random random(3);
  std::vector<float> a(kM * kK), b(kK * kN), y(kM * kN), row(kN);
  random.fill_normal(a);
  random.fill_normal(b);
  GetParam().run({a.data(), kK, b.data(), kN, y.data(), kN, kM, kN, kK, panel});
  for (int64_t i = 0; i < kM; i++) {
    GetParam().run({a.data() + i * kK, kK, b.data(), kN, row.data(), kN, 1, kN, kK, panel});
    ASSERT_TRUE(std::equal(row.begin(), row.end(), y.begin() + i * kN)) << i;
  }
}

TEST_P(MatMulVariant, UnalignedWeightsAreRead) {
  Random random(4);
  std::vector<float> a(3 * 10), b(10 * 33), y(3 * 33), wanted(3 * 33);
  random.fill_normal(a);
  random.fill_normal(b);
  std::vector<std::byte> storage(b.size() * 4 + 1);
  std::memcpy(storage.data() + 1, b.data(), b.size() * 4);
  GetParam().run({a.data(), 10, b.data(), 33, wanted.data(), 33, 3, 33, 10, panel});
  GetParam().run(
      {a.data(), 10, reinterpret_cast<const float*>(storage.data() + 1), 33, y.data(), 33, 3, 33, 10, panel});
  EXPECT_EQ(y, wanted);
}

INSTANTIATE_TEST_SUITE_P(Every, MatMulVariant, testing::ValuesIn(kVariants),
                         [](const auto& line) { return std::string(line.param.symbol); });

TEST(MatMul, VectorVariantsGiveTheSameBits) {
  constexpr int64_t kM = 9, kN = 77, kK = 600;
  Random random(5);
  std::vector<float> a(kM * kK), b(kK * kN), first;
  random.fill_normal(a);
  random.fill_normal(b);
  int compared = 0;
  for (const auto& v : kVariants) {
    if (v.isa == cpu::Isa::scalar || !cpu::detect_features().has(v.isa)) continue;
    std::vector<float> y(kM * kN);
    v.run({a.data(), kK, b.data(), kN, y.data(), kN, kM, kN, kK, panel});
    if (first.empty()) first = y;
    EXPECT_EQ(y, first) << v.symbol;
    compared++;
  }
  if (compared < 2) GTEST_SKIP() << "this processor has fewer than two vector variants";
}

TEST(MatMul, HandComputedProduct) {
  Machine machine;
  machine.context.features = {};
  const std::vector<float> a{1, 2, 3, 4, 5, 6}, b{1, 0, 0, 1, -1, 2};
  std::vector<float> y(4);
  ASSERT_TRUE(matmul(machine.context, {{2, 3}, {3, 2}}, {a.data(), b.data(), y.data()}, "").ok());
  EXPECT_EQ(y, (std::vector<float>{-2, 8, -2, 17}));
}

TEST(MatMul, ShapeRules) {
  struct Rule {
    Shape a, b;
    std::optional<Shape> wanted;
  };
  const std::vector<Rule> rules{
      {{2, 3}, {3, 4}, Shape{2, 4}},
      {{3}, {3, 4}, Shape{4}},
      {{2, 3}, {3}, Shape{2}},
      {{3}, {3}, Shape{}},
      {{5, 2, 3}, {3, 4}, Shape{5, 2, 4}},
      {{5, 2, 3}, {5, 3, 4}, Shape{5, 2, 4}},
      {{1, 2, 3}, {5, 3, 4}, Shape{5, 2, 4}},
      {{2, 3}, {5, 3, 4}, Shape{5, 2, 4}},
      {{3}, {5, 3, 4}, Shape{5, 4}},
      {{5, 2, 3}, {3}, Shape{5, 2}},
      {{5, 1, 2, 3}, {6, 3, 4}, Shape{5, 6, 2, 4}},
      {{0, 3}, {3, 4}, Shape{0, 4}},
      {{2, 0}, {0, 4}, Shape{2, 4}},
      {{2, 3}, {4, 3}, std::nullopt},
      {{2, 3}, {4}, std::nullopt},
      {{}, {3}, std::nullopt},
      {{3}, {}, std::nullopt},
      {{5, 2, 3}, {4, 3, 4}, std::nullopt},
      {{int64_t{1} << 40, 1}, {1, int64_t{1} << 40}, std::nullopt},
  };
  for (const Rule& r : rules) {
    const auto got = matmul_shape(r.a, r.b, "here");
    ASSERT_EQ(got.ok(), r.wanted.has_value()) << r.a.to_string() << " x " << r.b.to_string();
    if (got.ok()) {
      EXPECT_EQ(got->to_string(), r.wanted->to_string());
    } else {
      EXPECT_EQ(got.error().code, Errc::bad_request);
    }
  }
}

TEST(MatMul, LeadingDimensionsBroadcast) {
  Random random(6);
  Machine machine(2);
  const std::vector<std::pair<Shape, Shape>> cases{
      {{3, 2, 4}, {4, 5}}, {{3, 2, 4}, {3, 4, 5}}, {{1, 2, 4}, {3, 4, 5}}, {{3, 1, 2, 4}, {2, 4, 5}},
      {{2, 4}, {3, 4, 5}}, {{4}, {3, 4, 5}},       {{3, 2, 4}, {4}},       {{3, 1, 2, 4}, {1, 2, 4, 5}}};
  for (const auto& [sa, sb] : cases) {
    std::vector<float> a(static_cast<size_t>(sa.elements())), b(static_cast<size_t>(sb.elements()));
    random.fill_normal(a);
    random.fill_normal(b);
    const auto shape = matmul_shape(sa, sb, "");
    ASSERT_TRUE(shape.ok());
    std::vector<float> y(static_cast<size_t>(shape->elements()));
    ASSERT_TRUE(matmul(machine.context, {sa, sb}, {a.data(), b.data(), y.data()}, "").ok());
    // Independent form: matrices picked by coordinates of the leading dimensions, [p][q] at most.
    const int64_t k = 4, n = sb.rank() == 1 ? 1 : 5, m = sa.rank() == 1 ? 1 : 2;
    const int64_t matrices = static_cast<int64_t>(y.size()) / (m * n);
    const int64_t inner = sa.rank() == 4 ? 2 : matrices;
    for (int64_t t = 0; t < matrices; t++) {
      const int64_t p = sa.rank() == 4 ? t / inner : t;
      const int64_t ta = sa.rank() == 4 ? p : sa.rank() == 3 && sa[0] != 1 ? t : 0;
      const int64_t tb = sb.rank() <= 2 ? 0 : sa.rank() == 4 ? t % inner : t;
      for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
          double sum = 0;
          for (int64_t l = 0; l < k; l++) {
            sum += static_cast<double>(a[static_cast<size_t>((ta * m + i) * k + l)]) *
                   b[static_cast<size_t>((tb * k + l) * n + j)];
          }
          ASSERT_NEAR(y[static_cast<size_t>((t * m + i) * n + j)], sum, 1e-5)
              << sa.to_string() << " x " << sb.to_string();
        }
      }
    }
  }
}

TEST(MatMul, EmptyInnerExtentGivesZeros) {
  Machine machine;
  std::vector<float> y(6, 1);
  const float nothing = 0;
  ASSERT_TRUE(matmul(machine.context, {{2, 0}, {0, 3}}, {&nothing, &nothing, y.data()}, "").ok());
  EXPECT_EQ(y, std::vector<float>(6, 0));
}

TEST(MatMul, ThreadsAndNumberOfRowsDoNotChangeTheBits) {
  constexpr int64_t kM = 300, kN = 130, kK = 300;
  Random random(7);
  std::vector<float> a(kM * kK), b(kK * kN), one(kM * kN), many(kM * kN), row(kN);
  random.fill_normal(a);
  random.fill_normal(b);
  Machine single(1), several(4);
  ASSERT_TRUE(matmul(single.context, {{kM, kK}, {kK, kN}}, {a.data(), b.data(), one.data()}, "").ok());
  ASSERT_TRUE(matmul(several.context, {{kM, kK}, {kK, kN}}, {a.data(), b.data(), many.data()}, "").ok());
  EXPECT_EQ(one, many);
  for (int64_t i : {int64_t{0}, int64_t{255}, int64_t{256}, kM - 1}) {
    ASSERT_TRUE(matmul(several.context, {{1, kK}, {kK, kN}}, {a.data() + i * kK, b.data(), row.data()}, "").ok());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), one.begin() + i * kN)) << i;
  }
}

TEST(MatMul, NodeCountsTheWeightsItReads) {
  OneNode node(&make_matmul, "MatMul");
  node.input(tensor<float>({3, 4}, std::vector<float>(12, 1)))
      .constant(tensor<float>({4, 5}, std::vector<float>(20, 2), 1))
      .outputs(1);
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].values<float>(), std::vector<float>(15, 8));
  EXPECT_EQ(machine.counters.weight_bytes_read, 80u);
  EXPECT_TRUE((*node.prepare())->row_wise());
}

TEST(MatMul, MismatchesAreRefusedWithTheShapesSeen) {
  OneNode node(&make_matmul, "MatMul");
  node.input(tensor<float>({1, 2}, {1, 2})).input(tensor<float>({3, 1}, {1, 1, 1})).outputs(1);
  const auto y = node.run();
  ASSERT_FALSE(y.ok());
  EXPECT_EQ(y.error().message(), "MatMul node 'n': cannot multiply [1, 2] by [3, 1]: the inner extents differ");
  OneNode wide(&make_matmul, "MatMul");
  wide.input(tensor<double>({1, 1}, {1})).input(tensor<double>({1, 1}, {1})).outputs(1);
  EXPECT_EQ(wide.prepare().error().code, Errc::unsupported);
}

TEST(MatMul, ResolveAndRunAllocateNothing) {
  OneNode node(&make_matmul, "MatMul");
  node.input(tensor<float>({3, 4}, std::vector<float>(12, 1)))
      .constant(tensor<float>({4, 5}, std::vector<float>(20, 2)))
      .outputs(1);
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
}

}  // namespace
}  // namespace quern::ops
