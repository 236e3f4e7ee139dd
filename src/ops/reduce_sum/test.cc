// SPDX-License-Identifier: Apache-2.0
// ReduceSum against hand-written results and an independent sum.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/reduce_sum/reduce_sum.h"
#include "tests/support/allocation_count.h"
#include "tests/support/one_node.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_reduce_sum(const NodeView& node, const PrepareContext& ctx);

namespace {

using support::Machine;
using support::OneNode;
using support::OwnedTensor;
using support::tensor;

OneNode reduce_node() { return std::move(OneNode(&make_reduce_sum, "ReduceSum").outputs(1)); }

OwnedTensor counted(Shape shape) {
  std::vector<int64_t> values(static_cast<size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), int64_t{0});
  return tensor<int64_t>(shape, values);
}

TEST(ReduceSum, LengthsOfAMask) {
  auto node = reduce_node();
  node.attribute("keepdims", 0).input(tensor<int64_t>({2, 3}, {1, 1, 1, 1, 0, 0})).constant(tensor<int64_t>({1}, {1}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].shape(), Shape{2});
  EXPECT_EQ((*y)[0].values<int64_t>(), (std::vector<int64_t>{3, 1}));
}

TEST(ReduceSum, EveryChoiceOfAxes) {
  const Shape shape{2, 3, 2, 4};
  const auto x = counted(shape).values<int64_t>();
  for (uint32_t bits = 1; bits < 16; bits++) {
    for (int keep : {0, 1}) {
      std::vector<int64_t> axes;
      for (int i = 3; i >= 0; i--) {
        if ((bits >> i & 1) != 0) axes.push_back(i % 2 == 0 ? i : i - 4);
      }
      auto node = reduce_node();
      node.attribute("keepdims", keep).input(counted(shape));
      node.input(tensor<int64_t>({static_cast<int64_t>(axes.size())}, axes));
      const auto y = node.run();
      ASSERT_TRUE(y.ok()) << y.error().message();
      // Independent form: every input element is added to the output that its kept coordinates name.
      std::vector<int64_t> wanted((*y)[0].values<int64_t>().size(), 0);
      Shape out;
      for (int64_t i = 0; i < static_cast<int64_t>(x.size()); i++) {
        const std::array<int64_t, 4> at{i / 24, i / 8 % 3, i / 4 % 2, i % 4};
        int64_t o = 0;
        for (int d = 0; d < 4; d++) {
          if ((bits >> d & 1) == 0) o = o * shape[d] + at[static_cast<size_t>(d)];
        }
        wanted[static_cast<size_t>(o)] += x[static_cast<size_t>(i)];
      }
      for (int d = 0; d < 4; d++) {
        if ((bits >> d & 1) == 0) out.push_back(shape[d]);
        if ((bits >> d & 1) != 0 && keep == 1) out.push_back(1);
      }
      EXPECT_EQ((*y)[0].shape().to_string(), out.to_string());
      EXPECT_EQ((*y)[0].values<int64_t>(), wanted) << bits;
    }
  }
}

TEST(ReduceSum, EmptyOrAbsentAxesReduceEverything) {
  for (bool absent : {true, false}) {
    auto node = reduce_node();
    node.input(counted({2, 3}));
    if (absent) node.absent();
    if (!absent) node.input(tensor<int64_t>({0}, {}));
    const auto y = node.run();
    ASSERT_TRUE(y.ok()) << y.error().message();
    EXPECT_EQ((*y)[0].shape(), (Shape{1, 1}));
    EXPECT_EQ((*y)[0].values<int64_t>(), std::vector<int64_t>{15});
  }
}

TEST(ReduceSum, NoopWithEmptyAxesIsTheIdentity) {
  auto node = reduce_node();
  node.attribute("noop_with_empty_axes", 1).input(counted({2, 3}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].values<int64_t>(), counted({2, 3}).values<int64_t>());
}

