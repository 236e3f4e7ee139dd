// SPDX-License-Identifier: Apache-2.0
// Holds cpu/topology.h on made trees of /proc and /sys (SMT, affinity, kinds of cores, NUMA, quotas, caches, damage),
// and on the running system as far as that can be known.
#include "cpu/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <string>
#include <vector>

#include "tests/support/proc_tree.h"

namespace quern::cpu {
namespace {

class TopologyTree : public testing::Test, public test::ProcTree {
 protected:
  Topology read() const { return read_topology(root()); }
  void capacity(int processor, const std::string& value) const {
    put("sys/devices/system/cpu/cpu" + std::to_string(processor) + "/cpu_capacity", value + "\n");
  }
};

TEST_F(TopologyTree, AnEmptyTreeKeepsTheDefaults) {
  const Topology t = read();
  EXPECT_EQ(t.model, "");
  EXPECT_EQ(t.logical, 1);
  EXPECT_EQ(t.physical, 1);
  EXPECT_EQ(t.threads, 1);
  EXPECT_EQ(t.quota.processors, 0);
  EXPECT_EQ(t.l1d_bytes, 0u);
  EXPECT_EQ(t.l2_bytes, 0u);
  EXPECT_EQ(t.l3_bytes, 0u);
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
  EXPECT_EQ(t.threads, 4);
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

TEST_F(TopologyTree, ThePlainCaseIsOneThreadACore) {
  plain_processors(4);
  const Topology t = read();
  EXPECT_EQ(t.threads, 4);
  EXPECT_EQ(t.fastest, 4);
  EXPECT_EQ(t.threads_reason, "4 physical cores");
}

TEST_F(TopologyTree, EfficiencyCoresAreCountedButNotComputedWith) {
  // A desktop of 8 performance cores with two threads each and 8 efficiency cores.
  allow("0-23");
  put("sys/devices/system/cpu/online", "0-23\n");
  put("sys/devices/cpu_core/cpus", "0-15\n");
  put("sys/devices/cpu_atom/cpus", "16-23\n");
  for (int i = 0; i < 16; ++i) siblings(i, std::to_string(i / 2 * 2) + "-" + std::to_string(i / 2 * 2 + 1));
  for (int i = 16; i < 24; ++i) siblings(i, std::to_string(i));
  Topology t = read();
  EXPECT_EQ(t.logical, 24);
  EXPECT_EQ(t.physical, 16);
  EXPECT_EQ(t.fastest, 8);
  EXPECT_EQ(t.threads, 8);
  EXPECT_EQ(t.threads_reason,
            "16 physical cores with 24 processors (SMT siblings are not counted), 8 of them of the fastest kind");
  allow("16-23");  // pinned to the efficiency cores: those are then the fastest there are
  t = read();
  EXPECT_EQ(t.threads, 8);
  EXPECT_EQ(t.threads_reason, "8 physical cores, in an affinity mask of 8 of 24 processors");
}

TEST_F(TopologyTree, CapacitiesTellKindsOfCoresApart) {
  plain_processors(8);  // 2 large, 2 of which one clocks higher, 4 small
  for (int i = 0; i < 2; ++i) capacity(i, "1024");
  capacity(2, "1024");
  capacity(3, "985");
  for (int i = 4; i < 8; ++i) capacity(i, "446");
  const Topology t = read();
  EXPECT_EQ(t.physical, 8);
  EXPECT_EQ(t.fastest, 4);
  EXPECT_EQ(t.threads, 4);
}

TEST_F(TopologyTree, TwoSocketsShowTheirNodes) {
  // 2 sockets of 4 cores with two threads each; siblings lie 8 apart.
  allow("0-15");
  put("sys/devices/system/cpu/online", "0-15\n");
  for (int i = 0; i < 16; ++i) siblings(i, std::to_string(i % 8) + "," + std::to_string(i % 8 + 8));
  put("sys/devices/system/node/online", "0-1\n");
  put("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
  put("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
  put("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       65536000 kB\nNode 0 MemFree: 1 kB\n");
  put("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       32768000 kB\n");
  Topology t = read();
  EXPECT_EQ(t.threads, 8);
  ASSERT_EQ(t.nodes.size(), 2u);
  EXPECT_EQ(t.nodes[0].cores, 4);
  EXPECT_EQ(t.nodes[0].memory_bytes, size_t{65536000} * 1024);
  EXPECT_EQ(t.nodes[1].id, 1);
  EXPECT_EQ(t.nodes[1].cores, 4);
  EXPECT_EQ(t.nodes[1].memory_bytes, size_t{32768000} * 1024);
  allow("4-6,12");
  t = read();
  EXPECT_EQ(t.threads, 3);
  EXPECT_EQ(t.nodes[0].cores, 0);
  EXPECT_EQ(t.nodes[1].cores, 3);
}

TEST_F(TopologyTree, AQuotaIsRoundedUpToThreads) {
  plain_processors(8);
  unified_cgroup("/box");
  put("sys/fs/cgroup/box/cpu.max", "150000 100000\n");
  Topology t = read();
  EXPECT_DOUBLE_EQ(t.quota.processors, 1.5);
  EXPECT_EQ(t.threads, 2);
  EXPECT_EQ(t.threads_reason,
            "8 physical cores; " + root() + "/sys/fs/cgroup/box/cpu.max grants the time of 1.5 processors");
  put("sys/fs/cgroup/box/cpu.max", "50000 100000\n");
  EXPECT_EQ(read().threads, 1);
  put("sys/fs/cgroup/box/cpu.max", "1600000 100000\n");
  t = read();
  EXPECT_DOUBLE_EQ(t.quota.processors, 16);
  EXPECT_EQ(t.threads, 8) << "a quota above the cores does not raise the threads";
  EXPECT_EQ(t.threads_reason, "8 physical cores");
}

TEST_F(TopologyTree, QuotaAndAffinityTheLowerCounts) {
  plain_processors(8);
  unified_cgroup("/box");
  put("sys/fs/cgroup/box/cpu.max", "300000 100000\n");
  allow("2-3");
  EXPECT_EQ(read().threads, 2);
  allow("2-7");
  EXPECT_EQ(read().threads, 3);
}

TEST_F(TopologyTree, HugePageSettingIsTheOneInBrackets) {
  EXPECT_EQ(read().huge_pages, "");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(read().huge_pages, "madvise");
  put("sys/kernel/mm/transparent_hugepage/enabled", "] always [never\n");
  EXPECT_EQ(read().huge_pages, "");
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
  put("proc/self/cgroup", "0::/a\n::\n:\ngarbage\n");
  put("proc/self/mountinfo", "1 2 3\n- - -\n31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/a/cpu.max", "0 0\n");
  put("sys/fs/cgroup/cpu.max", "-5\n");
  put("sys/devices/system/cpu/cpu0/cache/index0/level", "1");
  put("sys/devices/system/cpu/cpu0/cache/index0/size", "99999999999999K");
  const Topology t = read();
  EXPECT_EQ(t.logical, 1);
  EXPECT_EQ(t.threads, 1);
  EXPECT_EQ(t.quota.processors, 0);
  EXPECT_EQ(t.model, "");
  EXPECT_EQ(t.l1d_bytes, 0u);
}

TEST(Topology, OfTheRunningSystemIsConsistent) {
  const Topology t = read_topology();
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mask), &mask), 0);
  EXPECT_EQ(t.logical, CPU_COUNT(&mask));
  EXPECT_GE(t.physical, 1);
  EXPECT_LE(t.physical, t.logical);
  EXPECT_GE(t.threads, 1);
  EXPECT_LE(t.threads, t.physical);
  EXPECT_EQ(t.cores.size(), static_cast<size_t>(t.physical));
  for (int processor : t.cores) EXPECT_TRUE(CPU_ISSET(processor, &mask));
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
  EXPECT_EQ(t.threads, 1);
  EXPECT_EQ(t.cores, std::vector<int>{last});
}

}  // namespace
}  // namespace quern::cpu
