// SPDX-License-Identifier: Apache-2.0
// Every variant of the elementwise operators against the reference, broadcasting against an independent walk.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/elementwise/elementwise.h"
#include "ops/kernel_list.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_add(const NodeView& node, const PrepareContext& ctx);
Result<std::unique_ptr<Operator>> make_sub(const NodeView& node, const PrepareContext& ctx);
Result<std::unique_ptr<Operator>> make_mul(const NodeView& node, const PrepareContext& ctx);
Result<std::unique_ptr<Operator>> make_sigmoid(const NodeView& node, const PrepareContext& ctx);
#define QUERN_KERNEL(isa, symbol, op, type) QUERN_ISA_LINE_##isa(void symbol(const ElementwiseKernelArgs& k) noexcept;)
#include "ops/elementwise/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::GuardedArray;
using support::Machine;
using support::OneNode;
using support::Random;
using support::tensor;

using Kernel = void(const ElementwiseKernelArgs&) noexcept;
struct Line {
  ElementwiseOp op;
  DType dtype;
  Variant<Kernel> kernel;
};
const Line kLines[] = {
#define QUERN_KERNEL(isa, symbol, op, type) \
  QUERN_ISA_LINE_##isa({ElementwiseOp::op, DType::type, {cpu::Isa::isa, &symbol, #symbol}}, )
#include "ops/elementwise/kernels.inc"
#undef QUERN_KERNEL
};

Kernel* reference_of(const Line& line) {
  for (const Line& other : kLines) {
    if (other.op == line.op && other.dtype == line.dtype && other.kernel.isa == cpu::Isa::scalar)
      return other.kernel.run;
  }
  return nullptr;
}

// The bound of the contract: 2.5e-7 of the value, or zero below -87.3, where the value itself is below 1.3e-38.
double sigmoid_tolerance(double y) { return 2.5e-7 * y + 1.3e-38; }

// That of silu_mul, for both sides of the comparison: the sigmoid's, and a rounding of each product. Where the sigmoid
// is zero or its product denormal, what is lost is below 1.3e-38 * |a b| and half of the smallest float times |b|.
double silu_mul_tolerance(double a, double b, double y) {
  return (2.5e-7 + 4 * 0x1p-24) * std::fabs(y) + 1.3e-38 * std::fabs(a * b) + 0x1p-149 * (1 + std::fabs(b));
}

class ElementwiseVariant : public testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    const auto isa = GetParam().kernel.isa;
    if (!cpu::detect_features().has(isa)) GTEST_SKIP() << "this processor lacks " << cpu::isa_name(isa);
  }
};

template <class T>
void check_lengths_and_steps(const Line& line) {
  Random random(1);
  for (size_t n : {0u, 1u, 2u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 33u, 64u, 100u, 1025u}) {
    for (const auto& [a_step, b_step] : {std::pair{1, 1}, std::pair{1, 0}, std::pair{0, 1}}) {
      if (line.op == ElementwiseOp::sigmoid && b_step == 1) continue;
      if (line.op == ElementwiseOp::silu_mul && (a_step == 0 || b_step == 0)) continue;
      const GuardedArray<T> a(a_step == 1 ? n : 1), b(b_step == 1 ? n : 1), y(n), wanted(n);
      for (const auto* v : {&a, &b}) {
        for (T& value : v->span()) {
          if constexpr (std::is_same_v<T, float>) value = random.normal() * 8;
          if constexpr (!std::is_same_v<T, float>) value = static_cast<T>(random.bits());
        }
      }
      ElementwiseKernelArgs k{a.data(), b.data(), y.data(), static_cast<int64_t>(n), a_step, b_step};
      line.kernel.run(k);
      k.y = wanted.data();
      reference_of(line)(k);
      for (size_t i = 0; i < n; i++) {
        if (line.op == ElementwiseOp::sigmoid) {
          ASSERT_NEAR(static_cast<double>(y[i]), static_cast<double>(wanted[i]),
                      sigmoid_tolerance(static_cast<double>(wanted[i])));
        } else if (line.op == ElementwiseOp::silu_mul) {
          ASSERT_NEAR(
              static_cast<double>(y[i]), static_cast<double>(wanted[i]),
              silu_mul_tolerance(static_cast<double>(a[i]), static_cast<double>(b[i]), static_cast<double>(wanted[i])))
              << "n " << n << " at " << i;
        } else {
          ASSERT_EQ(y[i], wanted[i]) << "n " << n << " at " << i;
        }
      }
      // In place over the operand that is walked.
      T* over = a_step == 1 ? a.data() : b.data();
      k.y = over;
      line.kernel.run(k);
      for (size_t i = 0; i < n; i++) ASSERT_EQ(over[i], y[i]) << "in place, n " << n << " at " << i;
    }
  }
}

