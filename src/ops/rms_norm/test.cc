// SPDX-License-Identifier: Apache-2.0
// Every variant of rms_norm against the reference, the reference against golden vectors, and both ONNX adapters. Over
// 600 lines because a room has one test file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "ops/elementwise/elementwise.h"
#include "ops/kernel_list.h"
#include "ops/rms_norm/kernels.h"
#include "ops/rms_norm/rms_norm.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_simplified_layer_norm(const NodeView& node, const PrepareContext& ctx);
Result<std::unique_ptr<Operator>> make_skip_simplified_layer_norm(const NodeView& node, const PrepareContext& ctx);
Result<std::unique_ptr<Operator>> make_add(const NodeView& node, const PrepareContext& ctx);  // of another room
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa(void symbol(const RmsNormKernelArgs& k) noexcept;)
#include "ops/rms_norm/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::GuardedArray;
using support::Machine;
using support::OneNode;
using support::Random;
using support::tensor;

using Kernel = void(const RmsNormKernelArgs&) noexcept;
const Variant<Kernel> kVariants[] = {
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa({cpu::Isa::isa, &symbol, #symbol}, )
#include "ops/rms_norm/kernels.inc"
#undef QUERN_KERNEL
};

const std::vector<float> kX{1, -2, 3, -4, 5, -6, 7, -8};
const std::vector<float> kGamma{1, 0.5f, 2, 1, 1, -1, 0.25f, 3};
const std::vector<float> kSkip{0.5f, 0.5f, -0.5f, 0.25f, 0, 1, -1, 2};

// |dy| <= (n / 16 + 8) eps |y|, from the contract.
float tolerance(int64_t n, float y) {
  return (static_cast<float>(n) / 16 + 8) * std::numeric_limits<float>::epsilon() * std::fabs(y);
}

struct Forms {
  bool skip, bias, residual;
};
constexpr Forms kForms[] = {{false, false, false}, {true, false, false}, {true, false, true}, {true, true, true},
                            {true, true, false},   {false, true, false}, {false, false, true}};

class RmsNormVariant : public testing::TestWithParam<Variant<Kernel>> {
 protected:
  void SetUp() override {
    if (!cpu::detect_features().has(GetParam().isa))
      GTEST_SKIP() << "this processor lacks " << cpu::isa_name(GetParam().isa);
  }
};

TEST_P(RmsNormVariant, AgreesWithTheReferenceForEveryLengthAndForm) {
  Random random(1);
  for (int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 1024, 4096}) {
    for (const Forms& form : kForms) {
      constexpr int64_t kRows = 3;
      const auto count = static_cast<size_t>(kRows * n), width = static_cast<size_t>(n);
      // Guarded arrays end at an unreadable page and, for odd n, start off every vector alignment.
      const GuardedArray<float> x(count), skip(count), bias(width), gamma(width), y(count), residual(count);
      for (const auto* a : {&x, &skip, &bias, &gamma}) random.fill_normal(a->span());
      const GuardedArray<float> y2(count), residual2(count);
      RmsNormKernelArgs k{x.data(),
                          1,
                          0,
                          n,
                          gamma.data(),
                          form.skip ? skip.data() : nullptr,
                          kRows,
                          form.bias ? bias.data() : nullptr,
                          y.data(),
                          form.residual ? residual.data() : nullptr,
                          0,
                          kRows,
                          n,
                          1e-6f};
      GetParam().run(k);
      k.y = y2.data();
      k.residual = form.residual ? residual2.data() : nullptr;
      rms_norm_f32_reference(k);
      for (size_t i = 0; i < count; i++) {
        ASSERT_NEAR(y[i], y2[i], tolerance(n, y2[i])) << "n " << n << " at " << i;
        ASSERT_EQ(residual[i], residual2[i]) << "n " << n << " at " << i;
      }
    }
  }
}

TEST_P(RmsNormVariant, RowsOfAnyLayout) {
  constexpr int64_t kN = 20, kInner = 4, kOuter = 3, kStride = 100;
  Random random(2);
  std::vector<float> storage(kOuter * kStride), gamma(kN), packed;
  random.fill_normal(storage);
  random.fill_normal(gamma);
  for (int64_t r = 0; r < kOuter * kInner; r++) {
    const auto at = storage.begin() + r / kInner * kStride + r % kInner * (kN + 1);
    packed.insert(packed.end(), at, at + kN);
  }
  std::vector<float> y(packed.size()), y2(packed.size());
  RmsNormKernelArgs k{storage.data(), kInner,   kN + 1,  kStride, gamma.data(),    nullptr, 0,
                      nullptr,        y.data(), nullptr, 0,       kOuter * kInner, kN,      1e-6f};
  GetParam().run(k);
  RmsNormKernelArgs flat{packed.data(), 1,         0,       kN, gamma.data(),    nullptr, 0,
                         nullptr,       y2.data(), nullptr, 0,  kOuter * kInner, kN,      1e-6f};
  GetParam().run(flat);
  EXPECT_EQ(y, y2);
}

TEST_P(RmsNormVariant, OutputsMayOverwriteTheAddends) {
  constexpr int64_t kN = 37, kRows = 4;
  Random random(3);
  std::vector<float> x(kRows * kN), skip(kRows * kN), gamma(kN);
  random.fill_normal(x);
  random.fill_normal(skip);
  random.fill_normal(gamma);
  std::vector<float> y(x.size()), residual(x.size());
  const auto run = [&](float* a, float* b, float* out, float* sum) {
    GetParam().run({a, 1, 0, kN, gamma.data(), b, kRows, nullptr, out, sum, 0, kRows, kN, 1e-6f});
  };
  run(x.data(), skip.data(), y.data(), residual.data());
  auto a = x, b = skip;
  run(a.data(), b.data(), b.data(), a.data());
  EXPECT_EQ(a, residual) << "residual over x";
  EXPECT_EQ(b, y) << "y over skip";
  a = x, b = skip;
  run(a.data(), b.data(), a.data(), b.data());
  EXPECT_EQ(b, residual) << "residual over skip";
  EXPECT_EQ(a, y) << "y over x";
  a = x, b = skip;
  run(a.data(), b.data(), b.data(), nullptr);
  EXPECT_EQ(b, y) << "y over skip, no residual";
  a = x;
  std::vector<float> twice(x.size());
  run(x.data(), x.data(), twice.data(), nullptr);
  run(a.data(), a.data(), a.data(), nullptr);
  EXPECT_EQ(a, twice) << "x is skip is y";
  GetParam().run({x.data(), 1, 0, kN, gamma.data(), nullptr, 0, nullptr, y.data(), nullptr, 0, kRows, kN, 0});
  a = x;
  GetParam().run({a.data(), 1, 0, kN, gamma.data(), nullptr, 0, nullptr, a.data(), nullptr, 0, kRows, kN, 0});
  EXPECT_EQ(a, y) << "y over x, no addends";
}

TEST_P(RmsNormVariant, SkipRepeatsAfterItsRows) {
  constexpr int64_t kN = 5;
  Random random(4);
  std::vector<float> x(6 * kN), skip(2 * kN), gamma(kN, 1), y(6 * kN), residual(6 * kN);
  random.fill_normal(x);
  random.fill_normal(skip);
  GetParam().run({x.data(), 1, 0, kN, gamma.data(), skip.data(), 2, nullptr, y.data(), residual.data(), 0, 6, kN, 0});
  for (size_t i = 0; i < x.size(); i++) EXPECT_EQ(residual[i], x[i] + skip[i % (2 * kN)]);
}

TEST_P(RmsNormVariant, NanStaysInItsRowAndZerosDivideByZero) {
  constexpr int64_t kN = 33;
  std::vector<float> x(3 * kN, 1), gamma(kN, 1), y(3 * kN);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  std::fill(x.begin() + 2 * kN, x.end(), 0.0f);
  GetParam().run({x.data(), 1, 0, kN, gamma.data(), nullptr, 0, nullptr, y.data(), nullptr, 0, 3, kN, 0});
  for (size_t i = 0; i < static_cast<size_t>(kN); i++) {
    EXPECT_TRUE(std::isnan(y[i]));
    EXPECT_EQ(y[kN + i], 1);
    EXPECT_TRUE(std::isnan(y[2 * kN + i]));
  }
  std::vector<float> large(kN, 1e30f);
  GetParam().run({large.data(), 1, 0, kN, gamma.data(), nullptr, 0, nullptr, y.data(), nullptr, 0, 1, kN, 0});
  EXPECT_EQ(y[0], 0) << "the squares overflow";
}

TEST_P(RmsNormVariant, NoRowsTouchNothing) {
  GetParam().run({nullptr, 1, 0, 8, nullptr, nullptr, 0, nullptr, nullptr, nullptr, 0, 0, 8, 0});
}

INSTANTIATE_TEST_SUITE_P(Every, RmsNormVariant, testing::ValuesIn(kVariants),
                         [](const auto& line) { return std::string(line.param.symbol); });

// Values of the operator's formula worked out by ONNX Runtime 1.30.0.
TEST(SimplifiedLayerNorm, GoldenVector) {
  OneNode node(&make_simplified_layer_norm, "SimplifiedLayerNormalization");
  node.attribute("epsilon", 1e-6f).input(tensor<float>({1, 8}, kX)).constant(tensor<float>({8}, kGamma)).outputs(1);
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  const std::vector<float> wanted{0.1980295f, -0.1980295f, 1.188177f,  -0.792118f,
                                  0.9901475f, 1.188177f,   0.3465516f, -4.752708f};
  for (size_t i = 0; i < 8; i++) EXPECT_NEAR((*y)[0].values<float>()[i], wanted[i], 5e-7f * std::fabs(wanted[i]));
}

TEST(SkipSimplifiedLayerNorm, GoldenVector) {
  OneNode node(&make_skip_simplified_layer_norm, "SkipSimplifiedLayerNormalization", "com.microsoft", 1);
  node.attribute("epsilon", 1e-6f).input(tensor<float>({1, 8}, kX)).input(tensor<float>({1, 8}, kSkip));
  node.constant(tensor<float>({8}, kGamma)).outputs(4, {1, 2});
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[3].values<float>(), (std::vector<float>{1.5f, -1.5f, 2.5f, -3.75f, 5, -5, 6, -6}));
  const std::vector<float> wanted{0.3501505f, -0.1750752f, 1.167168f,  -0.8753762f,
                                  1.167168f,  1.167168f,   0.3501505f, -4.201806f};
  for (size_t i = 0; i < 8; i++) EXPECT_NEAR((*y)[0].values<float>()[i], wanted[i], 5e-7f * std::fabs(wanted[i]));
}

