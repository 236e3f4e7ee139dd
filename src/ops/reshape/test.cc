// SPDX-License-Identifier: Apache-2.0
// Reshape: the shape rule against the standard's, the view rule against a copy of the same tensor.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/reshape/reshape.h"
#include "tests/support/allocation_count.h"
#include "tests/support/one_node.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_reshape(const NodeView& node, const PrepareContext& ctx);

namespace {

using support::Machine;
using support::OneNode;
using support::tensor;

OneNode reshape_node() { return std::move(OneNode(&make_reshape, "Reshape").outputs(1)); }

struct Rule {
  Shape input;
  std::vector<int64_t> request;
  bool allow_zero;
  std::optional<Shape> wanted;
};

TEST(Reshape, ShapeRule) {
  const int64_t big = int64_t{1} << 40;
  const std::vector<Rule> rules{
      {{2, 3, 2048}, {0, -1, 128}, false, Shape{2, 48, 128}},
      {{2, 48, 128}, {0, -1, 2048}, false, Shape{2, 3, 2048}},
      {{2, 0, 2048}, {0, -1, 128}, false, Shape{2, 0, 128}},
      {{0, 3, 2048}, {0, -1, 128}, false, std::nullopt},
      {{6}, {2, 3}, false, Shape{2, 3}},
      {{6}, {-1}, false, Shape{6}},
      {{1, 1}, {}, false, Shape{}},
      {{}, {1, 1}, false, Shape{1, 1}},
      {{}, {-1}, false, Shape{1}},
      {{2}, {}, false, std::nullopt},
      {{6}, {2, 2}, false, std::nullopt},
      {{6}, {4, -1}, false, std::nullopt},
      {{6}, {-1, -1}, false, std::nullopt},
      {{6}, {-2, 3}, false, std::nullopt},
      {{6}, {6, 0}, false, std::nullopt},
      {{0, 3}, {0, 0}, false, Shape{0, 3}},
      {{0, 3}, {3, 0}, true, Shape{3, 0}},
      {{0, 3}, {-1, 0}, true, std::nullopt},
      {{2, 3}, {0, 3}, true, std::nullopt},
      {{0, 3}, {5, 0}, false, std::nullopt},
      {{6}, {big, big}, false, std::nullopt},
      {{6}, {big, big, -1}, false, std::nullopt},
      {{0}, {big, big, 0}, true, Shape{big, big, 0}},
      {{1}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, false, std::nullopt},
  };
  for (const Rule& r : rules) {
    const auto got = reshape_shape(r.input, r.request, r.allow_zero, "here");
    const std::string name = r.input.to_string() + " to " + testing::PrintToString(r.request);
    ASSERT_EQ(got.ok(), r.wanted.has_value()) << name;
    if (got.ok()) {
      EXPECT_EQ(got->to_string(), r.wanted->to_string()) << name;
    } else {
      EXPECT_EQ(got.error().code, Errc::bad_request) << name;
    }
  }
}

TEST(Reshape, ErrorNamesNodeAndShapes) {
  auto node = reshape_node();
  node.input(tensor<float>({6}, std::vector<float>(6))).input(tensor<int64_t>({2}, {4, -1}));
  const auto y = node.run();
  ASSERT_FALSE(y.ok());
  EXPECT_EQ(y.error().where, "Reshape node 'n'");
  EXPECT_NE(y.error().what.find("[6] to [4, -1]"), std::string::npos) << y.error().what;
}

TEST(Reshape, RequestOfWrongRankIsRefused) {
  auto fed = reshape_node();
  fed.input(tensor<float>({1}, {1})).input(tensor<int64_t>({1, 1}, {1}));
  EXPECT_EQ(fed.run().error().code, Errc::bad_request);
  auto constant = reshape_node();
  constant.input(tensor<float>({1}, {1})).constant(tensor<int64_t>({}, {1}));
  EXPECT_EQ(constant.prepare().error().code, Errc::bad_model);
}

TEST(Reshape, ContiguousInputIsAViewOfTheSameStorage) {
  auto node = reshape_node();
  node.input(tensor<float>({2, 6}, std::vector<float>(12))).constant(tensor<int64_t>({2}, {-1, 4}));
  const auto op = node.prepare();
  ASSERT_TRUE(op.ok() && node.resolve(**op).ok());
  EXPECT_EQ((*op)->shape_inputs(), 2u);
  EXPECT_EQ(node.views[0].of, 0);
  EXPECT_EQ(node.views[0].offset, 0);
  EXPECT_TRUE(node.views[0].contiguous);
}

// Reads element i of a tensor in row-major order through its layout.
float element(const float* data, const Shape& shape, const RowLayout& rows, bool contiguous, int64_t i) {
  if (contiguous) return data[i];
  return data[rows.offset(i / shape.back()) + i % shape.back()];
}

TEST(Reshape, ViewsReadTheSameElementsAsCopies) {
  std::vector<float> storage(5 * 4096);
  std::iota(storage.begin(), storage.end(), 0.0f);
  struct Layout {
    Shape shape;
    RowLayout rows;
  };
  const std::vector<Layout> layouts{{{5, 24}, {1, 0, 40}},   {{1, 24}, {1, 0, 40}},      {{5, 24}, {1, 0, 24}},
                                    {{5, 4, 6}, {4, 6, 40}}, {{5, 4, 6}, {4, 8, 40}},    {{20, 6}, {4, 6, 40}},
                                    {{1, 4, 6}, {4, 6, 40}}, {{5, 2, 2, 6}, {4, 6, 40}}, {{5, 4, 1}, {4, 3, 40}}};
  const std::vector<std::vector<int64_t>> requests{{-1, 6}, {-1, 24}, {-1, 12}, {-1, 8},     {-1, 1},    {-1},
                                                   {-1, 3}, {-1, 48}, {5, -1},  {5, -1, 24}, {5, 2, -1}, {-1, 40}};
  int views = 0, copies = 0;
  for (const Layout& layout : layouts) {
    for (const auto& request : requests) {
      const auto shape = reshape_shape(layout.shape, request, false, "here");
      if (!shape.ok()) continue;
      Tensor x;
      x.data = storage.data();
      x.shape = layout.shape;
      x.layout = layout.rows;
      x.contiguous = false;
      Machine machine;
      std::vector<float> copy(static_cast<size_t>(x.elements()));
      reshape_copy(machine.context, x, copy.data());
      EXPECT_EQ(machine.counters.bytes_copied, copy.size() * sizeof(float));
      for (int64_t i = 0; i < x.elements(); i++) {
        ASSERT_EQ(copy[static_cast<size_t>(i)], element(storage.data(), x.shape, x.layout, false, i));
      }
      const auto rows = reshape_rows(x, *shape);
      (rows ? views : copies)++;
      if (!rows) continue;
      for (int64_t i = 0; i < x.elements(); i++) {
        ASSERT_EQ(element(storage.data(), *shape, rows->layout, rows->contiguous, i), copy[static_cast<size_t>(i)])
            << layout.shape.to_string() << " to " << shape->to_string() << " at " << i;
      }
    }
  }
  EXPECT_GT(views, 30);
  EXPECT_GT(copies, 10);
}

TEST(Reshape, HeadsOfASplitAreViews) {
  Tensor x;
  x.shape = {2, 3, 2048};
  x.layout = {1, 0, 4096};
  x.contiguous = false;
  const auto rows = reshape_rows(x, {2, 48, 128});
  ASSERT_TRUE(rows.has_value());
  EXPECT_FALSE(rows->contiguous);
  EXPECT_EQ(rows->layout.inner, 16);
  EXPECT_EQ(rows->layout.inner_stride, 128);
  EXPECT_EQ(rows->layout.outer_stride, 4096);
  EXPECT_FALSE(reshape_rows(x, {4, 3072}).has_value());
}

TEST(Reshape, RunCopiesWhatIsNotAViewAndCountsIt) {
  auto node = reshape_node();
  node.input(tensor<int64_t>({2, 3}, {1, 2, 3, 4, 5, 6})).constant(tensor<int64_t>({1}, {-1}));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].shape(), Shape{6});
  EXPECT_EQ((*y)[0].values<int64_t>(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(machine.counters.bytes_copied, 48u);
}

TEST(Reshape, RunOnTheSameStorageCopiesNothing) {
  auto node = reshape_node();
  node.input(tensor<float>({2}, {1, 2})).constant(tensor<int64_t>({2}, {2, 1}));
  const auto op = node.prepare();
  ASSERT_TRUE(op.ok() && node.resolve(**op).ok());
  Machine machine;
  std::array<Tensor, 1> out{node.inputs()[0]};
  out[0].shape = node.shapes[0];
  ASSERT_TRUE((*op)->run(machine.context, node.inputs(), out).ok());
  EXPECT_EQ(machine.counters.bytes_copied, 0u);
}

TEST(Reshape, LargeCopiesAreTheSameOnManyThreads) {
  std::vector<float> values(300 * 1001);
  std::iota(values.begin(), values.end(), 0.0f);
  auto node = reshape_node();
  node.input(tensor<float>({300, 1001}, values)).constant(tensor<int64_t>({1}, {-1}));
  Machine machine(3);
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].values<float>(), values);
}

TEST(Reshape, AttributesAndTypesAreChecked) {
  auto old = OneNode(&make_reshape, "Reshape", "", 13);
  old.attribute("allowzero", 1).input(tensor<float>({1}, {1})).input(tensor<int64_t>({1}, {1})).outputs(1);
  EXPECT_EQ(old.prepare().error().code, Errc::unsupported);
  auto narrow = reshape_node();
  narrow.input(tensor<float>({1}, {1})).input(tensor<int32_t>({1}, {1}));
  EXPECT_EQ(narrow.prepare().error().code, Errc::unsupported);
}

TEST(Reshape, ResolveAndRunAllocateNothing) {
  auto node = reshape_node();
  node.input(tensor<float>({2, 3}, std::vector<float>(6))).constant(tensor<int64_t>({2}, {0, -1}));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
}

}  // namespace
}  // namespace quern::ops
