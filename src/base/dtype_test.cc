// SPDX-License-Identifier: Apache-2.0
// Holds base/dtype.h: sizes and names of all element types.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>

namespace quern {
namespace {

constexpr DType kAll[] = {DType::f32,     DType::f64,     DType::f16, DType::bf16, DType::i64, DType::i32,
                          DType::i16,     DType::i8,      DType::u64, DType::u32,  DType::u16, DType::u8,
                          DType::boolean, DType::f8_e4m3, DType::u4,  DType::i4};

TEST(DType, BitsOfEveryType) {
  for (DType t : {DType::f64, DType::i64, DType::u64}) EXPECT_EQ(bits_of(t), 64) << dtype_name(t);
  for (DType t : {DType::f32, DType::i32, DType::u32}) EXPECT_EQ(bits_of(t), 32) << dtype_name(t);
  for (DType t : {DType::f16, DType::bf16, DType::i16, DType::u16}) EXPECT_EQ(bits_of(t), 16) << dtype_name(t);
  for (DType t : {DType::i8, DType::u8, DType::boolean, DType::f8_e4m3}) EXPECT_EQ(bits_of(t), 8) << dtype_name(t);
  for (DType t : {DType::u4, DType::i4}) EXPECT_EQ(bits_of(t), 4) << dtype_name(t);
}

TEST(DType, EveryTypeHasItsOwnName) {
  std::set<std::string_view> names;
  for (DType t : kAll) names.insert(dtype_name(t));
  EXPECT_EQ(names.size(), std::size(kAll));
  EXPECT_EQ(names.count("?"), 0u);
  EXPECT_EQ(dtype_name(DType::bf16), "bfloat16");
  EXPECT_EQ(dtype_name(DType::boolean), "bool");
}

TEST(DType, StorageRoundsFourBitTypesUpToAByte) {
  for (DType t : {DType::u4, DType::i4}) {
    EXPECT_EQ(storage_bytes(t, 0), 0u);
    EXPECT_EQ(storage_bytes(t, 1), 1u);
    EXPECT_EQ(storage_bytes(t, 2), 1u);
    EXPECT_EQ(storage_bytes(t, 3), 2u);
  }
}

TEST(DType, StorageOfWholeByteTypes) {
  EXPECT_EQ(storage_bytes(DType::f32, 3), 12u);
  EXPECT_EQ(storage_bytes(DType::f64, 3), 24u);
  EXPECT_EQ(storage_bytes(DType::bf16, 3), 6u);
  EXPECT_EQ(storage_bytes(DType::boolean, 3), 3u);
  EXPECT_EQ(storage_bytes(DType::f32, 0), 0u);
}

TEST(DType, StorageThatDoesNotFitOrIsNegativeIsNothing) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(storage_bytes(DType::f32, -1));
  EXPECT_FALSE(storage_bytes(DType::u4, -1));
  EXPECT_FALSE(storage_bytes(DType::f64, kMax));
  EXPECT_FALSE(storage_bytes(DType::f32, kMax));
  EXPECT_EQ(storage_bytes(DType::u8, kMax), static_cast<size_t>(kMax));
  EXPECT_EQ(storage_bytes(DType::i4, kMax), static_cast<size_t>(kMax) / 2 + 1);
}

}  // namespace
}  // namespace quern
