// SPDX-License-Identifier: Apache-2.0
// Holds model/kv_cache.h: where rows lie, that they stay there, what is counted, forks.
#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace quern::model {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8};

size_t in_use() { return cpu::memory_usage().current[static_cast<size_t>(cpu::MemoryTag::cache)]; }

std::vector<std::span<std::byte>> pieces(const KvCache& cache, int64_t tokens) {
  std::vector<std::span<std::byte>> all;
  EXPECT_TRUE(cache
                  .for_pieces(tokens,
                              [&](std::span<std::byte> piece) -> Result<void> {
                                all.push_back(piece);
                                return {};
                              })
                  .ok());
  return all;
}

// A different byte at every place of rows [0, tokens).
void fill(const KvCache& cache, int64_t tokens, uint32_t seed) {
  uint32_t x = seed;
  for (const auto piece : pieces(cache, tokens)) {
    for (std::byte& b : piece) b = static_cast<std::byte>((x = x * 1664525 + 1013904223) >> 24);
  }
}

TEST(KvCache, PiecesAreTheRowsThatTheViewsName) {
  for (const DType dtype : kTypes) {
    const KvCache cache = KvCache::make({3, 2, 16, 100, dtype}).value();
    std::set<const void*> expected;
    for (int32_t layer = 0; layer < 3; layer++) {
      const ops::KvView& view = cache.view(layer);
      EXPECT_EQ(view.capacity, 100);
      EXPECT_EQ(view.dtype, dtype);
      EXPECT_EQ(view.row_stride, 16);
      for (int64_t head = 0; head < 2; head++) {
        const auto bytes = static_cast<size_t>(head * view.head_stride * bits_of(dtype) / 8);
        expected.insert(static_cast<std::byte*>(view.keys) + bytes);
        expected.insert(static_cast<std::byte*>(view.values) + bytes);
        if (dtype != DType::i8) continue;
        expected.insert(view.key_scales + head * view.scale_head_stride);
        expected.insert(view.value_scales + head * view.scale_head_stride);
      }
    }
    std::set<const void*> seen;
    size_t bytes = 0;
    for (const auto piece : pieces(cache, 7)) {
      seen.insert(piece.data());
      bytes += piece.size();
    }
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(static_cast<int64_t>(bytes), 7 * kv_token_bytes(cache.shape()));
  }
}

TEST(KvCache, BlocksHoldTheSameBytesInTheSameOrder) {
  for (const DType dtype : kTypes) {
    const KvCache blocks = KvCache::make({3, 2, 16, 300, dtype, true}).value();
    const KvCache stretch = KvCache::make({3, 2, 16, 300, dtype}).value();
    for (const int64_t tokens : {1, 128, 129, 300}) {
      fill(blocks, tokens, 5);
      fill(stretch, tokens, 5);
      size_t bytes = 0;
      for (const auto piece : pieces(blocks, tokens)) bytes += piece.size();
      EXPECT_EQ(static_cast<int64_t>(bytes), tokens * kv_token_bytes(blocks.shape()));
      const auto row = static_cast<size_t>(16 * bits_of(dtype) / 8);
      const auto same = [&](void* a, int64_t a_offset, void* b, int64_t b_offset) {
        const int64_t element = bits_of(dtype) / 8;
        return std::memcmp(static_cast<std::byte*>(a) + a_offset * element,
                           static_cast<std::byte*>(b) + b_offset * element, row) == 0;
      };
      for (int32_t layer = 0; layer < 3; layer++) {
        const ops::KvView &a = blocks.view(layer), &b = stretch.view(layer);
        EXPECT_NE(a.block_stride, 0);
        EXPECT_EQ(b.block_stride, 0);
        for (int64_t head = 0; head < 2; head++) {
          for (int64_t t = 0; t < tokens; t++) {
            ASSERT_TRUE(same(a.keys, a.offset(head, t), b.keys, b.offset(head, t))) << layer << ' ' << head << ' ' << t;
            ASSERT_TRUE(same(a.values, a.offset(head, t), b.values, b.offset(head, t)))
                << layer << ' ' << head << ' ' << t;
          }
        }
      }
    }
  }
}