TEST(RmsNorm, HandComputedRow) {
  Machine machine;
  machine.context.features = {};
  const std::vector<float> x{3, 4, 0, 0}, gamma{2, 1, 1, 1};
  std::vector<float> y(4);
  ASSERT_TRUE(rms_norm(machine.context, {1, 4, 0, 0},
                       {x.data(), {1, 0, 4}, gamma.data(), nullptr, nullptr, y.data(), nullptr}, "")
                  .ok());
  EXPECT_EQ(y, (std::vector<float>{2.4f, 1.6f, 0, 0})) << "the root of 25 / 4 is 2.5";
}

TEST(RmsNorm, ResultsDependNeitherOnThreadsNorOnTheNumberOfRows) {
  constexpr int64_t kRows = 517, kN = 128;
  Random random(5);
  std::vector<float> x(kRows * kN), skip(kRows * kN), gamma(kN);
  random.fill_normal(x);
  random.fill_normal(skip);
  random.fill_normal(gamma);
  std::vector<float> one(x.size()), many(x.size()), single(x.size()), sum(x.size()), sums(x.size());
  Machine a(1), b(4);
  const auto run = [&](Machine& m, int64_t first, int64_t rows, float* y, float* residual) {
    return rms_norm(m.context, {rows, kN, 1e-6f, rows},
                    {x.data() + first * kN,
                     {1, 0, kN},
                     gamma.data(),
                     skip.data() + first * kN,
                     nullptr,
                     y + first * kN,
                     residual + first * kN},
                    "")
        .ok();
  };
  ASSERT_TRUE(run(a, 0, kRows, one.data(), sum.data()));
  ASSERT_TRUE(run(b, 0, kRows, many.data(), sums.data()));
  EXPECT_EQ(one, many);
  EXPECT_EQ(sum, sums);
  for (int64_t r = 0; r < kRows; r++) ASSERT_TRUE(run(a, r, 1, single.data(), sums.data()));
  EXPECT_EQ(one, single);
}

