// SPDX-License-Identifier: Apache-2.0
// Gather against hand-written results, and what it may touch.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/gather/gather.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_gather(const NodeView& node, const PrepareContext& ctx);

namespace {

using support::GuardedArray;
using support::Machine;
using support::OneNode;
using support::tensor;

OneNode gather_node() { return std::move(OneNode(&make_gather, "Gather").outputs(1)); }

TEST(Gather, RowsOfATable) {
  auto node = gather_node();
  node.input(tensor<float>({3, 2}, {0, 1, 10, 11, 20, 21})).input(tensor<int64_t>({2, 2}, {2, 0, -1, 2}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].shape(), (Shape{2, 2, 2}));
  EXPECT_EQ((*y)[0].values<float>(), (std::vector<float>{20, 21, 0, 1, 20, 21, 20, 21}));
}

TEST(Gather, InnerAxisAndInt32Indices) {
  auto node = gather_node();
  node.attribute("axis", -1).input(tensor<int32_t>({2, 3}, {1, 2, 3, 4, 5, 6})).input(tensor<int32_t>({2}, {-3, 1}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].values<int32_t>(), (std::vector<int32_t>{1, 2, 4, 5}));
}

TEST(Gather, MiddleAxisKeepsTheOuterOrder) {
  auto node = gather_node();
  std::vector<float> data(2 * 3 * 2);
  for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<float>(i);
  node.attribute("axis", 1).input(tensor<float>({2, 3, 2}, data)).input(tensor<int64_t>({2}, {2, 1}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].values<float>(), (std::vector<float>{4, 5, 2, 3, 10, 11, 8, 9}));
}

TEST(Gather, ScalarIndexRemovesTheAxis) {
  auto node = gather_node();
  node.input(tensor<int64_t>({2}, {7, 9})).constant(tensor<int64_t>({}, {1}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].shape(), Shape{});
  EXPECT_EQ((*y)[0].values<int64_t>(), std::vector<int64_t>{9});
}

TEST(Gather, KnownValuesAreFolded) {
  auto node = gather_node();
  node.input(tensor<int64_t>({3}, {4, 5, 6})).input(tensor<int64_t>({2}, {-1, 0}));
  const auto op = node.prepare();
  ASSERT_TRUE(op.ok());
  EXPECT_TRUE((*op)->folds_known_values());
  ASSERT_TRUE(node.resolve(**op).ok());
  ASSERT_TRUE(node.values[0].known);
  ASSERT_EQ(node.values[0].count, 2);
  EXPECT_EQ(node.values[0].v[0], 6);
  EXPECT_EQ(node.values[0].v[1], 4);
}

TEST(Gather, EmptyIndicesGiveAnEmptyOutput) {
  auto node = gather_node();
  node.input(tensor<float>({3, 2}, {0, 1, 2, 3, 4, 5})).input(tensor<int64_t>({0}, {}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok()) << y.error().message();
  EXPECT_EQ((*y)[0].shape(), (Shape{0, 2}));
}

TEST(Gather, EmptyTableRejectsEveryIndex) {
  for (const std::vector<int64_t>& index : {std::vector<int64_t>{0}, std::vector<int64_t>{-1}}) {
    auto node = gather_node();
    node.input(tensor<float>({0, 2}, {})).input(tensor<int64_t>({1}, index));
    EXPECT_FALSE(node.run().ok());
  }
}

TEST(Gather, IndexOutOfRangeWritesNothing) {
  for (int64_t bad : {int64_t{3}, int64_t{-4}, INT64_MAX, INT64_MIN}) {
    Machine machine;
    const std::vector<float> data{1, 2, 3};
    const std::vector<int64_t> indices{0, bad};
    std::vector<float> y{-1, -1};
    const auto done =
        gather(machine.context, {1, 3, 2, 4, DType::i64}, {data.data(), indices.data(), y.data()}, "here");
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, Errc::bad_request);
    EXPECT_EQ(done.error().where, "here");
    EXPECT_EQ(y, (std::vector<float>{-1, -1}));
  }
}

TEST(Gather, NodeErrorNamesTheNodeAndTheIndex) {
  auto node = gather_node();
  node.input(tensor<float>({3}, {1, 2, 3})).input(tensor<int64_t>({1}, {5}));
  const auto y = node.run();
  ASSERT_FALSE(y.ok());
  EXPECT_EQ(y.error().where, "Gather node 'n'");
  EXPECT_NE(y.error().what.find("5"), std::string::npos);
}

TEST(Gather, AxisOutsideOfTheRankIsRefused) {
  for (int axis : {2, -3}) {
    auto constant = gather_node();
    constant.attribute("axis", axis).constant(tensor<float>({1, 1}, {1})).input(tensor<int64_t>({1}, {0}));
    EXPECT_EQ(constant.prepare().error().code, Errc::bad_model);
    auto fed = gather_node();
    fed.attribute("axis", axis).input(tensor<float>({1, 1}, {1})).input(tensor<int64_t>({1}, {0}));
    EXPECT_EQ(fed.run().error().code, Errc::bad_request);
  }
}

TEST(Gather, TypesAndAttributesNotSupportedAreRefusedByName) {
  auto floating = gather_node();
  floating.input(tensor<float>({1}, {1})).input(tensor<float>({1}, {0}));
  EXPECT_NE(floating.prepare().error().what.find("float32"), std::string::npos);
  auto attribute = gather_node();
  attribute.attribute("mode", 1).input(tensor<float>({1}, {1})).input(tensor<int64_t>({1}, {0}));
  EXPECT_NE(attribute.prepare().error().what.find("mode"), std::string::npos);
}

TEST(Gather, ReadsThroughWhatCopiesInPlaceOfMemory) {
  Machine machine;
  const std::vector<int64_t> indices{-1, 0};
  std::vector<float> y(4);
  const auto* table = reinterpret_cast<const float*>(uintptr_t{4096});  // nobody may read it
  const CopyBytes copy = [&](std::span<const std::byte> part, std::span<std::byte> out) -> Result<void> {
    const auto row = static_cast<float>(reinterpret_cast<const float*>(part.data()) - table) / 2;
    const float values[] = {row, row + 10};
    std::ranges::copy(std::as_bytes(std::span(values)), out.begin());
    if (row > 2) return Error{Errc::io, "gone", ""};
    return {};
  };
  const GatherArgs args{table, indices.data(), y.data(), &copy};
  ASSERT_TRUE(gather(machine.context, {1, 3, 2, 8, DType::i64}, args, "here").ok());
  EXPECT_EQ(y, (std::vector<float>{2, 12, 0, 10}));
  const auto done = gather(machine.context, {1, 4, 2, 8, DType::i64}, args, "here");
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Errc::io);
  EXPECT_EQ(done.error().where, "here");
}

