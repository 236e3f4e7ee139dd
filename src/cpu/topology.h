// SPDX-License-Identifier: Apache-2.0
// Owns what is known about the machine's processors: how many this process may use, which share a core, which kind they
// are of and where their memory is, and how many threads to compute with unless somebody says otherwise.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cpu/limits.h"

namespace quern::cpu {

struct NumaNode {
  int id = 0;
  int cores = 0;            // of Topology::cores
  size_t memory_bytes = 0;  // 0 where unknown
};

struct Topology {
  std::string model;            // the processor's name
  int logical = 1;              // processors in the affinity mask
  int physical = 1;             // distinct cores among them (SMT siblings counted once)
  int fastest = 1;              // those of the fastest kind among them: fewer where there are efficiency cores
  CpuQuota quota;               // what the control groups grant
  int threads = 1;              // the default thread count: `fastest`, and at most the quota rounded up
  std::string threads_reason;   // why so many, for people
  std::vector<NumaNode> nodes;  // empty where unknown
  std::string huge_pages;       // transparent huge pages: always, madvise, never; empty where unknown
  size_t l1d_bytes = 0;         // 0 where unknown
  size_t l2_bytes = 0;
  size_t l3_bytes = 0;
  std::vector<int> cores;  // one logical processor of each physical core in the affinity mask
};

// Reads /proc, /sys and CPUID below `root` ("" for the running system; tests give a made tree). Never fails: what
// cannot be read keeps its default.
Topology read_topology(const std::string& root = "");

}  // namespace quern::cpu