TEST(RmsNorm, ParamsOutsideOfTheContractAreRefused) {
  Machine machine;
  float v = 1;
  const RmsNormArgs args{&v, {1, 0, 1}, &v, &v, nullptr, &v, nullptr};
  EXPECT_FALSE(rms_norm(machine.context, {1, 0, 0, 1}, args, "").ok());
  EXPECT_FALSE(rms_norm(machine.context, {1, 1, -1.0f, 1}, args, "").ok());
  EXPECT_FALSE(rms_norm(machine.context, {1, 1, std::nanf(""), 1}, args, "").ok());
  EXPECT_FALSE(rms_norm(machine.context, {3, 1, 0, 2}, args, "").ok());
  EXPECT_FALSE(rms_norm(machine.context, {1, 1, 0, 0}, args, "").ok());
}

OneNode simplified() {
  return std::move(OneNode(&make_simplified_layer_norm, "SimplifiedLayerNormalization").outputs(1));
}

TEST(SimplifiedLayerNorm, AbsentAttributesHaveTheirDefaults) {
  auto absent = simplified();
  absent.input(tensor<float>({2}, {1e-3f, 1e-3f})).input(tensor<float>({2}, {1, 1}));
  auto written = simplified();
  written.attribute("axis", -1).attribute("epsilon", 1e-5f).attribute("stash_type", 1);
  written.input(tensor<float>({2}, {1e-3f, 1e-3f})).input(tensor<float>({2}, {1, 1}));
  EXPECT_EQ((*absent.run())[0].values<float>(), (*written.run())[0].values<float>());
  EXPECT_NEAR((*absent.run())[0].values<float>()[0], 1e-3f / std::sqrt(1.1e-5f), 1e-6f);
}

