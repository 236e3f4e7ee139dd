// SPDX-License-Identifier: Apache-2.0
// One counter a cycle length is enough: it tells how long the text has been repeating itself at that distance.
#include "engine/repetition_guard.h"

#include <algorithm>

namespace quern::engine {

int32_t RepetitionGuard::push(int32_t id) {
  if (times_ == 0) return 0;
  int32_t found = 0;
  const auto longest = static_cast<int32_t>(std::min<int64_t>(count_, kMaxTokens));
  for (int32_t cycle = 1; cycle <= longest; cycle++) {
    int32_t& run = run_[static_cast<size_t>(cycle)];
    run = last_[static_cast<size_t>((count_ - cycle) % kMaxTokens)] == id ? run + 1 : 0;
    if (found == 0 && run + cycle >= int64_t{times_} * std::max(cycle, kMinTokens)) found = cycle;
  }
  last_[static_cast<size_t>(count_++ % kMaxTokens)] = id;
  return found;
}

}  // namespace quern::engine
