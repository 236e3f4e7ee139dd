// SPDX-License-Identifier: Apache-2.0
// Owns what a running operator is given besides its tensors: threads, scratch memory, instruction sets, counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/features.h"
#include "cpu/memory.h"
#include "cpu/pool.h"

namespace quern::ops {

// Counted by operators while they run; the executor reads the difference per node.
struct Counters {
  uint64_t bytes_copied = 0;          // payload moved without computing on it (Split, Reshape, cache rows)
  uint64_t cache_bytes_copied = 0;    // the part of bytes_copied that is old cache rows
  uint64_t cache_bytes_appended = 0;  // cache rows written for the tokens of this call
  uint64_t weight_bytes_read = 0;     // packed weight bytes streamed by matrix products
};

// One per forward pass and thread of control; workers only read it.
struct Context {
  cpu::Pool* pool;
  cpu::Arena* scratch;
  cpu::Features features;
  Counters* counters;  // null where nobody counts
  // What the next step that reads much from memory reads first; a hint for Pool::read_ahead, empty where nobody knows.
  std::span<const std::byte> ahead{};
};

}  // namespace quern::ops
