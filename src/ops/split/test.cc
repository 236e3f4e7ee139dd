// SPDX-License-Identifier: Apache-2.0
// Split: sizes, views and copies against hand-written results.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/split/split.h"
#include "tests/support/allocation_count.h"
#include "tests/support/one_node.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_split(const NodeView& node, const PrepareContext& ctx);

namespace {

using support::Machine;
using support::OneNode;
using support::OwnedTensor;
using support::tensor;

OwnedTensor counted(Shape shape) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), 0.0f);
  return tensor<float>(shape, values);
}

OneNode split_node(int outputs, int64_t opset = 21) {
  return std::move(OneNode(&make_split, "Split", "", opset).outputs(outputs));
}

TEST(Split, LastAxisBySizes) {
  auto node = split_node(3);
  node.attribute("axis", -1).input(counted({2, 4})).constant(tensor<int64_t>({3}, {2, 1, 1}));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].shape(), (Shape{2, 2}));
  EXPECT_EQ((*y)[0].values<float>(), (std::vector<float>{0, 1, 4, 5}));
  EXPECT_EQ((*y)[1].values<float>(), (std::vector<float>{2, 6}));
  EXPECT_EQ((*y)[2].values<float>(), (std::vector<float>{3, 7}));
  EXPECT_EQ(machine.counters.bytes_copied, 32u);
}

TEST(Split, FirstAndMiddleAxis) {
  auto first = split_node(2);
  first.input(counted({3, 2})).input(tensor<int64_t>({2}, {1, 2}));
  const auto a = first.run();
  ASSERT_TRUE(a.ok());
  EXPECT_EQ((*a)[1].values<float>(), (std::vector<float>{2, 3, 4, 5}));
  auto middle = split_node(2);
  middle.attribute("axis", 1).input(counted({2, 3, 2})).input(tensor<int64_t>({2}, {2, 1}));
  const auto b = middle.run();
  ASSERT_TRUE(b.ok());
  EXPECT_EQ((*b)[0].values<float>(), (std::vector<float>{0, 1, 2, 3, 6, 7, 8, 9}));
  EXPECT_EQ((*b)[1].values<float>(), (std::vector<float>{4, 5, 10, 11}));
}

TEST(Split, SizeZeroGivesAnEmptyOutput) {
  auto node = split_node(3);
  node.input(counted({2})).input(tensor<int64_t>({3}, {0, 2, 0}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].shape(), Shape{0});
  EXPECT_EQ((*y)[1].values<float>(), (std::vector<float>{0, 1}));
  EXPECT_EQ((*y)[2].shape(), Shape{0});
}