TEST_P(ElementwiseVariant, AgreesWithTheReferenceForEveryLengthAndStep) {
  const Line& line = GetParam();
  if (line.dtype == DType::f32) check_lengths_and_steps<float>(line);
  if (line.dtype == DType::i64) check_lengths_and_steps<int64_t>(line);
  if (line.dtype == DType::i32) check_lengths_and_steps<int32_t>(line);
}

INSTANTIATE_TEST_SUITE_P(Every, ElementwiseVariant, testing::ValuesIn(kLines),
                         [](const auto& line) { return std::string(line.param.kernel.symbol); });

class SigmoidVariant : public ElementwiseVariant {};

TEST_P(SigmoidVariant, KeepsItsBoundOverTheWholeRange) {
  const Line& line = GetParam();
  // Every 9,973rd float of either sign, infinities and NaNs among them.
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 9973)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (float edge : {0.0f, -0.0f, 87.3f, -87.3f, -87.30001f, -88.0f, -104.0f, 104.0f, 1e38f, -1e38f}) x.push_back(edge);
  std::vector<float> y(x.size());
  line.kernel.run({x.data(), nullptr, y.data(), static_cast<int64_t>(x.size()), 1, 0});
  for (size_t i = 0; i < x.size(); i++) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i]));
      continue;
    }
    const double wanted = 1 / (1 + std::exp(-static_cast<double>(x[i])));
    ASSERT_LE(y[i], 1);
    if (x[i] >= -87.3f) {
      ASSERT_NEAR(static_cast<double>(y[i]), wanted, 2.5e-7 * wanted) << x[i];
    } else {
      ASSERT_LT(wanted, 1.3e-38) << x[i];
      ASSERT_EQ(y[i], line.kernel.isa == cpu::Isa::scalar ? static_cast<float>(wanted) : 0.0f) << x[i];
    }
  }
}

TEST_P(SigmoidVariant, IsExactAtInfinityAndZero) {
  const Line& line = GetParam();
  const float inf = std::numeric_limits<float>::infinity();
  for (size_t n : {1u, 8u, 16u, 19u}) {
    std::vector<float> x(n), y(n);
    for (float v : {inf, -inf, 0.0f, -0.0f}) {
      std::fill(x.begin(), x.end(), v);
      line.kernel.run({x.data(), nullptr, y.data(), static_cast<int64_t>(n), 1, 0});
      for (float s : y) EXPECT_EQ(s, v == inf ? 1.0f : v == -inf ? 0.0f : 0.5f);
    }
    std::fill(x.begin(), x.end(), std::nanf(""));
    line.kernel.run({x.data(), nullptr, y.data(), static_cast<int64_t>(n), 1, 0});
    for (float s : y) EXPECT_TRUE(std::isnan(s));
  }
}

std::vector<Line> sigmoid_lines() {
  std::vector<Line> lines;
  for (const Line& line : kLines) {
    if (line.op == ElementwiseOp::sigmoid) lines.push_back(line);
  }
  return lines;
}

INSTANTIATE_TEST_SUITE_P(Every, SigmoidVariant, testing::ValuesIn(sigmoid_lines()),
                         [](const auto& line) { return std::string(line.param.kernel.symbol); });

// The element of an operand that meets element i of the result, from coordinates.
int64_t operand_at(const Shape& operand, const Shape& result, int64_t i) {
  std::vector<int64_t> at(static_cast<size_t>(result.rank()));
  for (int d = result.rank(); d-- > 0;) {
    at[static_cast<size_t>(d)] = i % result[d];
    i /= result[d];
  }
  int64_t index = 0;
  for (int d = 0; d < operand.rank(); d++) {
    const int64_t c = at[static_cast<size_t>(d + result.rank() - operand.rank())];
    index = index * operand[d] + (operand[d] == 1 ? 0 : c);
  }
  return index;
}