// A row is never in the way of another: all of them are there at once.
TEST(KvCache, RowsOfBlocksNeverMeet) {
  for (const DType dtype : kTypes) {
    const KvCache cache = KvCache::make({2, 3, 24, 260, dtype, true}).value();
    const auto all = pieces(cache, 260);
    for (size_t i = 0; i < all.size(); i++) std::memset(all[i].data(), static_cast<int>(i + 1), all[i].size());
    for (size_t i = 0; i < all.size(); i++) {
      for (const std::byte b : all[i]) ASSERT_EQ(b, static_cast<std::byte>(i + 1));
    }
  }
}

TEST(KvCache, RowsOfDifferentHeadsNeverMeet) {
  for (const DType dtype : kTypes) {
    const KvCache cache = KvCache::make({2, 3, 24, 65, dtype}).value();
    const auto all = pieces(cache, 65);
    for (size_t i = 0; i < all.size(); i++) std::memset(all[i].data(), static_cast<int>(i + 1), all[i].size());
    for (size_t i = 0; i < all.size(); i++) {
      EXPECT_EQ(all[i].front(), static_cast<std::byte>(i + 1));
      EXPECT_EQ(all[i].back(), static_cast<std::byte>(i + 1));
    }
  }
}

TEST(KvCache, TokenBytesAreThoseOfTheContract) {
  EXPECT_EQ(kv_token_bytes({28, 8, 128, 1, DType::f32}), 2 * 28 * 8 * 128 * 4);
  EXPECT_EQ(kv_token_bytes({28, 8, 128, 1, DType::f16}), 2 * 28 * 8 * 128 * 2);
  EXPECT_EQ(kv_token_bytes({28, 8, 128, 1, DType::i8}), 2 * 28 * 8 * (128 + 4));
}

TEST(KvCache, CountsWhatIsPrepared) {
  const size_t before = in_use();
  {
    KvCache cache = KvCache::make({2, 2, 16, 1 << 20, DType::i8}).value();
    EXPECT_EQ(in_use(), before);
    cache.prepare(64);
    EXPECT_EQ(cache.bytes(), static_cast<size_t>(64 * kv_token_bytes(cache.shape())));
    EXPECT_EQ(in_use(), before + cache.bytes());
    cache.prepare(128);
    EXPECT_EQ(in_use(), before + static_cast<size_t>(128 * kv_token_bytes(cache.shape())));
    KvCache moved = std::move(cache);
    EXPECT_EQ(in_use(), before + moved.bytes());
  }
  EXPECT_EQ(in_use(), before);
}

// 2^20 rows of this shape are 100 GB: addresses, not memory.
TEST(KvCache, FarRowsAreThereAndRowsDoNotMove) {
  KvCache cache = KvCache::make({28, 8, 128, 1 << 20, DType::f16}).value();
  void* const keys = cache.view(27).keys;
  cache.prepare(1 << 20);
  const ops::KvView& view = cache.view(27);
  auto* const last = static_cast<uint16_t*>(view.values) + 7 * view.head_stride + ((1 << 20) - 1) * view.row_stride;
  last[127] = 7;
  EXPECT_EQ(last[127], 7);
  EXPECT_EQ(view.keys, keys);
}

TEST(KvCache, ForkHasTheRowsAndIsIndependent) {
  for (const DType dtype : kTypes) {
    for (const bool in_blocks : {false, true}) {
      const int64_t tokens = in_blocks ? 139 : 9;
      KvCache cache = KvCache::make({2, 2, 16, 150, dtype, in_blocks}).value();
      fill(cache, tokens, 1);
      cache.set_length(tokens);
      const KvCache copy = cache.fork().value();
      EXPECT_EQ(copy.length(), tokens);
      EXPECT_EQ(copy.shape(), cache.shape());
      const auto from = pieces(cache, tokens), to = pieces(copy, tokens);
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); i++) {
        ASSERT_NE(from[i].data(), to[i].data());
        EXPECT_EQ(std::memcmp(from[i].data(), to[i].data(), from[i].size()), 0);
      }
      fill(cache, tokens, 2);
      EXPECT_NE(std::memcmp(from[0].data(), to[0].data(), from[0].size()), 0);
    }
  }
}

TEST(KvCache, MoreAddressesThanThereAreAreNoMemory) {
  const auto cache = KvCache::make({1000, 65536, 65536, int64_t{1} << 40, DType::f32});
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, Errc::no_memory);
}

TEST(KvType, NamesGoBothWays) {
  for (const DType dtype : kTypes) EXPECT_EQ(kv_type(kv_type_name(dtype)), dtype);
  EXPECT_FALSE(kv_type("float32"));
  EXPECT_FALSE(kv_type(""));
}

}  // namespace
}  // namespace quern::model
