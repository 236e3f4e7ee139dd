// SPDX-License-Identifier: Apache-2.0
// Which groups bound the process is read from /proc/self/cgroup, where they are from /proc/self/mountinfo.
#include "cpu/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cpu/proc_text.h"

namespace quern::cpu {
namespace {

constexpr size_t kKibibyte = 1024;

// A cgroup hierarchy as this process sees it: where it is mounted, and its group below that.
struct Hierarchy {
  std::string mount;  // without a trailing slash
  std::string group;  // "" or "/a/b"
  bool unified;       // version 2
};

bool has_controller(const std::string& list, std::string_view controller) {
  for (const std::string& name : split_text(list, ',')) {
    if (name == controller) return true;
  }
  return false;
}

// The group's path in the unified hierarchy, or in the version 1 hierarchy with `controller`. Lines:
// "id:controllers:path".
std::optional<std::string> group_path(const std::string& cgroup_file, bool unified, std::string_view controller) {
  for (const std::string& line : split_text(cgroup_file, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? !controllers.empty() : !has_controller(controllers, controller)) continue;
    return line.substr(second + 1);
  }
  return std::nullopt;
}

// Without "/" at the end, so that paths can be joined by it.
std::string without_slash(std::string path) {
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path;
}

// `path` as seen through a mount of the subtree `mount_root`. A container often sees only its own group, mounted as the
// whole tree, while /proc names the group by its path on the host.
std::string below_mount(const std::string& path, const std::string& mount_root) {
  const std::string top = without_slash(mount_root);
  // A group outside of the cgroup namespace; what it is bounded by cannot be seen from here.
  if (path.compare(0, 3, "/..") == 0) return "";
  if (top.empty()) return without_slash(path);
  if (path == top) return "";
  if (path.compare(0, top.size() + 1, top + "/") == 0) return without_slash(path.substr(top.size()));
  return "";
}

// The hierarchies that can limit `controller`. Lines of mountinfo: id parent device root mount-point options...
// "-" type source super-options; the controllers of version 1 are among the super-options.
std::vector<Hierarchy> hierarchies(const std::string& root, std::string_view controller) {
  const std::string cgroup_file = read_proc_file(root + "/proc/self/cgroup");
  std::vector<Hierarchy> found;
  for (const std::string& line : split_text(read_proc_file(root + "/proc/self/mountinfo"), '\n')) {
    const std::vector<std::string> words = split_text(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    constexpr ptrdiff_t kWordsBeforeDash = 6;
    constexpr ptrdiff_t kWordsFromDash = 4;
    if (dash - words.begin() < kWordsBeforeDash || words.end() - dash < kWordsFromDash) continue;
    const bool unified = dash[1] == "cgroup2";
    if (!unified && (dash[1] != "cgroup" || !has_controller(dash[3], controller))) continue;
    const std::optional<std::string> path = group_path(cgroup_file, unified, controller);
    if (path) found.push_back({without_slash(root + words[4]), below_mount(*path, words[3]), unified});
  }
  if (!found.empty()) return found;
  // Without a list of mounts: the places where distributions put them.
  for (bool unified : {true, false}) {
    const std::optional<std::string> path = group_path(cgroup_file, unified, controller);
    if (!path) continue;
    const std::string top = root + "/sys/fs/cgroup";
    found.push_back({unified ? top : top + "/" + std::string(controller), without_slash(*path), unified});
  }
  return found;
}

// Calls visit(folder) for the group and all groups above it: each can be the tightest.
template <class Visit>
void for_each_level(const Hierarchy& hierarchy, const Visit& visit) {
  std::string group = hierarchy.group;
  for (;;) {
    visit(hierarchy.mount + group);
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.resize(slash);
  }
}

// Of a file "name value" a line, the sum of the values of `names`.
int64_t sum_of(const std::string& text, std::initializer_list<std::string_view> names) {
  int64_t sum = 0;
  for (const std::string& line : split_text(text, '\n')) {
    const std::vector<std::string> words = split_text(line, ' ');
    if (words.size() == 2 && std::ranges::find(names, words[0]) != names.end()) {
      sum += leading_number(words[1]).value_or(0);
    }
  }
  return sum;
}

// What a group holds without the pages of files, which it gives back when it needs memory.
int64_t held_bytes(const std::string& folder, bool unified) {
  const int64_t used =
      leading_number(read_proc_file(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"))).value_or(0);
  const std::string stat = read_proc_file(folder + "/memory.stat");
  // Without "total_", version 1 leaves out the groups below.
  const int64_t files = unified ? sum_of(stat, {"inactive_file", "active_file"})
                                : sum_of(stat, {"total_inactive_file", "total_active_file"});
  return std::max<int64_t>(used - files, 0);
}

// Of the group in `folder`: its limit lowers `limits`.
void apply_limit(const std::string& folder, const char* file, bool unified, MemoryLimits& limits) {
  const std::optional<int64_t> limit = leading_number(read_proc_file(folder + file));
  // Version 1 writes "no limit" as a number near the largest.
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  if (!limit || *limit <= 0 || *limit >= kNoLimit) return;
  const auto bytes = static_cast<size_t>(*limit);
  if (limits.total == 0 || bytes < limits.total) limits.total = bytes;
  const auto left = static_cast<size_t>(std::max<int64_t>(*limit - held_bytes(folder, unified), 0));
  if (!limits.bound.empty() && left >= limits.available) return;
  limits.available = left;
  limits.bound = fmt::format("{} ({} bytes)", folder + file, bytes);
}

}  // namespace

CpuQuota read_cpu_quota(const std::string& root) {
  CpuQuota tightest;
  const auto limit = [&](std::optional<int64_t> quota_us, std::optional<int64_t> period_us, std::string file) {
    if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return;
    const double processors = static_cast<double>(*quota_us) / static_cast<double>(*period_us);
    if (tightest.processors == 0 || processors < tightest.processors) tightest = {processors, std::move(file)};
  };
  for (const Hierarchy& hierarchy : hierarchies(root, "cpu")) {
    for_each_level(hierarchy, [&](const std::string& folder) {
      const std::string file = folder + (hierarchy.unified ? "/cpu.max" : "/cpu.cfs_quota_us");
      if (hierarchy.unified) {
        const std::vector<std::string> words = split_text(read_proc_file(file), ' ');
        if (words.size() == 2) limit(leading_number(words[0]), leading_number(words[1]), file);
      } else {
        limit(leading_number(read_proc_file(file)), leading_number(read_proc_file(folder + "/cpu.cfs_period_us")),
              file);
      }
    });
  }
  return tightest;
}

MemoryLimits read_memory_limits(const std::string& root) {
  MemoryLimits limits;
  const std::string text = read_proc_file(root + "/proc/meminfo");
  const auto bytes = [&](std::string_view key) -> size_t {
    const auto kibibytes = leading_number(proc_field(text, key).value_or(""));
    return kibibytes && *kibibytes > 0 ? static_cast<size_t>(*kibibytes) * kKibibyte : 0;
  };
  limits.total = bytes("MemTotal");
  if (const size_t available = bytes("MemAvailable"); available > 0) {
    const size_t swap = bytes("SwapFree");
    limits.available = available + swap;
    limits.bound = swap > 0 ? "RAM and swap" : "RAM";
  }
  for (const Hierarchy& hierarchy : hierarchies(root, "memory")) {
    for_each_level(hierarchy, [&](const std::string& folder) {
      if (!hierarchy.unified) return apply_limit(folder, "/memory.limit_in_bytes", false, limits);
      apply_limit(folder, "/memory.max", true, limits);
      apply_limit(folder, "/memory.high", true, limits);  // above it the system stalls the group instead of killing it
    });
  }
  return limits;
}

}  // namespace quern::cpu
