// SPDX-License-Identifier: Apache-2.0
// Owns what is known about the machine's processors: how many this process may use, and which share a core.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace quern::cpu {

struct Topology {
  std::string model;     // the processor's name
  int logical = 1;       // processors in the affinity mask
  int physical = 1;      // distinct cores among them (SMT siblings counted once)
  double quota = 0;      // processors the cgroup (v1 or v2) grants, 0 for no limit
  int usable = 1;        // the default thread count: physical, and at most the quota rounded up
  size_t l1d_bytes = 0;  // 0 where unknown
  size_t l2_bytes = 0;
  size_t l3_bytes = 0;
  size_t memory_bytes = 0;  // RAM, or the cgroup's limit where lower
  std::vector<int> cores;   // one logical processor of each physical core in the affinity mask
};

// Reads /proc, /sys and CPUID below `root` ("" for the running system; tests give a made tree). Never fails: what
// cannot be read keeps its default.
Topology read_topology(const std::string& root = "");

}  // namespace quern::cpu
