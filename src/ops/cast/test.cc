// SPDX-License-Identifier: Apache-2.0
// Cast against hand-written results.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cast/cast.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"

namespace quern::ops {
Result<std::unique_ptr<Operator>> make_cast(const NodeView& node, const PrepareContext& ctx);

namespace {

using support::Machine;
using support::OneNode;
using support::tensor;

constexpr int kFloat = 1, kInt32 = 6, kInt64 = 7, kFloat16 = 10;

OneNode cast_to(int type) { return std::move(OneNode(&make_cast, "Cast").attribute("to", type).outputs(1)); }

template <class To, class From>
std::vector<To> cast_values(int type, const std::vector<From>& from, size_t shift = 0) {
  auto node = cast_to(type);
  node.input(tensor<From>({static_cast<int64_t>(from.size())}, from, shift));
  const auto y = node.run();
  EXPECT_TRUE(y.ok());
  return y.ok() ? (*y)[0].template values<To>() : std::vector<To>();
}

TEST(Cast, Int64ToInt32KeepsTheLowBits) {
  EXPECT_EQ((cast_values<int32_t, int64_t>(
                kInt32, {0, -1, 31, int64_t{1} << 31, INT64_MAX, INT64_MIN, -(int64_t{1} << 31) - 1})),
            (std::vector<int32_t>{0, -1, 31, INT32_MIN, -1, 0, INT32_MAX}));
}

TEST(Cast, Int32ToInt64KeepsTheSign) {
  EXPECT_EQ((cast_values<int64_t, int32_t>(kInt64, {-1, INT32_MIN, 7})), (std::vector<int64_t>{-1, INT32_MIN, 7}));
}

TEST(Cast, IntegersBecomeTheNearestFloat) {
  EXPECT_EQ((cast_values<float, int64_t>(kFloat, {-3, (1 << 24) + 1, (1 << 24) + 3, INT64_MAX})),
            (std::vector<float>{-3, 16777216, 16777220, 0x1p63f}));
  EXPECT_EQ((cast_values<float, int32_t>(kFloat, {INT32_MAX, -5})), (std::vector<float>{0x1p31f, -5}));
}

TEST(Cast, FloatsAreTruncatedAndTheRestIsLowest) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ((cast_values<int32_t, float>(
                kInt32, {1.9f, -1.9f, -0.0f, 0x1p31f, -0x1p31f, std::nanf(""), inf, -inf, 2147483520.0f})),
            (std::vector<int32_t>{1, -1, 0, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, 2147483520}));
  EXPECT_EQ((cast_values<int64_t, float>(kInt64, {1.9f, -1.9f, 0x1p62f, 0x1p63f, -0x1p63f, std::nanf("")})),
            (std::vector<int64_t>{1, -1, int64_t{1} << 62, INT64_MIN, INT64_MIN, INT64_MIN}));
}

TEST(Cast, IdentityKeepsEveryBit) {
  auto node = cast_to(kFloat);
  node.input(tensor<float>({2}, {-0.0f, std::nanf("7")}));
  const auto y = node.run();
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(std::memcmp((*y)[0].view().data, node.input_tensor(0).view().data, 8), 0);
}

TEST(Cast, EmptyAndScalarShapesPassThrough) {
  auto empty = cast_to(kInt32);
  empty.input(tensor<int64_t>({0, 3}, {}));
  EXPECT_EQ((*empty.run())[0].shape(), (Shape{0, 3}));
  auto scalar = cast_to(kInt32);
  scalar.input(tensor<int64_t>({}, {-9}));
  const auto y = scalar.run();
  EXPECT_EQ((*y)[0].shape(), Shape{});
  EXPECT_EQ((*y)[0].values<int32_t>(), std::vector<int32_t>{-9});
}

TEST(Cast, KnownIntegersAreFolded) {
  auto node = cast_to(kInt32);
  node.input(tensor<int64_t>({2}, {int64_t{1} << 31, 5}));
  const auto op = node.prepare();
  ASSERT_TRUE(op.ok() && node.resolve(**op).ok());
  EXPECT_TRUE((*op)->folds_known_values());
  ASSERT_TRUE(node.values[0].known);
  EXPECT_EQ(node.values[0].count, 2);
  EXPECT_EQ(node.values[0].v[0], INT32_MIN);
  EXPECT_EQ(node.values[0].v[1], 5);
}

TEST(Cast, FloatsAreNeverFolded) {
  auto node = cast_to(kFloat);
  node.input(tensor<int64_t>({1}, {5}));
  const auto op = node.prepare();
  ASSERT_TRUE(op.ok() && node.resolve(**op).ok());
  EXPECT_FALSE((*op)->folds_known_values());
  EXPECT_FALSE(node.values[0].known);
}

TEST(Cast, UnalignedInputIsRead) {
  EXPECT_EQ((cast_values<int32_t, int64_t>(kInt32, {1, -2, 3}, 3)), (std::vector<int32_t>{1, -2, 3}));
}

TEST(Cast, InPlaceBetweenTypesOfOneSize) {
  Machine machine;
  std::vector<float> x{1.5f, -2.5f, 3};
  ASSERT_TRUE(cast(machine.context, {3, DType::f32, DType::i32}, {x.data(), x.data()}, "here").ok());
  std::vector<int32_t> y(3);
  std::memcpy(y.data(), x.data(), 12);
  EXPECT_EQ(y, (std::vector<int32_t>{1, -2, 3}));
  EXPECT_FALSE((*cast_to(kInt32).input(tensor<int64_t>({1}, {1})).prepare())->may_share(0, 0));
}

TEST(Cast, ThreadsAndLengthsDoNotChangeTheResult) {
  for (size_t count : {1u, 15u, 16u, 17u, 16384u, 16385u, 100003u}) {
    const support::GuardedArray<int64_t> x(count);
    for (size_t i = 0; i < count; i++) x[i] = static_cast<int64_t>(i * 0x9e3779b97f4a7c15u);
    const support::GuardedArray<int32_t> y(count);
    Machine machine(3);
    ASSERT_TRUE(
        cast(machine.context, {static_cast<int64_t>(count), DType::i64, DType::i32}, {x.data(), y.data()}, "").ok());
    for (size_t i = 0; i < count; i++) ASSERT_EQ(y[i], static_cast<int32_t>(x[i])) << i;
  }
}

TEST(Cast, TypesNotSupportedAreRefusedByName) {
  auto half = cast_to(kFloat16);
  half.input(tensor<float>({1}, {1}));
  ASSERT_FALSE(half.prepare().ok());
  EXPECT_EQ(half.prepare().error().code, Errc::unsupported);
  EXPECT_NE(half.prepare().error().what.find("10"), std::string::npos);
  auto from_half = cast_to(kFloat);
  from_half.input(tensor<uint16_t>({1}, {1}));
  EXPECT_NE(from_half.prepare().error().what.find("float16"), std::string::npos);
}

TEST(Cast, TargetTypeIsRequired) {
  OneNode node(&make_cast, "Cast");
  node.input(tensor<float>({1}, {1})).outputs(1);
  EXPECT_EQ(node.prepare().error().code, Errc::bad_model);
}

TEST(Cast, ResolveAndRunAllocateNothing) {
  auto node = cast_to(kInt32);
  node.input(tensor<int64_t>({2}, {1, 2}));
  Machine machine;
  const auto y = node.run(machine);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(node.run_again(machine).ok()); }), 0);
}

}  // namespace
}  // namespace quern::ops
