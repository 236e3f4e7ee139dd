// SPDX-License-Identifier: Apache-2.0
// Holds cpu/topology.h on made trees of /proc and /sys (SMT, affinity, cgroups of both versions, caches, damage), and
// on the running system as far as that can be known.
#include "cpu/topology.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

namespace quern::cpu {
namespace {

constexpr size_t kGibibyte = size_t{1} << 30;

class TopologyTree : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ =
        std::filesystem::temp_directory_path() / ("quern_topology_" + std::to_string(::getpid()) + "_" + info->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void allow(const std::string& list) {
    put("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t" + list + "\n");
  }
  void siblings(int processor, const std::string& list) {
    put("sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list", list + "\n");
  }
  // `n` processors, each a core of its own.
  void plain_processors(int n) {
    allow("0-" + std::to_string(n - 1));
    for (int i = 0; i < n; ++i) siblings(i, std::to_string(i));
  }
  void unified_cgroup(const std::string& group) {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo",
        "25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw\n"
        "31 25 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  Topology read() const { return read_topology(root_.string()); }

  std::filesystem::path root_;
};

TEST_F(TopologyTree, AnEmptyTreeKeepsTheDefaults) {
  const Topology t = read();
  EXPECT_EQ(t.model, "");
  EXPECT_EQ(t.logical, 1);
  EXPECT_EQ(t.physical, 1);
  EXPECT_EQ(t.usable, 1);
  EXPECT_EQ(t.quota, 0);
  EXPECT_EQ(t.l1d_bytes, 0u);
  EXPECT_EQ(t.l2_bytes, 0u);
  EXPECT_EQ(t.l3_bytes, 0u);
  EXPECT_EQ(t.memory_bytes, 0u);
  EXPECT_EQ(t.cores, std::vector<int>{0});
}

TEST_F(TopologyTree, SmtSiblingsAreOneCoreWhicheverWayTheyAreNumbered) {
  allow("0-7");
  for (int i = 0; i < 4; ++i) {  // far siblings: 0 and 4, ...
    siblings(i, std::to_string(i) + "," + std::to_string(i + 4));
    siblings(i + 4, std::to_string(i) + "," + std::to_string(i + 4));
  }
  Topology t = read();
  EXPECT_EQ(t.logical, 8);
  EXPECT_EQ(t.physical, 4);
  EXPECT_EQ(t.usable, 4);
  EXPECT_EQ(t.cores, (std::vector<int>{0, 1, 2, 3}));
  for (int i = 0; i < 8; ++i) {  // adjacent siblings: 0 and 1, ...
    const int first = i / 2 * 2;
    siblings(i, std::to_string(first) + "-" + std::to_string(first + 1));
  }
  t = read();
  EXPECT_EQ(t.physical, 4);
  EXPECT_EQ(t.cores, (std::vector<int>{0, 2, 4, 6}));
}

TEST_F(TopologyTree, OnlyProcessorsInTheAffinityMaskCount) {
  allow("3,5-6");
  for (int i = 0; i < 8; ++i) {
    const int first = i / 2 * 2;
    siblings(i, std::to_string(first) + "-" + std::to_string(first + 1));
  }
  const Topology t = read();
  EXPECT_EQ(t.logical, 3);
  EXPECT_EQ(t.physical, 3);
  EXPECT_EQ(t.cores, (std::vector<int>{3, 5, 6}));
}

TEST_F(TopologyTree, CoreAndPackageNumbersServeWhereSiblingListsAreMissing) {
  allow("0-3");
  for (int i = 0; i < 4; ++i) {  // two packages that both number their one core 0
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/";
    put(folder + "core_id", "0\n");
    put(folder + "physical_package_id", std::to_string(i / 2) + "\n");
  }
  const Topology t = read();
  EXPECT_EQ(t.physical, 2);
  EXPECT_EQ(t.cores, (std::vector<int>{0, 2}));
}

TEST_F(TopologyTree, WithoutTopologyEveryProcessorIsACore) {
  allow("0-2");
  EXPECT_EQ(read().physical, 3);
}

TEST_F(TopologyTree, OnlineProcessorsServeWhereTheStatusIsMissing) {
  put("sys/devices/system/cpu/online", "0-5\n");
  EXPECT_EQ(read().logical, 6);
}

TEST_F(TopologyTree, VersionTwoQuotaIsTheTightestOnTheWayUp) {
  plain_processors(8);
  unified_cgroup("/user.slice/app.scope");
  put("sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n");
  Topology t = read();
  EXPECT_EQ(t.quota, 0);
  EXPECT_EQ(t.usable, 8);
  put("sys/fs/cgroup/user.slice/app.scope/cpu.max", "600000 100000\n");
  EXPECT_DOUBLE_EQ(read().quota, 6);
  put("sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n");
  t = read();
  EXPECT_DOUBLE_EQ(t.quota, 2.5);
  EXPECT_EQ(t.usable, 3) << "rounded up";
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  t = read();
  EXPECT_DOUBLE_EQ(t.quota, 0.5);
  EXPECT_EQ(t.usable, 1);
}

TEST_F(TopologyTree, AQuotaAboveTheCoresDoesNotRaiseTheThreads) {
  plain_processors(2);
  unified_cgroup("/");
  put("sys/fs/cgroup/cpu.max", "1600000 100000\n");
  const Topology t = read();
  EXPECT_DOUBLE_EQ(t.quota, 16);
  EXPECT_EQ(t.usable, 2);
}

TEST_F(TopologyTree, VersionOneQuotaAndMemoryInTheirOwnHierarchies) {
  plain_processors(8);
  put("proc/meminfo", "MemTotal:       33554432 kB\nMemFree: 1 kB\n");
  put("proc/self/cgroup", "9:memory:/jobs/a\n4:cpu,cpuacct:/jobs\n1:name=systemd:/\n0::/\n");
  put("proc/self/mountinfo",
      "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "9223372036854771712\n");
  Topology t = read();
  EXPECT_EQ(t.quota, 0);
  EXPECT_EQ(t.memory_bytes, 32 * kGibibyte);
  put("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "400000\n");
  put("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "200000\n");
  put("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "8589934592\n");
  t = read();
  EXPECT_DOUBLE_EQ(t.quota, 2);
  EXPECT_EQ(t.usable, 2);
  EXPECT_EQ(t.memory_bytes, 8 * kGibibyte);
}

TEST_F(TopologyTree, VersionTwoMemoryLimitLowersTheRam) {
  put("proc/meminfo", "MemTotal:       16777216 kB\n");
  unified_cgroup("/a/b");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(read().memory_bytes, 16 * kGibibyte);
  put("sys/fs/cgroup/a/memory.max", "4294967296\n");
  EXPECT_EQ(read().memory_bytes, 4 * kGibibyte);
  put("sys/fs/cgroup/a/memory.max", "42949672960\n");
  EXPECT_EQ(read().memory_bytes, 16 * kGibibyte);
}

TEST_F(TopologyTree, AContainerThatSeesOnlyItsOwnGroupReadsIt) {
  plain_processors(8);
  put("proc/self/cgroup", "0::/machine/box/inner\n");
  put("proc/self/mountinfo", "31 25 0:27 /machine/box /sys/fs/cgroup ro - cgroup2 cgroup ro\n");
  put("sys/fs/cgroup/inner/cpu.max", "300000 100000\n");
  EXPECT_DOUBLE_EQ(read().quota, 3);
  put("proc/self/cgroup", "0::/machine/box\n");
  put("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(read().quota, 2);
  put("proc/self/cgroup", "0::/../../elsewhere\n");
  EXPECT_DOUBLE_EQ(read().quota, 2);
}

TEST_F(TopologyTree, TheUsualPlacesServeWhereMountsAreUnknown) {
  plain_processors(8);
  put("proc/self/cgroup", "0::/app\n");
  put("sys/fs/cgroup/app/cpu.max", "300000 100000\n");
  EXPECT_DOUBLE_EQ(read().quota, 3);
  put("proc/self/cgroup", "4:cpu:/app\n");
  put("sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "200000\n");
  put("sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(read().quota, 2);
}

TEST_F(TopologyTree, CachesOfTheFirstProcessorInTheMask) {
  allow("2");
  const std::string cache = "sys/devices/system/cpu/cpu2/cache/index";
  const auto add = [&](int index, const char* level, const char* type, const char* size) {
    const std::string folder = cache + std::to_string(index);
    put(folder + "/level", level);
    put(folder + "/type", type);
    put(folder + "/size", size);
  };
  add(0, "1\n", "Instruction\n", "64K\n");
  add(1, "1\n", "Data\n", "48K\n");
  add(2, "2\n", "Unified\n", "2048K\n");
  add(3, "3\n", "Unified\n", "105M\n");
  const Topology t = read();
  EXPECT_EQ(t.l1d_bytes, size_t{48} << 10);
  EXPECT_EQ(t.l2_bytes, size_t{2} << 20);
  EXPECT_EQ(t.l3_bytes, size_t{105} << 20);
}

TEST_F(TopologyTree, TheModelIsTheFirstProcessorsName) {
  put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU: 9000 @ 3 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n");
  EXPECT_EQ(read().model, "Some CPU: 9000 @ 3 GHz");
}

TEST_F(TopologyTree, DamagedFilesKeepTheDefaults) {
  put("proc/self/status", "Cpus_allowed_list:\t5-2,,x,-1,7-,99999999999999999999,0-4000000000\n");
  put("proc/cpuinfo", "model name");
  put("proc/meminfo", "MemTotal: many kB\n");
  put("proc/self/cgroup", "0::/a\n::\n:\ngarbage\n");
  put("proc/self/mountinfo", "1 2 3\n- - -\n31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/a/cpu.max", "0 0\n");
  put("sys/fs/cgroup/cpu.max", "-5\n");
  put("sys/fs/cgroup/a/memory.max", "-1\n");
  put("sys/devices/system/cpu/cpu0/cache/index0/level", "1");
  put("sys/devices/system/cpu/cpu0/cache/index0/size", "99999999999999K");
  const Topology t = read();
  EXPECT_EQ(t.logical, 1);
  EXPECT_EQ(t.usable, 1);
  EXPECT_EQ(t.quota, 0);
  EXPECT_EQ(t.model, "");
  EXPECT_EQ(t.memory_bytes, 0u);
  EXPECT_EQ(t.l1d_bytes, 0u);
}

TEST(Topology, OfTheRunningSystemIsConsistent) {
  const Topology t = read_topology();
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mask), &mask), 0);
  EXPECT_EQ(t.logical, CPU_COUNT(&mask));
  EXPECT_GE(t.physical, 1);
  EXPECT_LE(t.physical, t.logical);
  EXPECT_GE(t.usable, 1);
  EXPECT_LE(t.usable, t.physical);
  EXPECT_EQ(t.cores.size(), static_cast<size_t>(t.physical));
  for (int processor : t.cores) EXPECT_TRUE(CPU_ISSET(processor, &mask));
  EXPECT_GT(t.memory_bytes, size_t{1} << 20);
#if defined(__x86_64__)
  EXPECT_NE(t.model, "");
  EXPECT_GE(t.l2_bytes, t.l1d_bytes);
#endif
}

TEST(Topology, FollowsTheAffinityOfTheProcess) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  int last = 0;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &before)) last = i;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  const Topology t = read_topology();
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(t.logical, 1);
  EXPECT_EQ(t.usable, 1);
  EXPECT_EQ(t.cores, std::vector<int>{last});
}

}  // namespace
}  // namespace quern::cpu
