// SPDX-License-Identifier: Apache-2.0
// Holds cpu/limits.h on made trees of /proc and /sys: control groups of both versions, nested, seen from inside and
// outside of a container, and damaged.
#include "cpu/limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/support/proc_tree.h"

namespace quern::cpu {
namespace {

constexpr size_t kGibibyte = size_t{1} << 30;

class LimitsTree : public testing::Test, public test::ProcTree {
 protected:
  CpuQuota quota() const { return read_cpu_quota(root()); }
  MemoryLimits memory() const { return read_memory_limits(root()); }
  // GiB.
  void ram(int total, int available) const {
    put("proc/meminfo", "MemTotal: " + std::to_string(total << 20) + " kB\nMemFree: 1 kB\nMemAvailable: " +
                            std::to_string(available << 20) + " kB\nSwapFree: 0 kB\n");
  }
};

TEST_F(LimitsTree, NothingKnownBoundsNothing) {
  EXPECT_EQ(quota().processors, 0);
  EXPECT_EQ(quota().file, "");
  EXPECT_EQ(memory().total, 0u);
  EXPECT_EQ(memory().available, 0u);
  EXPECT_EQ(memory().bound, "");
}

TEST_F(LimitsTree, VersionTwoQuotaIsTheTightestOnTheWayUp) {
  unified_cgroup("/user.slice/app.scope");
  put("sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(quota().processors, 0);
  put("sys/fs/cgroup/user.slice/app.scope/cpu.max", "600000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 6);
  put("sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 2.5);
  EXPECT_EQ(quota().file, root() + "/sys/fs/cgroup/user.slice/cpu.max");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 0.5);
}

TEST_F(LimitsTree, VersionOneQuotaWhereBothAreMounted) {
  both_cgroups("/jobs/a", "/");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota().processors, 0);
  put("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "400000\n");
  put("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "200000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 2);
  put("sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.cfs_quota_us", "15000\n");
  put("sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.cfs_period_us", "10000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 1.5);
  EXPECT_EQ(quota().file, root() + "/sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.cfs_quota_us");
}

TEST_F(LimitsTree, BothVersionsLimitAtOnceAndTheTighterCounts) {
  both_cgroups("/a", "/");
  put("proc/self/cgroup", "4:cpu,cpuacct:/a\n0::/b\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/unified/b/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 2);
  put("sys/fs/cgroup/unified/b/cpu.max", "400000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 3);
}

TEST_F(LimitsTree, AContainerThatSeesOnlyItsOwnGroupReadsIt) {
  put("proc/self/cgroup", "0::/machine/box/inner\n");
  put("proc/self/mountinfo", "31 25 0:27 /machine/box /sys/fs/cgroup ro - cgroup2 cgroup ro\n");
  put("sys/fs/cgroup/inner/cpu.max", "300000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 3);
  put("proc/self/cgroup", "0::/machine/box\n");
  put("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 2);
  put("proc/self/cgroup", "0::/../../elsewhere\n");
  EXPECT_DOUBLE_EQ(quota().processors, 2);
}

TEST_F(LimitsTree, TheUsualPlacesServeWhereMountsAreUnknown) {
  put("proc/self/cgroup", "0::/app\n");
  put("sys/fs/cgroup/app/cpu.max", "300000 100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 3);
  put("proc/self/cgroup", "4:cpu:/app\n");
  put("sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "200000\n");
  put("sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota().processors, 2);
}

TEST_F(LimitsTree, WithoutGroupsTheRamIsWhatTheSystemCanGive) {
  ram(16, 10);
  EXPECT_EQ(memory().total, 16 * kGibibyte);
  EXPECT_EQ(memory().available, 10 * kGibibyte);
  EXPECT_EQ(memory().bound, "RAM");
  put("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\nSwapFree: 2097152 kB\n");
  EXPECT_EQ(memory().available, 3 * kGibibyte);
  EXPECT_EQ(memory().bound, "RAM and swap");
}

TEST_F(LimitsTree, VersionTwoLimitCountsWithoutWhatItsGroupHolds) {
  ram(16, 12);
  unified_cgroup("/a/b");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(memory().total, 16 * kGibibyte);
  EXPECT_EQ(memory().available, 12 * kGibibyte);
  put("sys/fs/cgroup/a/memory.max", "4294967296\n");
  EXPECT_EQ(memory().total, 4 * kGibibyte);
  EXPECT_EQ(memory().available, 4 * kGibibyte);
  EXPECT_EQ(memory().bound, root() + "/sys/fs/cgroup/a/memory.max (4294967296 bytes)");
  put("sys/fs/cgroup/a/memory.current", "3221225472\n");
  EXPECT_EQ(memory().available, kGibibyte);
  // Pages of files give way to what needs memory; anonymous ones do not.
  put("sys/fs/cgroup/a/memory.stat",
      "anon 1073741824\nfile 2147483648\ninactive_file 536870912\nactive_file 1610612736\n");
  EXPECT_EQ(memory().available, 3 * kGibibyte);
  put("sys/fs/cgroup/a/memory.max", "42949672960\n");
  EXPECT_EQ(memory().total, 16 * kGibibyte);
  EXPECT_EQ(memory().available, 12 * kGibibyte);
  put("sys/fs/cgroup/a/b/memory.high", "2147483648\n");
  EXPECT_EQ(memory().available, 2 * kGibibyte);
}

TEST_F(LimitsTree, VersionOneMemoryInItsOwnHierarchy) {
  ram(32, 30);
  both_cgroups("/", "/jobs/a");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory().total, 32 * kGibibyte);
  EXPECT_EQ(memory().bound, "RAM");
  put("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "8589934592\n");
  put("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "6442450944\n");
  // The first two count this group alone.
  put("sys/fs/cgroup/memory/jobs/memory.stat",
      "inactive_file 0\nactive_file 0\ntotal_inactive_file 1073741824\ntotal_active_file 1073741824\n");
  EXPECT_EQ(memory().total, 8 * kGibibyte);
  EXPECT_EQ(memory().available, 4 * kGibibyte);
}

TEST_F(LimitsTree, AFullGroupHasNothingLeft) {
  ram(16, 12);
  unified_cgroup("/a");
  put("sys/fs/cgroup/a/memory.max", "1073741824\n");
  put("sys/fs/cgroup/a/memory.current", "1073745920\n");
  EXPECT_EQ(memory().available, 0u);
  EXPECT_NE(memory().bound, "");
}

TEST_F(LimitsTree, DamagedFilesBoundNothing) {
  put("proc/meminfo", "MemTotal: many kB\nMemAvailable: -4 kB\n");
  put("proc/self/cgroup", "0::/a\n::\n:\ngarbage\n");
  put("proc/self/mountinfo", "1 2 3\n- - -\n31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/a/cpu.max", "0 0\n");
  put("sys/fs/cgroup/cpu.max", "-5\n");
  put("sys/fs/cgroup/a/memory.max", "-1\n");
  EXPECT_EQ(quota().processors, 0);
  EXPECT_EQ(memory().total, 0u);
  EXPECT_EQ(memory().available, 0u);
}

TEST(Limits, OfTheRunningSystemAreConsistent) {
  const MemoryLimits limits = read_memory_limits();
  EXPECT_GT(limits.total, size_t{1} << 20);
  EXPECT_GT(limits.available, 0u);
  EXPECT_NE(limits.bound, "");
  // A group's limit is a ceiling below the RAM, and what is available comes from the same places.
  EXPECT_LE(limits.total, static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  // A limit and the file that says so come together.
  const CpuQuota quota = read_cpu_quota();
  EXPECT_EQ(quota.processors > 0, !quota.file.empty()) << quota.file;
}

}  // namespace
}  // namespace quern::cpu