TEST(Broadcast, EveryPairOfShapes) {
  const std::vector<Shape> shapes{{},           {1},       {3},       {4},       {3, 1},    {1, 4},       {3, 4},
                                  {2, 3, 4},    {2, 1, 4}, {2, 3, 1}, {1, 3, 1}, {2, 1, 1}, {1, 1, 1, 4}, {5, 2, 3, 4},
                                  {5, 1, 3, 1}, {0},       {3, 0},    {0, 1, 4}, {1, 1}};
  Machine machine;
  int ran = 0, refused = 0;
  for (const Shape& a : shapes) {
    for (const Shape& b : shapes) {
      // Independent form of the rule.
      bool fits = true;
      for (int i = 1; i <= std::min(a.rank(), b.rank()); i++) {
        const int64_t ea = a[a.rank() - i], eb = b[b.rank() - i];
        fits = fits && (ea == eb || ea == 1 || eb == 1);
      }
      const auto shape = broadcast_shape(a, b, "here");
      ASSERT_EQ(shape.ok(), fits) << a.to_string() << b.to_string();
      (fits ? ran : refused)++;
      if (!fits) continue;
      std::vector<int64_t> x(static_cast<size_t>(a.elements())), z(static_cast<size_t>(b.elements()));
      for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<int64_t>(i * 3 + 1);
      for (size_t i = 0; i < z.size(); i++) z[i] = static_cast<int64_t>(i * i + 100);
      std::vector<int64_t> y(static_cast<size_t>(shape->elements()));
      ASSERT_TRUE(
          binary(machine.context, {ElementwiseOp::sub, DType::i64, a, b}, {x.data(), z.data(), y.data()}, "").ok());
      for (int64_t i = 0; i < static_cast<int64_t>(y.size()); i++) {
        ASSERT_EQ(y[static_cast<size_t>(i)],
                  x[static_cast<size_t>(operand_at(a, *shape, i))] - z[static_cast<size_t>(operand_at(b, *shape, i))])
            << a.to_string() << " - " << b.to_string() << " at " << i;
      }
    }
  }
  EXPECT_GT(ran, 100);
  EXPECT_GT(refused, 20);
}

TEST(Broadcast, ExtentOneAgainstZeroIsZero) {
  const auto shape = broadcast_shape({1, 3}, {0, 1}, "here");
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->to_string(), "[0, 3]");
  EXPECT_FALSE(broadcast_shape({2}, {0}, "here").ok());
}

TEST(Broadcast, ResultsThatOverflowAreRefused) {
  const int64_t big = int64_t{1} << 40;
  EXPECT_FALSE(broadcast_shape({big, 1}, {1, big}, "here").ok());
  EXPECT_FALSE(broadcast_shape({int64_t{1} << 62}, {1}, "here").ok()) << "elements fit, bytes do not";
}

TEST(Binary, ThreadsDoNotChangeTheResult) {
  Random random(2);
  std::vector<float> a(200 * 1001), b(1001), one(a.size()), many(a.size());
  random.fill_normal(a);
  random.fill_normal(b);
  Machine single(1), several(4);
  const BinaryParams params{ElementwiseOp::mul, DType::f32, {200, 1001}, {1001}};
  ASSERT_TRUE(binary(single.context, params, {a.data(), b.data(), one.data()}, "").ok());
  ASSERT_TRUE(binary(several.context, params, {a.data(), b.data(), many.data()}, "").ok());
  EXPECT_EQ(one, many);
  for (size_t i = 0; i < a.size(); i++) ASSERT_EQ(one[i], a[i] * b[i % 1001]);
  sigmoid(single.context, a, one.data());
  sigmoid(several.context, a, many.data());
  EXPECT_EQ(one, many);
}

TEST(Binary, NodesOfEveryOperatorAndType) {
  const auto run = [](Factory factory, auto a, auto b) {
    using T = decltype(a);
    OneNode node(factory, "Op");
    node.know_integers = false;
    node.input(tensor<T>({1}, {a})).input(tensor<T>({1}, {b})).outputs(1);
    return (*node.run())[0].template values<T>()[0];
  };
  EXPECT_EQ(run(&make_add, 1.5f, 2.0f), 3.5f);
  EXPECT_EQ(run(&make_sub, 1.5f, 2.0f), -0.5f);
  EXPECT_EQ(run(&make_mul, 1.5f, 2.0f), 3.0f);
  EXPECT_EQ(run(&make_sub, INT64_MIN, int64_t{1}), INT64_MAX);
  EXPECT_EQ(run(&make_add, INT64_MAX, int64_t{2}), INT64_MIN + 1);
  EXPECT_EQ(run(&make_mul, int64_t{1} << 62, int64_t{4}), 0);
  EXPECT_EQ(run(&make_mul, INT32_MIN, -1), INT32_MIN);
}