TEST(Gather, TouchesOnlyTheRowsNamed) {
  // Rows 0 to 15 lie in readable memory that ends there; the table claims two billion more.
  constexpr int64_t kWidth = 64;
  const GuardedArray<float> table(16 * kWidth);
  for (size_t i = 0; i < table.size(); i++) table[i] = static_cast<float>(i);
  const GuardedArray<int64_t> indices(3);
  indices[0] = 15, indices[1] = 0, indices[2] = 15;
  const GuardedArray<float> y(3 * kWidth);
  Machine machine;
  const auto done = gather(machine.context, {1, int64_t{1} << 31, 3, kWidth * 4, DType::i64},
                           {table.data(), indices.data(), y.data()}, "here");
  ASSERT_TRUE(done.ok());
  for (size_t i = 0; i < kWidth; i++) {
    EXPECT_EQ(y[i], table[15 * kWidth + i]);
    EXPECT_EQ(y[kWidth + i], table[i]);
    EXPECT_EQ(y[2 * kWidth + i], table[15 * kWidth + i]);
  }
}

TEST(Gather, UnalignedConstantsAreRead) {
  for (size_t shift : {1u, 2u, 3u}) {
    auto node = gather_node();
    node.constant(tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}, shift)).constant(tensor<int64_t>({1}, {1}, shift));
    const auto y = node.run();
    ASSERT_TRUE(y.ok()) << y.error().message();
    EXPECT_EQ((*y)[0].values<float>(), (std::vector<float>{4, 5, 6}));
    const auto op = node.prepare();
    EXPECT_TRUE((*op)->accepts_unaligned(0) && (*op)->accepts_unaligned(1));
  }
}

TEST(Gather, ThreadsDoNotChangeTheResult) {
  constexpr int64_t kRows = 50, kWidth = 3000, kCount = 400;
  std::vector<float> table(kRows * kWidth);
  for (size_t i = 0; i < table.size(); i++) table[i] = static_cast<float>(i);
  std::vector<int64_t> indices(kCount);
  for (size_t i = 0; i < indices.size(); i++)
    indices[i] = static_cast<int64_t>(i * 7 % kRows) - (i % 2 == 0 ? 0 : kRows);
  auto node = gather_node();
  node.input(tensor<float>({kRows, kWidth}, table)).input(tensor<int64_t>({kCount}, indices));
  Machine one(1), four(4);
  const auto a = node.run(one), b = node.run(four);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)[0].values<float>(), (*b)[0].values<float>());
  EXPECT_EQ((*a)[0].values<float>()[kWidth], table[7 * kWidth]);
}

TEST(Gather, ResolveAndRunAllocateNothing) {
  auto node = gather_node();
  node.input(tensor<float>({3, 2}, {0, 1, 2, 3, 4, 5})).input(tensor<int64_t>({2}, {2, 0}));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
}

}  // namespace
}  // namespace quern::ops
