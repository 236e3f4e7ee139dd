// SPDX-License-Identifier: Apache-2.0
// Owns the measurement of how fast memory is read here and now: the limit of everything that reads weights once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "cpu/pool.h"

namespace quern::cpu {

// A piece is read as four streams, as a product that walks four panels at once.
inline constexpr size_t kReadPieceBytes = size_t{16} << 20;
inline constexpr int kReadStreams = 4;
inline constexpr size_t kReadStreamBytes = kReadPieceBytes / kReadStreams;
inline constexpr size_t kReadLine = 64;
inline constexpr size_t kReadAhead = 1024;  // bytes; to the second level: locality 2 of __builtin_prefetch

// Reads kReadPieceBytes by what every processor has and returns something that depends on all of them. On a Zen 4,
// loads of 32 and 64 bytes are within 3 % of it (bench/probe.cc has them); 8-byte loads gave 27 % less, a prefetch to
// L1 or from 2 KiB ahead up to 25 % less, 1, 2, 6 and 8 streams not more.
uint64_t read_piece(const std::byte* piece);

// read_piece() of every whole piece of `memory` on the threads of the pool, joined by or.
uint64_t read_pieces(Pool& pool, std::span<const std::byte> memory);

// GB/s of all threads of the pool together, from memory on the pages that weights get; the best of a few passes. Takes
// `bytes` of memory meanwhile, at least a piece, and should take far more than the caches hold. Errors: no_memory.
Result<double> measure_read_bandwidth(Pool& pool, size_t bytes);

}  // namespace quern::cpu