TEST(Binary, KnownIntegersFoldToWhatRunningGives) {
  const std::vector<int64_t> a{INT64_MIN, 3, 5}, b{1, -7};
  for (Factory factory : {&make_add, &make_sub, &make_mul}) {
    OneNode node(factory, "Op");
    node.input(tensor<int64_t>({3, 1}, a)).input(tensor<int64_t>({2}, b)).outputs(1);
    const auto y = node.run();
    ASSERT_TRUE(y.ok());
    ASSERT_TRUE(node.values[0].known);
    const auto folded = node.values[0].span();
    EXPECT_EQ(std::vector<int64_t>(folded.begin(), folded.end()), (*y)[0].values<int64_t>());
  }
  OneNode narrow(&make_add, "Add");
  narrow.input(tensor<int32_t>({}, {INT32_MAX})).input(tensor<int32_t>({}, {1})).outputs(1);
  ASSERT_TRUE(narrow.run().ok());
  EXPECT_EQ(narrow.values[0].v[0], INT32_MIN);
}

TEST(Binary, MismatchesAreRefusedWithTheShapesSeen) {
  OneNode node(&make_mul, "Mul");
  node.input(tensor<float>({2, 3}, std::vector<float>(6))).input(tensor<float>({2}, {1, 2})).outputs(1);
  const auto y = node.run();
  ASSERT_FALSE(y.ok());
  EXPECT_EQ(y.error().code, Errc::bad_request);
  EXPECT_EQ(y.error().message(), "Mul node 'n': shapes [2, 3] and [2] do not broadcast");
}

TEST(Binary, TypesThatDifferOrAreNotSupportedAreRefused) {
  OneNode mixed(&make_add, "Add");
  mixed.input(tensor<float>({1}, {1})).input(tensor<int64_t>({1}, {1})).outputs(1);
  EXPECT_EQ(mixed.prepare().error().code, Errc::bad_model);
  OneNode wide(&make_add, "Add");
  wide.input(tensor<double>({1}, {1})).input(tensor<double>({1}, {1})).outputs(1);
  EXPECT_EQ(wide.prepare().error().code, Errc::unsupported);
  OneNode half(&make_sigmoid, "Sigmoid");
  half.input(tensor<uint16_t>({1}, {1})).outputs(1);
  EXPECT_EQ(half.prepare().error().code, Errc::unsupported);
}

TEST(Binary, ResolveAndRunAllocateNothing) {
  OneNode node(&make_mul, "Mul");
  node.input(tensor<float>({2, 3}, std::vector<float>(6))).input(tensor<float>({3}, {1, 2, 3})).outputs(1);
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
  OneNode gate(&make_sigmoid, "Sigmoid");
  gate.input(tensor<float>({3}, {1, 2, 3})).outputs(1);
  const auto z = gate.run(machine);
  ASSERT_TRUE(z.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(gate.run_again(machine).ok()); }), 0);
}

TEST(Sigmoid, HandComputedValues) {
  OneNode node(&make_sigmoid, "Sigmoid");
  node.input(tensor<float>({3}, {0, std::log(3.0f), -std::log(3.0f)})).outputs(1);
  const auto y = (*node.run())[0].values<float>();
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_NEAR(y[1], 0.75f, 1e-7f);
  EXPECT_NEAR(y[2], 0.25f, 1e-7f);
}

TEST(Sigmoid, EmptyAndScalarShapesPassThrough) {
  OneNode empty(&make_sigmoid, "Sigmoid");
  empty.input(tensor<float>({0, 4}, {})).outputs(1);
  EXPECT_EQ((*empty.run())[0].shape(), (Shape{0, 4}));
  OneNode scalar(&make_sigmoid, "Sigmoid");
  scalar.input(tensor<float>({}, {0})).outputs(1);
  EXPECT_EQ((*scalar.run())[0].values<float>(), std::vector<float>{0.5f});
}

// The instruction sets that silu_mul has a variant for, and this processor has.
std::vector<cpu::Features> silu_mul_features() {
  std::vector<cpu::Features> all;
  for (const Line& line : kLines) {
    const auto isa = line.kernel.isa;
    if (line.op != ElementwiseOp::silu_mul || !cpu::detect_features().has(isa)) continue;
    all.push_back(*cpu::cap_features(cpu::detect_features(), cpu::isa_name(isa)));
  }
  return all;
}

