// SPDX-License-Identifier: Apache-2.0
// Owns the one clock that durations are measured with.
#pragma once

#include <chrono>
#include <cstdint>

namespace quern {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double ms_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-6; }

}  // namespace quern