TEST(SimplifiedLayerNorm, ScaleBroadcastsToTheNormalisedDimensions) {
  Random random(6);
  std::vector<float> x(2 * 3 * 4);
  random.fill_normal(x);
  struct Case {
    int64_t axis;
    Shape gamma;
  };
  for (const auto& [axis, shape] : std::vector<Case>{{-1, {1}},
                                                     {-1, {1, 4}},
                                                     {-1, {4}},
                                                     {2, {1, 1, 1, 4}},
                                                     {-1, {}},
                                                     {1, {3, 4}},
                                                     {1, {3, 1}},
                                                     {1, {4}},
                                                     {-2, {1}},
                                                     {0, {2, 1, 4}},
                                                     {0, {1}}}) {
    std::vector<float> gamma(static_cast<size_t>(shape.elements()));
    random.fill_normal(gamma);
    auto node = simplified();
    node.attribute("axis", axis)
        .attribute("epsilon", 0.0f)
        .input(tensor<float>({2, 3, 4}, x))
        .input(tensor<float>(shape, gamma));
    const auto y = node.run();
    ASSERT_TRUE(y.ok()) << y.error().message();
    const int first = static_cast<int>(axis < 0 ? axis + 3 : axis);
    const int64_t n = first == 0 ? 24 : first == 1 ? 12 : 4;
    for (int64_t i = 0; i < 24; i++) {
      double squares = 0;
      for (int64_t j = i / n * n; j < i / n * n + n; j++) squares += std::pow(x[static_cast<size_t>(j)], 2.0);
      const std::array<int64_t, 3> at{i / 12, i / 4 % 3, i % 4};
      int64_t g = 0;
      for (int d = 0; d < shape.rank(); d++) {
        const int dim = d + 3 - shape.rank();
        g = g * shape[d] + (shape[d] == 1 ? 0 : at[static_cast<size_t>(dim)]);
      }
      const double wanted =
          x[static_cast<size_t>(i)] / std::sqrt(squares / static_cast<double>(n)) * gamma[static_cast<size_t>(g)];
      ASSERT_NEAR((*y)[0].values<float>()[static_cast<size_t>(i)], wanted, 1e-5)
          << shape.to_string() << " axis " << axis;
    }
  }
}

