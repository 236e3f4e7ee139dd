// SPDX-License-Identifier: Apache-2.0
// Owns how the blocks of past tokens that queries attend to are handed from the room that chooses them (block_index) to
// the room that attends (sparse_attention).
#pragma once

#include <cstdint>

namespace quern::ops {

// Block b of `ratio` tokens is positions b * ratio to b * ratio + ratio - 1. A query at position p sees n = p + 1
// tokens, of which n / ratio blocks are complete; the n % ratio tokens behind those are its tail and always attended
// to. counts[t] is kAllBlocks, or the number of chosen blocks of query t: blocks[t * stride] and so on, ascending.
inline constexpr int32_t kAllBlocks = -1;

struct BlockSelection {
  int32_t* blocks = nullptr;
  int64_t stride = 0;
  int32_t* counts = nullptr;
};

}  // namespace quern::ops
