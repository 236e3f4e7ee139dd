// SPDX-License-Identifier: Apache-2.0
// Holds cpu/memory.h: page-backed buffers and their counters, and the arena's growth, rewinding and steady state.
#include "cpu/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace quern::cpu {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

size_t index_of(MemoryTag tag) { return static_cast<size_t>(tag); }
size_t current(MemoryTag tag) { return memory_usage().current[index_of(tag)]; }
uint64_t allocations(MemoryTag tag) { return memory_usage().allocations[index_of(tag)]; }
size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

Buffer allocated(size_t bytes, MemoryTag tag) {
  Result<Buffer> buffer = Buffer::allocate(bytes, tag);
  EXPECT_TRUE(buffer.ok());
  return buffer.ok() ? *std::move(buffer) : Buffer();
}

std::byte* taken(Arena& arena, size_t bytes) {
  Result<void*> p = arena.take(bytes);
  EXPECT_TRUE(p.ok());
  return p.ok() ? static_cast<std::byte*>(*p) : nullptr;
}

TEST(Buffer, IsZeroedWritableAndPageAligned) {
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, 2 * kMebibyte - 1, 2 * kMebibyte, 5 * kMebibyte + 3}) {
    const Buffer buffer = allocated(bytes, MemoryTag::cache);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % page_bytes(), 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer.as<unsigned char>()[i], 0) << i;
    std::memset(buffer.data(), 0xAB, bytes);
  }
}

TEST(Buffer, LargeOnesStartOnAHugePage) {
  for (int i = 0; i < 5; ++i) {
    const Buffer buffer = allocated(2 * kMebibyte + 4096 * static_cast<size_t>(i), MemoryTag::weights);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (2 * kMebibyte), 0u);
  }
}

TEST(Buffer, ZeroBytesGiveAnEmptyUncountedBuffer) {
  const uint64_t before = allocations(MemoryTag::cache);
  const Buffer buffer = allocated(0, MemoryTag::cache);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size(), 0u);
  EXPECT_EQ(allocations(MemoryTag::cache), before);
}

TEST(Buffer, IsCountedInPagesUnderItsTagUntilItEnds) {
  const MemoryUsage before = memory_usage();
  {
    const Buffer a = allocated(page_bytes() + 1, MemoryTag::logits);
    const Buffer b = allocated(3 * kMebibyte, MemoryTag::logits);
    const MemoryUsage during = memory_usage();
    const size_t expected = 2 * page_bytes() + 3 * kMebibyte;
    EXPECT_EQ(during.current[index_of(MemoryTag::logits)], before.current[index_of(MemoryTag::logits)] + expected);
    EXPECT_GE(during.peak[index_of(MemoryTag::logits)], before.current[index_of(MemoryTag::logits)] + expected);
    EXPECT_EQ(during.allocations[index_of(MemoryTag::logits)], before.allocations[index_of(MemoryTag::logits)] + 2);
    for (MemoryTag other : {MemoryTag::weights, MemoryTag::cache, MemoryTag::workspace}) {
      EXPECT_EQ(during.current[index_of(other)], before.current[index_of(other)]);
    }
  }
  EXPECT_EQ(current(MemoryTag::logits), before.current[index_of(MemoryTag::logits)]);
  const size_t peak = memory_usage().peak[index_of(MemoryTag::logits)];
  const Buffer small = allocated(1, MemoryTag::logits);
  EXPECT_EQ(memory_usage().peak[index_of(MemoryTag::logits)], peak);
}

TEST(Buffer, TheLargestWeightsAllocationIsRemembered) {
  allocated(40 * kMebibyte, MemoryTag::weights);
  EXPECT_EQ(memory_usage().largest_weights_bytes, 40 * kMebibyte);
  allocated(50 * kMebibyte, MemoryTag::cache);
  allocated(30 * kMebibyte, MemoryTag::weights);
  EXPECT_EQ(memory_usage().largest_weights_bytes, 40 * kMebibyte);
}

TEST(Buffer, MovesHandOverTheMemoryAndItsCount) {
  const size_t before = current(MemoryTag::cache);
  Buffer a = allocated(page_bytes(), MemoryTag::cache);
  void* const data = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: a moved-from buffer is empty by contract
  EXPECT_EQ(a.size(), 0u);
  Buffer c = allocated(3 * page_bytes(), MemoryTag::workspace);
  const size_t workspace = current(MemoryTag::workspace);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(current(MemoryTag::workspace), workspace - 3 * page_bytes());
  EXPECT_EQ(current(MemoryTag::cache), before + page_bytes());
  Buffer& same = c;
  c = std::move(same);
  EXPECT_EQ(c.data(), data);
  c = Buffer();
  EXPECT_EQ(current(MemoryTag::cache), before);
}