// NaNs may differ in their payload: which operand's is kept depends on the order of a product's operands.
void expect_same_values(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << "at " << i;
  }
}

TEST(SiluMul, HasTheBitsOfTheSeparateOperatorsForEveryThreadCount) {
  const float inf = std::numeric_limits<float>::infinity();
  Random random(4);
  std::vector<float> a(70001), b(a.size());
  random.fill_normal(a, 10);
  random.fill_normal(b, 3);
  size_t at = 0;
  for (float x : {0.0f, -0.0f, 87.3f, -87.3f, -87.31f, -200.0f, 3e38f, -3e38f, 1e-40f, inf, -inf, std::nanf("")}) {
    for (float y : {0.0f, -0.0f, 1.0f, -3e38f, 1e-40f, inf, -inf, std::nanf("")}) {
      a[at] = x;
      b[at++] = y;
    }
  }
  for (const cpu::Features& features : silu_mul_features()) {
    for (int threads : {1, 3}) {
      Machine machine(threads);
      machine.context.features = features;
      std::vector<float> silu(a.size()), separate(a.size()), joint(a.size());
      const Shape shape{static_cast<int64_t>(a.size())};
      sigmoid(machine.context, a, silu.data());
      const BinaryParams params{ElementwiseOp::mul, DType::f32, shape, shape};
      ASSERT_TRUE(binary(machine.context, params, {a.data(), silu.data(), silu.data()}, "").ok());
      ASSERT_TRUE(binary(machine.context, params, {silu.data(), b.data(), separate.data()}, "").ok());
      silu_mul(machine.context, a, b.data(), joint.data());
      expect_same_values(joint, separate);
    }
  }
}

// Runs an operator that is already made on `in` and gives output 0.
Result<std::vector<float>> run_made(const Operator& op, Machine& machine, const std::vector<Tensor>& in) {
  std::vector<Shape> shapes(1);
  std::vector<IntValues> values(1), known(in.size());
  std::vector<View> views(1);
  QUERN_TRY_VOID(op.resolve({in, known, shapes, values, views}));
  support::OwnedTensor y(DType::f32, shapes[0]);
  const Tensor out = y.view();
  QUERN_TRY_VOID(op.run(machine.context, in, {&out, 1}));
  return y.values<float>();
}

TEST(SiluMul, TheOperatorBroadcastsAsItsNodesDo) {
  OneNode sigmoid_node(&make_sigmoid, "Sigmoid");
  sigmoid_node.input(tensor<float>({1}, {0})).outputs(1);
  const auto sigmoid_op = sigmoid_node.prepare();
  ASSERT_TRUE(sigmoid_op.ok());
  const auto op = make_silu_mul("Mul node 'n'", **sigmoid_op);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(make_silu_mul("", *op), nullptr) << "made of the operator of a Sigmoid node only";
  EXPECT_EQ(op->variant(), elementwise_variant(ElementwiseOp::silu_mul, DType::f32, cpu::detect_features()));
  Machine machine;
  Random random(5);
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3, 4}, {2, 3, 4}}, {{2, 3, 4}, {4}}, {{1}, {5, 2}}, {{3, 1}, {1, 4}}, {{}, {}}, {{0, 4}, {4}}}) {
    std::vector<float> x(static_cast<size_t>(a.elements())), z(static_cast<size_t>(b.elements()));
    random.fill_normal(x);
    random.fill_normal(z);
    const auto left = tensor<float>(a, x), right = tensor<float>(b, z);
    const auto y = run_made(*op, machine, {left.view(), right.view()});
    ASSERT_TRUE(y.ok());
    std::vector<float> silu(x.size()), wanted(y->size());
    sigmoid(machine.context, x, silu.data());
    ASSERT_TRUE(
        binary(machine.context, {ElementwiseOp::mul, DType::f32, a, a}, {x.data(), silu.data(), silu.data()}, "").ok());
    ASSERT_TRUE(
        binary(machine.context, {ElementwiseOp::mul, DType::f32, a, b}, {silu.data(), z.data(), wanted.data()}, "")
            .ok());
    EXPECT_EQ(*y, wanted) << a.to_string() << b.to_string();
  }
  const auto left = tensor<float>({2, 3}, std::vector<float>(6)), right = tensor<float>({2}, {1, 2});
  const auto refused = run_made(*op, machine, {left.view(), right.view()});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message(), "Mul node 'n': shapes [2, 3] and [2] do not broadcast");
}

}  // namespace
}  // namespace quern::ops
