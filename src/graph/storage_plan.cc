// SPDX-License-Identifier: Apache-2.0
// First-fit placement over a list of free gaps, walking the blocks in the order in which their lives begin.
#include "graph/storage_plan.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/error.h"

namespace quern::graph {
namespace {

bool same_request(const std::vector<Block>& a, const std::vector<Block>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Block& x, const Block& y) {
    return x.bytes == y.bytes && x.first == y.first && x.last == y.last && x.reuses == y.reuses;
  });
}

}  // namespace

size_t StoragePlan::take(size_t bytes) {
  for (size_t i = 0; i < free_.size(); i++) {
    Gap& gap = free_[i];
    if (gap.bytes < bytes) continue;
    const size_t offset = gap.offset;
    gap.offset += bytes;
    gap.bytes -= bytes;
    if (gap.bytes == 0) free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
    total_ = std::max(total_, offset + bytes);
    return offset;
  }
  QUERN_CHECK(false, "the last gap is unbounded");
  return 0;
}

void StoragePlan::give_back(size_t offset, size_t bytes) {
  auto next = std::lower_bound(free_.begin(), free_.end(), offset, [](const Gap& g, size_t o) { return g.offset < o; });
  const bool joins_next = next != free_.end() && next->offset == offset + bytes;
  const bool joins_previous = next != free_.begin() && std::prev(next)->offset + std::prev(next)->bytes == offset;
  if (joins_previous && joins_next) {
    std::prev(next)->bytes += bytes + next->bytes;
    free_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->bytes += bytes;
  } else if (joins_next) {
    next->offset = offset;
    next->bytes += bytes;
  } else {
    free_.insert(next, {offset, bytes});
  }
}

void StoragePlan::place(std::vector<Block>& blocks) {
  if (same_request(blocks, previous_)) {
    for (size_t i = 0; i < blocks.size(); i++) blocks[i].offset = previous_[i].offset;
    return;
  }
  total_ = 0;
  free_.assign(1, {0, std::numeric_limits<size_t>::max() / 2});
  live_.clear();
  std::vector<bool> taken_over(blocks.size(), false);
  for (size_t i = 0; i < blocks.size(); i++) {
    Block& block = blocks[i];
    for (size_t k = 0; k < live_.size();) {
      const Block& old = blocks[live_[k]];
      if (old.last >= block.first) {
        k++;
        continue;
      }
      if (!taken_over[live_[k]]) give_back(old.offset, round_up(old.bytes, kBlockAlignment));
      live_[k] = live_.back();
      live_.pop_back();
    }
    if (block.bytes == 0) continue;
    if (block.reuses >= 0) {
      const Block& old = blocks[block.reuses];
      QUERN_CHECK(old.bytes == block.bytes && old.last == block.first && !taken_over[block.reuses],
                  "a block is reused once");
      taken_over[block.reuses] = true;
      block.offset = old.offset;
    } else {
      block.offset = take(round_up(block.bytes, kBlockAlignment));
    }
    live_.push_back(static_cast<int>(i));
  }
  previous_ = blocks;
}

}  // namespace quern::graph