TEST(Buffer, WhatTheSystemCannotGiveIsNoMemoryWithSizeAndTag) {
  const MemoryUsage before = memory_usage();
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4 * kMebibyte, SIZE_MAX / 2, size_t{1} << 60}) {
    const Result<Buffer> buffer = Buffer::allocate(bytes, MemoryTag::weights);
    ASSERT_FALSE(buffer.ok()) << bytes;
    EXPECT_EQ(buffer.error().code, Errc::no_memory);
    EXPECT_NE(buffer.error().what.find(std::to_string(bytes)), std::string::npos);
    EXPECT_NE(buffer.error().what.find("weights"), std::string::npos);
  }
  EXPECT_EQ(memory_usage().current, before.current);
  EXPECT_EQ(memory_usage().allocations, before.allocations);
}

TEST(SharedPages, PiecesLieOnCommonPagesZeroedAndOutliveTheScope) {
  const MemoryUsage before = memory_usage();
  const size_t bytes = 300 * 1024 + 1;
  const size_t mapped = 304 * 1024;
  std::vector<Buffer> pieces;
  {
    const SharedPages pages(MemoryTag::weights);
    for (int i = 0; i < 500; ++i) {  // more than one stretch
      pieces.push_back(allocated(bytes, MemoryTag::weights));
      ASSERT_NE(pieces.back().data(), nullptr);
      EXPECT_EQ(pieces.back().size(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back().data()) % page_bytes(), 0u);
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[0].data()) % (2 * kMebibyte), 0u);
    EXPECT_EQ(pieces[1].as<std::byte>(), pieces[0].as<std::byte>() + mapped);
  }
  const size_t tag = index_of(MemoryTag::weights);
  EXPECT_EQ(memory_usage().current[tag], before.current[tag] + 500 * mapped);
  EXPECT_EQ(memory_usage().allocations[tag], before.allocations[tag] + 500);
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t k = 0; k < bytes; k += 511) ASSERT_EQ(pieces[i].as<unsigned char>()[k], 0) << i;
    std::memset(pieces[i].data(), static_cast<int>(i % 251) + 1, bytes);
  }
  for (size_t i = 0; i < pieces.size(); i += 2) pieces[i] = Buffer();
  for (size_t i = 1; i < pieces.size(); i += 2) {
    EXPECT_EQ(pieces[i].as<unsigned char>()[0], i % 251 + 1);
    EXPECT_EQ(pieces[i].as<unsigned char>()[bytes - 1], i % 251 + 1);
  }
  const Buffer moved = std::move(pieces[1]);
  pieces.clear();
  EXPECT_EQ(moved.as<unsigned char>()[bytes - 1], 2);
  EXPECT_EQ(memory_usage().current[tag], before.current[tag] + mapped);
}

TEST(SharedPages, OtherTagsOtherThreadsAndLargeBuffersStayAlone) {
  const SharedPages pages(MemoryTag::weights);
  const Buffer first = allocated(page_bytes(), MemoryTag::weights);
  const Buffer cache = allocated(page_bytes(), MemoryTag::cache);
  Buffer elsewhere;
  std::thread([&] { elsewhere = allocated(page_bytes(), MemoryTag::weights); }).join();
  const Buffer large = allocated(64 * kMebibyte, MemoryTag::weights);
  const Buffer second = allocated(page_bytes(), MemoryTag::weights);
  EXPECT_EQ(second.as<std::byte>(), first.as<std::byte>() + page_bytes());
  const auto* begin = first.as<std::byte>();
  for (const Buffer* alone : {&cache, static_cast<const Buffer*>(&elsewhere), &large}) {
    EXPECT_TRUE(alone->as<std::byte>() < begin || alone->as<std::byte>() >= begin + 128 * kMebibyte);
  }
}

TEST(Buffer, CountersHoldFromManyThreads) {
  const size_t before = current(MemoryTag::cache);
  const uint64_t made = allocations(MemoryTag::cache);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) allocated(1 + static_cast<size_t>(i) * 100, MemoryTag::cache);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(current(MemoryTag::cache), before);
  EXPECT_EQ(allocations(MemoryTag::cache), made + 800);
}

TEST(Arena, PiecesAreAlignedAndDisjoint) {
  Arena arena;
  const Arena::Scope scope(arena);
  std::vector<std::pair<std::byte*, size_t>> pieces;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, kMebibyte, 3 * kMebibyte, size_t{7}}) {
    std::byte* p = taken(arena, bytes);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    std::memset(p, static_cast<int>(pieces.size()) + 1, bytes);
    pieces.emplace_back(p, bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = 0; j < pieces[i].second; ++j) ASSERT_EQ(static_cast<size_t>(pieces[i].first[j]), i + 1);
  }
}

TEST(Arena, AScopeGivesBackWhatWasTakenInIt) {
  Arena arena;
  const Arena::Scope outer(arena);
  std::byte* const kept = taken(arena, 100);
  std::memset(kept, 1, 100);
  std::byte* first = nullptr;
  {
    const Arena::Scope inner(arena);
    first = taken(arena, 1000);
  }
  EXPECT_EQ(taken(arena, 1000), first);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(kept[i], std::byte{1});
}

