// SPDX-License-Identifier: Apache-2.0
// Owns the reading behind cpu/topology.h: the affinity mask, SMT siblings, cgroup limits, caches and memory size.
// What belongs to the running system only (the affinity call, CPUID) is left out when a made tree is read.
#include "cpu/topology.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quern::cpu {
namespace {

constexpr size_t kKibibyte = 1024;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t at = std::min(text.find(separator), text.size());
    parts.emplace_back(trimmed(text.substr(0, at)));
    text.remove_prefix(std::min(at + 1, text.size()));
  }
  return parts;
}

// A leading whole number; nothing when there is none or it does not fit ("max" means no limit to cgroups).
std::optional<int64_t> number(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The value of the first line "key : value".
std::optional<std::string> field(const std::string& text, std::string_view key) {
  for (const std::string& line : split(text, '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || trimmed(std::string_view(line).substr(0, colon)) != key) continue;
    return std::string(trimmed(std::string_view(line).substr(colon + 1)));
  }
  return std::nullopt;
}

// "0-3,8" as numbers, in order.
std::vector<int> parse_list(std::string_view text) {
  // Above what Linux can be built for; bounds what a damaged file can make us store.
  constexpr int64_t kMaxProcessors = 1 << 16;
  std::set<int> found;
  for (const std::string& part : split(text, ',')) {
    const std::optional<int64_t> first = number(part);
    if (!first) continue;
    const size_t dash = part.find('-');
    const std::optional<int64_t> last = dash == std::string::npos ? first : number(part.substr(dash + 1));
    if (!last || *first < 0 || *last >= kMaxProcessors) continue;
    for (int64_t i = *first; i <= *last; ++i) found.insert(static_cast<int>(i));
  }
  return {found.begin(), found.end()};
}

std::vector<int> system_affinity() {
  std::vector<int> processors;
  // The call fails while the set is smaller than the kernel's; doubled up to what no kernel exceeds.
  for (int size = CPU_SETSIZE; size <= CPU_SETSIZE * 64 && processors.empty(); size *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    if (::sched_getaffinity(0, bytes, set) == 0) {
      for (int i = 0; i < size; ++i) {
        if (CPU_ISSET_S(static_cast<size_t>(i), bytes, set)) processors.push_back(i);
      }
    }
    CPU_FREE(set);
  }
  return processors;
}

std::vector<int> affinity(const std::string& root) {
  std::vector<int> processors;
  if (root.empty()) processors = system_affinity();
  if (processors.empty()) {
    processors = parse_list(field(read_file(root + "/proc/self/status"), "Cpus_allowed_list").value_or(""));
  }
  if (processors.empty()) processors = parse_list(read_file(root + "/sys/devices/system/cpu/online"));
  if (processors.empty()) processors = {0};
  return processors;
}

std::string processor_folder(const std::string& root, int processor) {
  return root + "/sys/devices/system/cpu/cpu" + std::to_string(processor);
}

// What processors on one core have in common, and others do not.
std::string core_key(const std::string& root, int processor) {
  const std::string folder = processor_folder(root, processor) + "/topology/";
  const std::vector<int> siblings = parse_list(read_file(folder + "thread_siblings_list"));
  if (!siblings.empty()) return "first sibling " + std::to_string(siblings.front());
  const std::optional<int64_t> core = number(read_file(folder + "core_id"));
  const std::optional<int64_t> package = number(read_file(folder + "physical_package_id"));
  if (core && package) return "core " + std::to_string(*core) + " of package " + std::to_string(*package);
  return "processor " + std::to_string(processor);
}

std::vector<int> one_per_core(const std::string& root, const std::vector<int>& processors) {
  std::vector<int> cores;
  std::set<std::string> seen;
  for (int processor : processors) {
    if (seen.insert(core_key(root, processor)).second) cores.push_back(processor);
  }
  return cores;
}

// A cgroup hierarchy as this process sees it: where it is mounted, and its group below that.
struct Hierarchy {
  std::string mount;  // without a trailing slash
  std::string group;  // "" or "/a/b"
  bool unified;       // version 2
};

bool has_controller(const std::string& list, std::string_view controller) {
  for (const std::string& name : split(list, ',')) {
    if (name == controller) return true;
  }
  return false;
}

// The group's path in the unified hierarchy, or in the version 1 hierarchy with `controller`. Lines:
// "id:controllers:path".
std::optional<std::string> group_path(const std::string& cgroup_file, bool unified, std::string_view controller) {
  for (const std::string& line : split(cgroup_file, '\n')) {
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
  const std::string cgroup_file = read_file(root + "/proc/self/cgroup");
  std::vector<Hierarchy> found;
  for (const std::string& line : split(read_file(root + "/proc/self/mountinfo"), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
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

double cgroup_quota(const std::string& root) {
  double tightest = 0;
  const auto limit = [&tightest](std::optional<int64_t> quota_us, std::optional<int64_t> period_us) {
    if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return;
    const double processors = static_cast<double>(*quota_us) / static_cast<double>(*period_us);
    if (tightest == 0 || processors < tightest) tightest = processors;
  };
  for (const Hierarchy& hierarchy : hierarchies(root, "cpu")) {
    for_each_level(hierarchy, [&](const std::string& folder) {
      if (hierarchy.unified) {
        const std::vector<std::string> words = split(read_file(folder + "/cpu.max"), ' ');
        if (words.size() == 2) limit(number(words[0]), number(words[1]));
      } else {
        limit(number(read_file(folder + "/cpu.cfs_quota_us")), number(read_file(folder + "/cpu.cfs_period_us")));
      }
    });
  }
  return tightest;
}

size_t memory_size(const std::string& root) {
  const auto kibibytes = number(field(read_file(root + "/proc/meminfo"), "MemTotal").value_or(""));
  size_t bytes = kibibytes && *kibibytes > 0 ? static_cast<size_t>(*kibibytes) * kKibibyte : 0;
  for (const Hierarchy& hierarchy : hierarchies(root, "memory")) {
    for_each_level(hierarchy, [&](const std::string& folder) {
      const char* name = hierarchy.unified ? "/memory.max" : "/memory.limit_in_bytes";
      const std::optional<int64_t> limit = number(read_file(folder + name));
      // Version 1 writes "no limit" as a number near the largest, which the size of the RAM then beats.
      constexpr int64_t kNoLimit = int64_t{1} << 60;
      if (!limit || *limit <= 0 || *limit >= kNoLimit) return;
      if (bytes == 0 || static_cast<size_t>(*limit) < bytes) bytes = static_cast<size_t>(*limit);
    });
  }
  return bytes;
}

void set_cache(Topology& topology, int64_t level, size_t bytes) {
  size_t* const place = level == 1   ? &topology.l1d_bytes
                        : level == 2 ? &topology.l2_bytes
                        : level == 3 ? &topology.l3_bytes
                                     : nullptr;
  if (place != nullptr && *place == 0) *place = bytes;
}

// "32K", "16M" or plain bytes.
size_t parse_size(std::string_view text) {
  text = trimmed(text);
  const std::optional<int64_t> value = number(text);
  constexpr int64_t kLargest = int64_t{1} << 40;
  if (!value || *value <= 0 || *value > kLargest) return 0;
  const char unit = text.back();
  const size_t scale = unit == 'K' ? kKibibyte : unit == 'M' ? kKibibyte * kKibibyte : 1;
  return static_cast<size_t>(*value) * scale;
}

void read_caches(const std::string& root, int processor, Topology& topology) {
  // One folder per cache; levels and kinds together are fewer than this.
  constexpr int kMaxCaches = 16;
  for (int index = 0; index < kMaxCaches; ++index) {
    const std::string folder = processor_folder(root, processor) + "/cache/index" + std::to_string(index);
    const std::optional<int64_t> level = number(read_file(folder + "/level"));
    if (!level) break;
    if (trimmed(read_file(folder + "/type")) == "Instruction") continue;
    set_cache(topology, *level, parse_size(read_file(folder + "/size")));
  }
}

#if defined(__x86_64__)

struct CpuidWords {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

std::optional<CpuidWords> cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidWords words;
  if (__get_cpuid_count(leaf, subleaf, &words.eax, &words.ebx, &words.ecx, &words.edx) == 0) return std::nullopt;
  return words;
}

// Deterministic cache parameters: leaf 4 of Intel, 0x8000001D of AMD, with the same fields.
void read_caches_from_cpuid(Topology& topology) {
  constexpr uint32_t kMaxCaches = 16;
  constexpr uint32_t kNoMoreCaches = 0;
  constexpr uint32_t kInstructionCache = 2;
  for (uint32_t leaf : {0x8000001Du, 4u}) {
    for (uint32_t index = 0; index < kMaxCaches; ++index) {
      const std::optional<CpuidWords> words = cpuid(leaf, index);
      if (!words || (words->eax & 0x1F) == kNoMoreCaches) break;
      if ((words->eax & 0x1F) == kInstructionCache) continue;
      const size_t ways = ((words->ebx >> 22) & 0x3FF) + size_t{1};
      const size_t partitions = ((words->ebx >> 12) & 0x3FF) + size_t{1};
      const size_t line_bytes = (words->ebx & 0xFFF) + size_t{1};
      const size_t sets = words->ecx + size_t{1};
      set_cache(topology, (words->eax >> 5) & 0x7, ways * partitions * line_bytes * sets);
    }
  }
}

std::string model_from_cpuid() {
  constexpr uint32_t kFirstBrandLeaf = 0x80000002;
  std::string brand;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::optional<CpuidWords> words = cpuid(kFirstBrandLeaf + i, 0);
    if (!words) return "";
    for (uint32_t word : {words->eax, words->ebx, words->ecx, words->edx}) {
      for (int shift = 0; shift < 32; shift += 8) brand += static_cast<char>((word >> shift) & 0xFF);
    }
  }
  return std::string(trimmed(brand.c_str()));
}

#else

void read_caches_from_cpuid(Topology&) {}
std::string model_from_cpuid() { return ""; }

#endif

}  // namespace

Topology read_topology(const std::string& root) {
  Topology topology;
  const std::vector<int> processors = affinity(root);
  topology.logical = static_cast<int>(processors.size());
  topology.cores = one_per_core(root, processors);
  topology.physical = static_cast<int>(topology.cores.size());
  topology.quota = cgroup_quota(root);
  topology.usable = topology.physical;
  if (topology.quota > 0 && topology.quota < topology.physical) {
    topology.usable = static_cast<int>(std::ceil(topology.quota));
  }
  read_caches(root, processors.front(), topology);
  topology.model = field(read_file(root + "/proc/cpuinfo"), "model name").value_or("");
  if (root.empty()) {
    read_caches_from_cpuid(topology);
    if (topology.model.empty()) topology.model = model_from_cpuid();
  }
  topology.memory_bytes = memory_size(root);
  return topology;
}

}  // namespace quern::cpu