TEST(SimplifiedLayerNorm, WrongShapesAreRefused) {
  for (const Shape& gamma : {Shape{2}, Shape{3, 4}, Shape{2, 1}, Shape{0}}) {
    auto node = simplified();
    node.input(tensor<float>({3, 4}, std::vector<float>(12)))
        .input(tensor<float>(gamma, std::vector<float>(static_cast<size_t>(gamma.elements()))));
    EXPECT_EQ(node.run().error().code, Errc::bad_request) << gamma.to_string();
  }
  auto nothing = simplified();
  nothing.input(tensor<float>({2, 0}, {})).input(tensor<float>({1}, {1}));
  EXPECT_EQ(nothing.run().error().code, Errc::bad_request);
  auto axis = simplified();
  axis.attribute("axis", 2)
      .input(tensor<float>({3, 4}, std::vector<float>(12)))
      .input(tensor<float>({4}, std::vector<float>(4)));
  EXPECT_EQ(axis.run().error().where, "SimplifiedLayerNormalization node 'n'");
}

TEST(SimplifiedLayerNorm, NoRowsGiveAnEmptyOutput) {
  auto node = simplified();
  node.input(tensor<float>({0, 4}, {})).input(tensor<float>({4}, std::vector<float>(4)));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].shape(), (Shape{0, 4}));
}

TEST(SimplifiedLayerNorm, UnsupportedFormsAreRefusedByName) {
  const auto refusal = [](OneNode& node) {
    node.input(tensor<float>({1, 4}, std::vector<float>(4))).input(tensor<float>({4}, std::vector<float>(4)));
    const auto op = node.prepare();
    return op.ok() ? std::string("accepted") : op.error().what;
  };
  auto stash = simplified();
  stash.attribute("stash_type", 10);
  EXPECT_NE(refusal(stash).find("stash_type"), std::string::npos);
  auto negative = simplified();
  negative.attribute("epsilon", -1e-6f);
  EXPECT_NE(refusal(negative).find("epsilon"), std::string::npos);
  auto integer = simplified();
  integer.attribute("epsilon", 1);
  EXPECT_NE(refusal(integer).find("epsilon"), std::string::npos);
  auto inverse = simplified();
  inverse.outputs(2);
  EXPECT_NE(refusal(inverse).find("inv_std_var"), std::string::npos);
  auto absent = simplified();
  absent.outputs(2, {1});
  EXPECT_EQ(refusal(absent), "accepted");
  auto half = simplified();
  half.input(tensor<uint16_t>({4}, std::vector<uint16_t>(4))).input(tensor<uint16_t>({4}, std::vector<uint16_t>(4)));
  EXPECT_NE(half.prepare().error().what.find("float16"), std::string::npos);
}

TEST(SimplifiedLayerNorm, UnalignedConstantScaleIsRead) {
  auto node = simplified();
  node.attribute("epsilon", 0.0f).input(tensor<float>({2}, {1, 1})).constant(tensor<float>({2}, {3, 5}, 1));
  EXPECT_EQ((*node.run())[0].values<float>(), (std::vector<float>{3, 5}));
}

OneNode skip_node(int outputs, std::vector<int> missing = {}) {
  return std::move(OneNode(&make_skip_simplified_layer_norm, "SkipSimplifiedLayerNormalization", "com.microsoft", 1)
                       .outputs(outputs, std::move(missing)));
}