TEST(Arena, PeakIsTheMostInUseAtOnce) {
  Arena arena;
  EXPECT_EQ(arena.peak_bytes(), 0u);
  {
    const Arena::Scope outer(arena);
    taken(arena, 64);
    for (int i = 0; i < 3; ++i) {
      const Arena::Scope inner(arena);
      taken(arena, 128);
      taken(arena, 1);
    }
    EXPECT_EQ(arena.peak_bytes(), 256u);
    taken(arena, 4 * kMebibyte);  // into another block: the rest of the first one is not in use
    EXPECT_EQ(arena.peak_bytes(), 64u + 4 * kMebibyte);
  }
  const Arena::Scope again(arena);
  taken(arena, 4 * kMebibyte);
  taken(arena, 64);
  EXPECT_EQ(arena.peak_bytes(), 64u + 4 * kMebibyte);
}

TEST(Arena, AllocatesNothingInTheSteadyState) {
  Arena arena;
  const auto pass = [&arena] {
    const Arena::Scope scope(arena);
    for (size_t i = 1; i <= 12; ++i) {
      taken(arena, i * 300'000);
      const Arena::Scope inner(arena);
      taken(arena, 5 * kMebibyte);
    }
  };
  pass();
  const uint64_t after_first = allocations(MemoryTag::workspace);
  pass();
  EXPECT_EQ(allocations(MemoryTag::workspace), after_first + 1) << "one block of the whole size";
  const size_t capacity = arena.capacity_bytes();
  const size_t counted = current(MemoryTag::workspace);
  for (int i = 0; i < 10; ++i) pass();
  EXPECT_EQ(allocations(MemoryTag::workspace), after_first + 1);
  EXPECT_EQ(arena.capacity_bytes(), capacity);
  EXPECT_EQ(current(MemoryTag::workspace), counted);
  EXPECT_GE(capacity, arena.peak_bytes());
}

// Only the outermost scope's end makes the blocks free to be merged; what is held must stay where it is.
TEST(Arena, BlocksAreNotMergedUnderPiecesInUse) {
  Arena arena;
  const Arena::Scope outer(arena);
  std::byte* const kept = taken(arena, 100);
  std::memset(kept, 7, 100);
  for (int i = 0; i < 3; ++i) {
    const Arena::Scope inner(arena);
    std::byte* const big = taken(arena, 8 * kMebibyte);
    std::memset(big, 9, 8 * kMebibyte);
  }
  for (int i = 0; i < 100; ++i) ASSERT_EQ(kept[i], std::byte{7});
  EXPECT_GE(arena.capacity_bytes(), 9 * kMebibyte);
}

TEST(Arena, ABlockTooSmallForARequestServesLaterPasses) {
  Arena arena;
  for (int i = 0; i < 4; ++i) {
    const Arena::Scope scope(arena);
    taken(arena, 900'000);
    taken(arena, 20 * kMebibyte);
    taken(arena, 3 * kMebibyte);
  }
  EXPECT_LT(arena.capacity_bytes(), 64 * kMebibyte);
}

TEST(Arena, ALargeBlockIsNotFollowedByALargerOneForASmallRequest) {
  Arena arena;
  const Arena::Scope scope(arena);
  taken(arena, 100 * kMebibyte);
  taken(arena, 64);
  EXPECT_LE(arena.capacity_bytes(), 140 * kMebibyte);
}

TEST(Arena, FailureIsNoMemoryAndLeavesTheArenaUsable) {
  Arena arena(MemoryTag::logits);
  const Arena::Scope scope(arena);
  std::byte* const before = taken(arena, 64);
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 64, size_t{1} << 60}) {
    const Result<void*> p = arena.take(bytes);
    ASSERT_FALSE(p.ok());
    EXPECT_EQ(p.error().code, Errc::no_memory);
    EXPECT_NE(p.error().what.find("logits"), std::string::npos);
  }
  EXPECT_EQ(taken(arena, 64), before + 64);
  EXPECT_EQ(arena.peak_bytes(), 128u);
}

TEST(Arena, AnElementCountThatOverflowsBytesIsNoMemory) {
  Arena arena;
  const Arena::Scope scope(arena);
  const Result<double*> p = arena.take<double>(SIZE_MAX / 8 + 2);
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.error().code, Errc::no_memory);
}

TEST(Arena, ReturnsItsMemoryWhenItEnds) {
  const size_t before = current(MemoryTag::logits);
  {
    Arena arena(MemoryTag::logits);
    const Arena::Scope scope(arena);
    taken(arena, 3 * kMebibyte);
    EXPECT_GT(current(MemoryTag::logits), before);
  }
  EXPECT_EQ(current(MemoryTag::logits), before);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(ArenaDeathTest, ScratchUsedAfterItsScopeIsReported) {
  Arena arena;
  std::byte* p = nullptr;
  {
    const Arena::Scope scope(arena);
    p = taken(arena, 100);
    p[99] = std::byte{1};
  }
  EXPECT_DEATH(p[99] = std::byte{2}, "use-after-poison");
  const Arena::Scope scope(arena);
  p = taken(arena, 100);
  EXPECT_DEATH(p[104] = std::byte{2}, "use-after-poison");
}
#endif

}  // namespace
}  // namespace quern::cpu
