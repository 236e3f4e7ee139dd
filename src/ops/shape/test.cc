// SPDX-License-Identifier: Apache-2.0
// Shape: extents, slices of them, and that no payload is needed.
#include <gtest/gtest.h>

#include "tests/support/one_node.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_shape(const NodeView& node, const PrepareContext& ctx);

namespace {

using support::OneNode;
using support::tensor;

OneNode shape_node(int64_t opset = 21) { return std::move(OneNode(&make_shape, "Shape", "", opset).outputs(1)); }

std::vector<int64_t> extents(OneNode& node) {
  const auto y = node.run();
  EXPECT_TRUE(y.ok());
  const auto run = (*y)[0].values<int64_t>();
  const auto folded = node.values[0].span();
  EXPECT_TRUE(node.values[0].known);
  EXPECT_EQ(run, std::vector<int64_t>(folded.begin(), folded.end())) << "folding and running differ";
  return run;
}

TEST(ShapeOf, ExtentsOfATensor) {
  auto node = shape_node();
  node.input(tensor<float>({2, 1, 3}, std::vector<float>(6)));
  EXPECT_EQ(extents(node), (std::vector<int64_t>{2, 1, 3}));
  EXPECT_TRUE((*node.prepare())->folds_shapes());
}

TEST(ShapeOf, EmptyAndScalarTensors) {
  auto empty = shape_node();
  empty.input(tensor<float>({0, 4}, {}));
  EXPECT_EQ(extents(empty), (std::vector<int64_t>{0, 4}));
  auto scalar = shape_node();
  scalar.input(tensor<float>({}, {1}));
  EXPECT_EQ(extents(scalar), std::vector<int64_t>{});
}

TEST(ShapeOf, StartAndEndAreClamped) {
  struct Case {
    int64_t start, end;
    std::vector<int64_t> wanted;
  };
  for (const auto& [start, end, wanted] : std::vector<Case>{{0, 2, {5, 6}},
                                                            {1, 3, {6, 7}},
                                                            {-1, 9, {7}},
                                                            {-9, -1, {5, 6}},
                                                            {2, 1, {}},
                                                            {9, 9, {}},
                                                            {INT64_MIN, INT64_MAX, {5, 6, 7}}}) {
    auto node = shape_node();
    node.attribute("start", start).attribute("end", end).input(tensor<float>({5, 6, 7}, std::vector<float>(210)));
    EXPECT_EQ(extents(node), wanted) << start << " to " << end;
  }
}

TEST(ShapeOf, SlicesNeedOpset15) {
  auto node = shape_node(13);
  node.attribute("start", 1).input(tensor<float>({1}, {1}));
  ASSERT_FALSE(node.prepare().ok());
  EXPECT_EQ(node.prepare().error().code, Errc::unsupported);
}

}  // namespace
}  // namespace quern::ops
