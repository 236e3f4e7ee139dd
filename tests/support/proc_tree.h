// SPDX-License-Identifier: Apache-2.0
// A made tree of /proc and /sys: what another machine, or a container on one, shows of itself.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/scratch_folder.h"

namespace quern::test {

class ProcTree {
 public:
  std::string root() const { return folder_.path().string(); }

  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = folder_.path() / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  // The affinity mask.
  void allow(const std::string& list) const {
    put("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t" + list + "\n");
  }
  void siblings(int processor, const std::string& list) const {
    put("sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list", list + "\n");
  }
  // `n` processors, each a core of its own.
  void plain_processors(int n) const {
    const std::string list = "0-" + std::to_string(n - 1);
    allow(list);
    put("sys/devices/system/cpu/online", list + "\n");
    for (int i = 0; i < n; ++i) siblings(i, std::to_string(i));
  }
  // Version 2 alone, as most distributions have it.
  void unified_cgroup(const std::string& group) const {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo",
        "25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw\n"
        "31 25 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  // Version 1 with its controllers, and version 2 without any beside it.
  void both_cgroups(const std::string& cpu_group, const std::string& memory_group) const {
    put("proc/self/cgroup", "9:memory:" + memory_group + "\n4:cpu,cpuacct:" + cpu_group + "\n1:name=systemd:/\n0::/\n");
    put("proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  }

 private:
  ScratchFolder folder_{"quern_proc"};
};

}  // namespace quern::test