TEST(Split, EmptyTensorsSplit) {
  auto node = split_node(2);
  node.attribute("axis", 1).input(counted({0, 4})).input(tensor<int64_t>({2}, {1, 3}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[1].shape(), (Shape{0, 3}));
}

TEST(Split, NumOutputsGivesTheLastPieceTheRest) {
  auto node = split_node(3);
  node.attribute("num_outputs", 3).input(counted({8}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].shape(), Shape{3});
  EXPECT_EQ((*y)[2].shape(), Shape{2});
  auto too_many = split_node(4);
  too_many.attribute("num_outputs", 4).input(counted({5}));
  EXPECT_EQ(too_many.run().error().code, Errc::bad_request) << "pieces of 2 leave -1 for the last";
}

TEST(Split, WithoutSizesThePartsAreEqual) {
  auto even = split_node(2, 13);
  even.input(counted({4}));
  ASSERT_TRUE(even.run().ok());
  auto odd = split_node(2, 13);
  odd.input(counted({5}));
  EXPECT_EQ(odd.run().error().code, Errc::bad_request);
}

TEST(Split, WrongSizesAreRefusedWithTheSizesSeen) {
  const std::vector<std::vector<int64_t>> wrong{{1, 2}, {2, 3}, {-1, 5}, {4}, {1, 1, 2}, {INT64_MAX, INT64_MAX},
                                                {5, -1}};
  for (const auto& sizes : wrong) {
    auto node = split_node(2);
    node.input(counted({4})).input(tensor<int64_t>({static_cast<int64_t>(sizes.size())}, sizes));
    const auto y = node.run();
    ASSERT_FALSE(y.ok()) << testing::PrintToString(sizes);
    EXPECT_EQ(y.error().code, Errc::bad_request);
    EXPECT_EQ(y.error().where, "Split node 'n'");
  }
  auto matrix = split_node(2);
  matrix.input(counted({4})).input(tensor<int64_t>({1, 2}, {2, 2}));
  EXPECT_FALSE(matrix.run().ok());
}

TEST(Split, NodesThatContradictThemselvesAreRefused) {
  auto both = split_node(2);
  both.attribute("num_outputs", 2).input(counted({4})).input(tensor<int64_t>({2}, {2, 2}));
  EXPECT_EQ(both.prepare().error().code, Errc::bad_model);
  auto count = split_node(2);
  count.attribute("num_outputs", 3).input(counted({6}));
  EXPECT_EQ(count.prepare().error().code, Errc::bad_model);
  auto axis = split_node(2);
  axis.attribute("axis", 1).input(counted({4})).input(tensor<int64_t>({2}, {2, 2}));
  EXPECT_EQ(axis.run().error().code, Errc::bad_request);
}

TEST(Split, PackedProjectionsOfOneTokenAreContiguousViews) {
  for (int64_t tokens : {1, 3}) {
    auto node = split_node(3);
    node.attribute("axis", -1).input(counted({1, tokens, 4096})).constant(tensor<int64_t>({3}, {2048, 1024, 1024}));
    const auto op = node.prepare();
    ASSERT_TRUE(op.ok() && node.resolve(**op).ok());
    for (size_t j = 0; j < 3; j++) {
      EXPECT_EQ(node.views[j].of, 0);
      EXPECT_EQ(node.views[j].offset, (std::array<int64_t, 3>{0, 2048, 3072})[j]);
      EXPECT_EQ(node.views[j].contiguous, tokens == 1);
      if (tokens == 1) continue;
      EXPECT_EQ(node.views[j].layout.outer_stride, 4096);
      EXPECT_EQ(node.views[j].layout.inner, 1);
    }
  }
}

TEST(Split, ViewsReadTheSameElementsAsCopies) {
  const std::vector<std::pair<Shape, int>> cases{
      {{2, 3, 4}, 2}, {{1, 3, 4}, 2}, {{4, 2}, 0}, {{1, 4, 3}, 1}, {{2, 4, 3}, 1}};
  for (const auto& [shape, axis] : cases) {
    auto node = split_node(2);
    node.attribute("axis", axis).input(counted(shape)).input(tensor<int64_t>({2}, {1, shape[axis] - 1}));
    const auto y = node.run();
    ASSERT_TRUE(y.ok());
    const bool is_view = axis == shape.rank() - 1 || (axis == 0 || shape[0] == 1);
    const auto x = node.input_tensor(0).values<float>();
    for (size_t j = 0; j < 2; j++) {
      const View& view = node.views[j];
      ASSERT_EQ(view.of, is_view ? 0 : -1) << shape.to_string() << " axis " << axis;
      if (!is_view) continue;
      const auto copy = (*y)[j].values<float>();
      const int64_t width = node.shapes[j].back();
      for (int64_t i = 0; i < static_cast<int64_t>(copy.size()); i++) {
        const int64_t at = view.offset + (view.contiguous ? i : view.layout.offset(i / width) + i % width);
        EXPECT_EQ(x[static_cast<size_t>(at)], copy[static_cast<size_t>(i)]);
      }
    }
  }
}

TEST(Split, RunSkipsOutputsThatLieInTheInput) {
  auto node = split_node(2);
  node.attribute("axis", -1).input(counted({2, 4})).input(tensor<int64_t>({2}, {3, 1}));
  const auto op = node.prepare();
  ASSERT_TRUE(op.ok() && node.resolve(**op).ok());
  Machine machine;
  std::vector<float> copy(2, -1);
  std::array<Tensor, 2> out{node.inputs()[0], node.inputs()[0]};
  out[0].shape = node.shapes[0];
  out[1].shape = node.shapes[1];
  out[1].data = copy.data();
  ASSERT_TRUE((*op)->run(machine.context, node.inputs(), out).ok());
  EXPECT_EQ(copy, (std::vector<float>{3, 7}));
  EXPECT_EQ(node.input_tensor(0).values<float>(), counted({2, 4}).values<float>());
  EXPECT_EQ(machine.counters.bytes_copied, 8u);
}

TEST(Split, ManyThreadsCopyTheSame) {
  auto node = split_node(2);
  node.attribute("axis", 1).input(counted({300, 1001})).input(tensor<int64_t>({2}, {1000, 1}));
  Machine one(1), three(3);
  const auto a = node.run(one), b = node.run(three);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)[0].values<float>(), (*b)[0].values<float>());
  EXPECT_EQ((*b)[1].values<float>()[2], 3002);
}

TEST(Split, ResolveAndRunAllocateNothing) {
  auto node = split_node(2);
  node.attribute("axis", -1).input(counted({2, 4})).input(tensor<int64_t>({2}, {3, 1}));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
}

}  // namespace
}  // namespace quern::ops