TEST(SkipSimplifiedLayerNorm, OneOutputOrFour) {
  std::vector<float> x(2 * 3 * 5), skip(x.size()), gamma(5), bias(5);
  Random random(7);
  for (auto* v : {&x, &skip, &gamma, &bias}) random.fill_normal(*v);
  const auto with = [&](OneNode node) {
    node.input(tensor<float>({2, 3, 5}, x)).input(tensor<float>({2, 3, 5}, skip)).constant(tensor<float>({5}, gamma));
    node.constant(tensor<float>({5}, bias, 2));
    return node.run();
  };
  const auto one = with(skip_node(1)), four = with(skip_node(4, {1, 2}));
  ASSERT_TRUE(one.ok() && four.ok());
  EXPECT_EQ((*one)[0].values<float>(), (*four)[0].values<float>());
  for (size_t i = 0; i < x.size(); i++) EXPECT_EQ((*four)[3].values<float>()[i], x[i] + skip[i] + bias[i % 5]);
}

TEST(SkipSimplifiedLayerNorm, ComposesFromAdditionAndNorm) {
  constexpr int64_t kN = 128;
  std::vector<float> x(3 * kN), skip(3 * kN), gamma(kN), sum(3 * kN);
  Random random(8);
  for (auto* v : {&x, &skip, &gamma}) random.fill_normal(*v);
  for (size_t i = 0; i < sum.size(); i++) sum[i] = x[i] + skip[i];
  auto fused = skip_node(1);
  fused.attribute("epsilon", 1e-6f)
      .input(tensor<float>({3, kN}, x))
      .input(tensor<float>({3, kN}, skip))
      .input(tensor<float>({kN}, gamma));
  auto plain = simplified();
  plain.attribute("epsilon", 1e-6f).input(tensor<float>({3, kN}, sum)).input(tensor<float>({kN}, gamma));
  EXPECT_EQ((*fused.run())[0].values<float>(), (*plain.run())[0].values<float>());
}

TEST(SkipSimplifiedLayerNorm, AbsentEpsilonIsSmall) {
  auto node = skip_node(1);
  node.input(tensor<float>({1, 1}, {5e-7f})).input(tensor<float>({1, 1}, {5e-7f})).input(tensor<float>({1}, {1}));
  EXPECT_NEAR((*node.run())[0].values<float>()[0], 1 / std::sqrt(2.0), 1e-6) << "x^2 and epsilon are both 1e-12";
}

TEST(SkipSimplifiedLayerNorm, SkipRepeatsOverTheBatchAlone) {
  std::vector<float> x(2 * 3 * 2);
  for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(i + 1);
  const std::vector<float> skip{10, 20, 30, 40, 50, 60};
  for (const Shape& shape : {Shape{3, 2}, Shape{1, 3, 2}}) {
    auto node = skip_node(4, {1, 2});
    node.input(tensor<float>({2, 3, 2}, x)).input(tensor<float>(shape, skip)).input(tensor<float>({2}, {1, 1}));
    const auto y = node.run();
    ASSERT_TRUE(y.ok()) << y.error().message();
    for (size_t i = 0; i < x.size(); i++) EXPECT_EQ((*y)[3].values<float>()[i], x[i] + skip[i % 6]);
  }
  for (const Shape& shape :
       {Shape{2, 1, 2}, Shape{2, 2}, Shape{2}, Shape{1, 1, 2}, Shape{2, 3, 1}, Shape{1, 2, 3, 2}}) {
    auto wrong = skip_node(1);
    wrong.input(tensor<float>({2, 3, 2}, x));
    wrong.input(tensor<float>(shape, std::vector<float>(static_cast<size_t>(shape.elements()))))
        .input(tensor<float>({2}, {1, 1}));
    EXPECT_EQ(wrong.run().error().code, Errc::bad_request) << shape.to_string();
  }
}

TEST(SkipSimplifiedLayerNorm, RankAndVectorShapesAreChecked) {
  const auto refused = [](const Shape& x, const Shape& gamma, const Shape& bias) {
    auto node = skip_node(1);
    for (const Shape& s : {x, x, gamma, bias}) {
      node.input(tensor<float>(s, std::vector<float>(static_cast<size_t>(s.elements()))));
    }
    const auto y = node.run();
    return !y.ok() && y.error().code == Errc::bad_request;
  };
  EXPECT_FALSE(refused({2, 4}, {4}, {4}));
  EXPECT_FALSE(refused({2, 0, 4}, {4}, {4}));
  EXPECT_TRUE(refused({4}, {4}, {4}));
  EXPECT_TRUE(refused({1, 1, 2, 4}, {4}, {4}));
  EXPECT_TRUE(refused({2, 4}, {1, 4}, {4}));
  EXPECT_TRUE(refused({2, 4}, {1}, {4}));
  EXPECT_TRUE(refused({2, 4}, {4}, {1}));
  EXPECT_TRUE(refused({2, 0}, {0}, {0}));
}

