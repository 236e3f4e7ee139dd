// SPDX-License-Identifier: Apache-2.0
// The loop of read_bandwidth.h in vectors of 16 bytes.
#include "cpu/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/clock.h"
#include "cpu/memory.h"

namespace quern::cpu {

uint64_t read_piece(const std::byte* piece) {
  using Vector16 = uint64_t __attribute__((vector_size(16)));
  Vector16 seen[kReadStreams] = {};
  for (size_t i = 0; i < kReadStreamBytes; i += kReadLine) {
    for (size_t s = 0; s < kReadStreams; s++) {
      const auto* line = reinterpret_cast<const Vector16*>(piece + s * kReadStreamBytes + i);
      __builtin_prefetch(reinterpret_cast<const std::byte*>(line) + kReadAhead, 0, 2);
      for (size_t k = 0; k < kReadLine / sizeof(Vector16); k++) seen[s] |= line[k];
    }
  }
  const Vector16 all = seen[0] | seen[1] | seen[2] | seen[3];
  return all[0] | all[1];
}

uint64_t read_pieces(Pool& pool, std::span<const std::byte> memory) {
  std::atomic<uint64_t> all = 0;
  pool.parallel_for(static_cast<int64_t>(memory.size() / kReadPieceBytes), 1, [&](int64_t begin, int64_t end, int) {
    uint64_t seen = 0;
    for (int64_t p = begin; p < end; p++) seen |= read_piece(memory.data() + static_cast<size_t>(p) * kReadPieceBytes);
    all.fetch_or(seen, std::memory_order_relaxed);
  });
  return all;
}

Result<double> measure_read_bandwidth(Pool& pool, size_t bytes) {
  constexpr int kPasses = 4;
  const size_t pieces = std::max<size_t>(bytes / kReadPieceBytes, 1);
  QUERN_TRY(const Buffer buffer, Buffer::allocate(pieces * kReadPieceBytes, MemoryTag::workspace));
  std::memset(buffer.data(), 1, buffer.size());  // untouched pages would all be one page of zeros
  double best = 0;
  const Pool::Pass pass(pool);
  for (int i = 0; i < kPasses; i++) {
    const int64_t start = now_ns();
    const uint64_t seen = read_pieces(pool, {buffer.as<std::byte>(), buffer.size()});
    best = std::max(best, static_cast<double>(buffer.size()) / static_cast<double>(now_ns() - start));
    QUERN_CHECK(seen != 0, "memory of ones was read");
  }
  return best;
}

}  // namespace quern::cpu
