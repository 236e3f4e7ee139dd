// SPDX-License-Identifier: Apache-2.0
// Owns the placement of intermediates in one block of memory by their lifetimes. Knows sizes and lifetimes only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quern::graph {

// A block lives from step `first` to step `last`, both included; blocks whose lives touch never overlap in memory,
// except that `reuses` (an index, or -1) names a block of the same size that ends where this one begins and whose place
// it takes.
struct Block {
  size_t bytes = 0;
  int first = 0;
  int last = 0;
  int reuses = -1;
  size_t offset = 0;  // the result, a multiple of kBlockAlignment
};

inline constexpr size_t kBlockAlignment = 64;

class StoragePlan {
 public:
  // Places `blocks` (ordered by `first`). Repeating the sizes of the previous call keeps its result at the cost of one
  // comparison. Allocates only while the number of blocks grows.
  void place(std::vector<Block>& blocks);
  size_t total_bytes() const { return total_; }

 private:
  struct Gap {
    size_t offset;
    size_t bytes;
  };
  size_t take(size_t bytes);
  void give_back(size_t offset, size_t bytes);

  std::vector<Block> previous_;
  std::vector<Gap> free_;  // by offset, coalesced; the last one is unbounded
  std::vector<int> live_;
  size_t total_ = 0;
};

}  // namespace quern::graph