TEST(SkipSimplifiedLayerNorm, UnsupportedFormsAreRefusedByName) {
  const auto refusal = [](OneNode node, int inputs = 3) {
    for (int i = 0; i < inputs; i++) node.input(tensor<float>({1, 4}, std::vector<float>(4)));
    const auto op = node.prepare();
    return op.ok() ? std::string("accepted") : op.error().what;
  };
  EXPECT_NE(refusal(skip_node(2)).find("mean"), std::string::npos);
  EXPECT_NE(refusal(skip_node(3, {1})).find("inv_std_var"), std::string::npos);
  EXPECT_NE(refusal(skip_node(1), 5).find("input 4"), std::string::npos);
  EXPECT_NE(refusal(skip_node(1), 2).find("input 2"), std::string::npos);
  EXPECT_NE(refusal(std::move(skip_node(1).attribute("epsilon", -1.0f))).find("epsilon"), std::string::npos);
  EXPECT_NE(refusal(std::move(skip_node(1).attribute("axis", -1))).find("axis"), std::string::npos);
}

TEST(SkipSimplifiedLayerNorm, ResolveAndRunAllocateNothing) {
  auto node = skip_node(4, {1, 2});
  node.input(tensor<float>({1, 8}, kX)).input(tensor<float>({1, 8}, kSkip)).constant(tensor<float>({8}, kGamma));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
  auto broadcast = simplified();
  broadcast.input(tensor<float>({1, 8}, kX)).constant(tensor<float>({1}, {2}));
  const auto z = broadcast.run(machine);
  ASSERT_TRUE(z.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(broadcast.run_again(machine).ok()); }), 0);
}

// Operators as their nodes have them, each run on its own and as one.
class AddNormTest : public testing::Test {
 protected:
  static std::unique_ptr<Operator> add() {
    OneNode node(&make_add, "Add");
    node.input(tensor<float>({1}, {0})).input(tensor<float>({1}, {0})).outputs(1);
    return std::move(node.prepare()).value();
  }
  static std::unique_ptr<Operator> norm(int64_t axis = -1) {
    auto node = simplified();
    node.attribute("axis", axis)
        .attribute("epsilon", 1e-6f)
        .input(tensor<float>({1, 8}, kX))
        .input(tensor<float>({8}, kGamma));
    return std::move(node.prepare()).value();
  }
  // Outputs of an operator on `in`; those past `present` are left out.
  std::vector<std::vector<float>> run(const Operator& op, const std::vector<Tensor>& in, size_t outputs,
                                      size_t present) {
    std::vector<Shape> shapes(outputs);
    std::vector<IntValues> values(outputs), known(in.size());
    std::vector<View> views(outputs);
    const auto resolved = op.resolve({in, known, shapes, values, views});
    EXPECT_TRUE(resolved.ok());
    std::vector<support::OwnedTensor> y;
    std::vector<Tensor> out;
    for (size_t j = 0; j < outputs; j++) {
      y.emplace_back(DType::f32, shapes[j]);
      out.push_back(j < present ? y.back().view() : Tensor{});
      out.back().present = j < present;
    }
    EXPECT_TRUE(op.run(machine.context, in, out).ok());
    std::vector<std::vector<float>> results;
    for (size_t j = 0; j < present; j++) results.push_back(y[j].values<float>());
    return results;
  }

  Machine machine{2};
};

