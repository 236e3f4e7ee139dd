// SPDX-License-Identifier: Apache-2.0
// Holds cpu/read_bandwidth.h: every line of a piece is read, and the measurement leaves nothing behind.
#include "cpu/read_bandwidth.h"

#include <gtest/gtest.h>

#include "cpu/memory.h"

namespace quern::cpu {
namespace {

TEST(ReadBandwidth, APieceIsReadToItsLastByte) {
  const auto buffer = Buffer::allocate(kReadPieceBytes, MemoryTag::workspace);
  ASSERT_TRUE(buffer.ok());
  auto* piece = buffer->as<std::byte>();
  EXPECT_EQ(read_piece(piece), 0u);
  for (const size_t at :
       {size_t{0}, kReadLine - 1, kReadStreamBytes, kReadPieceBytes / 2 + 3 * kReadLine + 7, kReadPieceBytes - 1}) {
    piece[at] = std::byte{1};
    EXPECT_NE(read_piece(piece), 0u) << at;
    piece[at] = std::byte{0};
  }
}

TEST(ReadBandwidth, EveryPieceIsReadOnEveryNumberOfThreads) {
  constexpr size_t kPieces = 5;
  const auto buffer = Buffer::allocate(kPieces * kReadPieceBytes, MemoryTag::workspace);
  ASSERT_TRUE(buffer.ok());
  const std::span<std::byte> memory(buffer->as<std::byte>(), buffer->size());
  for (const int threads : {1, 3}) {
    Pool pool(threads);
    EXPECT_EQ(read_pieces(pool, memory), 0u) << threads;
    for (size_t p = 0; p < kPieces; p++) {
      memory[(p + 1) * kReadPieceBytes - 1] = std::byte{1};
      EXPECT_NE(read_pieces(pool, memory), 0u) << threads << " threads, piece " << p;
      memory[(p + 1) * kReadPieceBytes - 1] = std::byte{0};
    }
  }
}

TEST(ReadBandwidth, IsMeasuredInMemoryThatIsGivenBack) {
  const auto workspace = [] { return memory_usage().current[static_cast<size_t>(MemoryTag::workspace)]; };
  const size_t before = workspace();
  Pool pool(2);
  const auto gbps = measure_read_bandwidth(pool, 4 * kReadPieceBytes);
  ASSERT_TRUE(gbps.ok());
  EXPECT_GT(*gbps, 0);
  EXPECT_EQ(workspace(), before);
}

}  // namespace
}  // namespace quern::cpu
