// SPDX-License-Identifier: Apache-2.0
// Owns what bounds this process besides the machine itself: processor time and memory that its control groups grant
// (versions 1 and 2, both mounted or one), and the memory that is left. Does not own which processors there are
// (topology.h).
#pragma once

#include <cstddef>
#include <string>

namespace quern::cpu {

// Processor time per time. The tightest of the process's group and all groups above it.
struct CpuQuota {
  double processors = 0;  // 0 for no limit
  std::string file;       // the file that says so, empty without a limit
};

// Bytes; 0 where unknown.
struct MemoryLimits {
  size_t total = 0;      // RAM, or the lowest limit of a control group
  size_t available = 0;  // what can still be taken: of the RAM with free swap, and of each group's limit
  std::string bound;     // what decides `available`: "RAM", "RAM and swap", or a control group's file with its limit
};

// Both read below `root` ("" for the running system; tests give a made tree) and never fail: what cannot be read bounds
// nothing.
CpuQuota read_cpu_quota(const std::string& root = "");
MemoryLimits read_memory_limits(const std::string& root = "");

}  // namespace quern::cpu