TEST(ReduceSum, SumOverNothingIsZero) {
  auto node = reduce_node();
  node.attribute("keepdims", 0).input(counted({2, 0})).input(tensor<int64_t>({1}, {1}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].shape(), Shape{2});
  EXPECT_EQ((*y)[0].values<int64_t>(), (std::vector<int64_t>{0, 0}));
  auto kept = reduce_node();
  kept.attribute("keepdims", 0).input(counted({2, 0})).input(tensor<int64_t>({1}, {0}));
  EXPECT_EQ((*kept.run())[0].shape(), Shape{0});
}

TEST(ReduceSum, ScalarsReduceToThemselves) {
  auto node = reduce_node();
  node.input(tensor<float>({}, {2.5f}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].shape(), Shape{});
  EXPECT_EQ((*y)[0].values<float>(), std::vector<float>{2.5f});
}

TEST(ReduceSum, RepeatedAxesCountOnceAndUnalignedOnesAreRead) {
  auto node = reduce_node();
  node.attribute("keepdims", 0).input(counted({2, 3})).constant(tensor<int64_t>({3}, {1, -1, 1}, 3));
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].values<int64_t>(), (std::vector<int64_t>{3, 12}));
}

TEST(ReduceSum, IntegersAreExactAndWrap) {
  auto wide = reduce_node();
  wide.attribute("keepdims", 0).input(tensor<int64_t>({3}, {(int64_t{1} << 53) + 1, 1, INT64_MAX}));
  const auto y = wide.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].values<int64_t>()[0], static_cast<int64_t>((uint64_t{1} << 53) + 2 + uint64_t{INT64_MAX}));
  auto narrow = reduce_node();
  narrow.attribute("keepdims", 0).input(tensor<int32_t>({2}, {INT32_MAX, 1}));
  EXPECT_EQ((*narrow.run())[0].values<int32_t>()[0], INT32_MIN);
}

TEST(ReduceSum, FloatsAreRoundedOnce) {
  // 2^24 + 1 + 1 loses both ones when every addition rounds to float32.
  auto node = reduce_node();
  node.attribute("keepdims", 0).input(tensor<float>({3}, {0x1p24f, 1, 1}));
  EXPECT_EQ((*node.run())[0].values<float>()[0], 0x1p24f + 2);
}

TEST(ReduceSum, AxesOutOfRangeOrOfWrongRankAreRefused) {
  for (int64_t axis : {int64_t{2}, int64_t{-3}, INT64_MIN}) {
    auto node = reduce_node();
    node.input(counted({2, 3})).input(tensor<int64_t>({1}, {axis}));
    EXPECT_EQ(node.run().error().code, Errc::bad_request);
  }
  auto fed = reduce_node();
  fed.input(counted({2, 3})).input(tensor<int64_t>({}, {1}));
  EXPECT_EQ(fed.run().error().code, Errc::bad_request);
  auto constant = reduce_node();
  constant.input(counted({2, 3})).constant(tensor<int64_t>({}, {1}));
  EXPECT_EQ(constant.prepare().error().code, Errc::bad_model);
}

TEST(ReduceSum, TypesNotSupportedAreRefusedByName) {
  auto node = reduce_node();
  node.input(tensor<double>({1}, {1}));
  EXPECT_NE(node.prepare().error().what.find("float64"), std::string::npos);
}

TEST(ReduceSum, ThreadsDoNotChangeTheResult) {
  std::vector<float> values(400 * 1000);
  for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(i % 977) * 0.37f;
  auto node = reduce_node();
  node.input(tensor<float>({400, 1000}, values)).input(tensor<int64_t>({1}, {0}));
  Machine one(1), three(3);
  const auto a = node.run(one), b = node.run(three);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)[0].values<float>(), (*b)[0].values<float>());
}

TEST(ReduceSum, ResolveAndRunAllocateNothing) {
  auto node = reduce_node();
  node.input(counted({2, 3})).input(tensor<int64_t>({1}, {1}));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
}

}  // namespace
}  // namespace quern::ops