TEST_F(AddNormTest, GivesTheBitsOfTheAdditionAndTheNorm) {
  auto first = add(), second = norm();
  const auto joint = make_add_norm(first, second);
  ASSERT_NE(joint, nullptr);
  EXPECT_EQ(first, nullptr);
  EXPECT_EQ(second, nullptr);
  const auto sum = add(), layer_norm = norm();
  Random random(6);
  const std::vector<std::pair<Shape, Shape>> shapes{{{2, 3, 8}, {2, 3, 8}},
                                                    {{40, 1024}, {40, 1024}},
                                                    {{5}, {5}},
                                                    {{1, 2, 3, 8}, {1, 2, 3, 8}},
                                                    {{2, 3, 8}, {3, 8}},
                                                    {{8}, {4, 8}},
                                                    {{3, 1}, {1, 8}},
                                                    {{0, 8}, {0, 8}},
                                                    {{0, 8}, {8}}};
  for (const auto& [a, b] : shapes) {
    support::OwnedTensor x(DType::f32, a), skip(DType::f32, b);
    random.fill_normal({x.view().as<float>(), static_cast<size_t>(a.elements())});
    random.fill_normal({skip.view().as<float>(), static_cast<size_t>(b.elements())});
    const Shape z_shape = *broadcast_shape(a, b, "");
    support::OwnedTensor gamma(DType::f32, {z_shape.back()});
    random.fill_normal({gamma.view().as<float>(), static_cast<size_t>(z_shape.back())});
    const auto z = run(*sum, {x.view(), skip.view()}, 1, 1)[0];
    const auto z_tensor = tensor<float>(z_shape, z);
    const auto y = run(*layer_norm, {z_tensor.view(), gamma.view()}, 1, 1)[0];
    const std::vector<Tensor> in{x.view(), skip.view(), gamma.view()};
    EXPECT_EQ(run(*joint, in, 2, 2), (std::vector<std::vector<float>>{y, z})) << a.to_string() << b.to_string();
    EXPECT_EQ(run(*joint, in, 2, 1), std::vector<std::vector<float>>{y}) << a.to_string() << b.to_string();
  }
}

TEST_F(AddNormTest, TakesNoOtherOperators) {
  auto first = add(), other = add(), wide = norm(0);
  EXPECT_EQ(make_add_norm(first, other), nullptr);
  EXPECT_EQ(make_add_norm(first, wide), nullptr) << "normalises more than the last dimension";
  EXPECT_NE(first, nullptr);
  EXPECT_NE(other, nullptr);
  EXPECT_NE(wide, nullptr);
}

TEST_F(AddNormTest, RefusesWhatItsNodesRefuse) {
  auto first = add(), second = norm();
  const auto joint = make_add_norm(first, second);
  const auto refusal = [&](const Shape& a, const Shape& b, const Shape& gamma) {
    std::vector<Tensor> in(3);
    in[0].shape = a;
    in[1].shape = b;
    in[2].shape = gamma;
    std::vector<Shape> shapes(2);
    std::vector<IntValues> values(2), known(3);
    std::vector<View> views(2);
    const auto resolved = joint->resolve({in, known, shapes, values, views});
    return resolved.ok() ? std::string("accepted") : resolved.error().message();
  };
  EXPECT_EQ(refusal({2, 3}, {2}, {3}), "Add node 'n': shapes [2, 3] and [2] do not broadcast");
  EXPECT_NE(refusal({2, 3}, {2, 3}, {2}).find("scale of shape [2]"), std::string::npos);
  EXPECT_NE(refusal({2, 0}, {2, 0}, {1}).find("nothing to normalise"), std::string::npos);
}

TEST_F(AddNormTest, RunsWithoutAllocating) {
  auto first = add(), second = norm();
  const auto joint = make_add_norm(first, second);
  const auto a = tensor<float>({2, 8}, std::vector<float>(16, 1)), b = tensor<float>({8}, kX);
  const auto gamma = tensor<float>({8}, kGamma);
  support::OwnedTensor y(DType::f32, {2, 8});
  Tensor absent;
  absent.present = false;
  const Tensor in[] = {a.view(), b.view(), gamma.view()}, out[] = {y.view(), absent};
  ASSERT_TRUE(joint->run(machine.context, in, out).ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(joint->run(machine.context, in, out).ok()); }), 0);
}

}  // namespace
}  // namespace quern::ops
