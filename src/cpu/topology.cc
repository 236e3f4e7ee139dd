// SPDX-License-Identifier: Apache-2.0
// Owns the reading behind cpu/topology.h: the affinity mask, SMT siblings, kinds of cores, NUMA nodes, caches. What
// belongs to the running system only (the affinity call, CPUID) is left out when a made tree is read.
#include "cpu/topology.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "cpu/proc_text.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quern::cpu {
namespace {

constexpr size_t kKibibyte = 1024;

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
    processors =
        parse_cpu_list(proc_field(read_proc_file(root + "/proc/self/status"), "Cpus_allowed_list").value_or(""));
  }
  if (processors.empty()) processors = parse_cpu_list(read_proc_file(root + "/sys/devices/system/cpu/online"));
  if (processors.empty()) processors = {0};
  return processors;
}

std::string processor_folder(const std::string& root, int processor) {
  return root + "/sys/devices/system/cpu/cpu" + std::to_string(processor);
}

// What processors on one core have in common, and others do not.
std::string core_key(const std::string& root, int processor) {
  const std::string folder = processor_folder(root, processor) + "/topology/";
  const std::vector<int> siblings = parse_cpu_list(read_proc_file(folder + "thread_siblings_list"));
  if (!siblings.empty()) return "first sibling " + std::to_string(siblings.front());
  const std::optional<int64_t> core = leading_number(read_proc_file(folder + "core_id"));
  const std::optional<int64_t> package = leading_number(read_proc_file(folder + "physical_package_id"));
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

bool contains(const std::vector<int>& sorted, int value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

// Those of `cores` that are of the fastest kind: all of them on an ordinary machine.
std::vector<int> fastest_of(const std::string& root, const std::vector<int>& cores) {
  // Intel's hybrid processors have a performance monitor for each kind.
  const std::vector<int> performance = parse_cpu_list(read_proc_file(root + "/sys/devices/cpu_core/cpus"));
  std::vector<int> fastest;
  if (!performance.empty()) {
    for (int core : cores) {
      if (contains(performance, core)) fastest.push_back(core);
    }
    return fastest.empty() ? cores : fastest;
  }
  // Elsewhere the kernel states a capacity, 1024 for the fastest. Single cores of one kind that clock higher than their
  // neighbours differ by a few percent, kinds by a third and more.
  constexpr double kSameKind = 0.8;
  std::vector<int64_t> capacities;
  for (int core : cores) {
    capacities.push_back(leading_number(read_proc_file(processor_folder(root, core) + "/cpu_capacity")).value_or(0));
  }
  const auto least = kSameKind * static_cast<double>(*std::ranges::max_element(capacities));
  for (size_t i = 0; i < cores.size(); ++i) {
    if (static_cast<double>(capacities[i]) >= least) fastest.push_back(cores[i]);
  }
  return fastest;
}

std::vector<NumaNode> numa_nodes(const std::string& root, const std::vector<int>& cores) {
  const std::string top = root + "/sys/devices/system/node/";
  std::vector<NumaNode> nodes;
  for (int id : parse_cpu_list(read_proc_file(top + "online"))) {
    const std::string folder = top + "node" + std::to_string(id);
    const std::vector<int> processors = parse_cpu_list(read_proc_file(folder + "/cpulist"));
    NumaNode node;
    node.id = id;
    node.cores = static_cast<int>(std::ranges::count_if(cores, [&](int core) { return contains(processors, core); }));
    const std::string total = fmt::format("Node {} MemTotal", id);
    const auto kibibytes = leading_number(proc_field(read_proc_file(folder + "/meminfo"), total).value_or(""));
    node.memory_bytes = kibibytes && *kibibytes > 0 ? static_cast<size_t>(*kibibytes) * kKibibyte : 0;
    nodes.push_back(node);
  }
  return nodes;
}

// "always [madvise] never".
std::string huge_page_setting(const std::string& root) {
  const std::string text = read_proc_file(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  return open < close && close != std::string::npos ? text.substr(open + 1, close - open - 1) : "";
}

std::string counted(int count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

void choose_threads(int online, Topology& topology) {
  std::string& why = topology.threads_reason;
  why = counted(topology.physical, "physical core");
  if (topology.logical > topology.physical) {
    why += fmt::format(" with {} (SMT siblings are not counted)", counted(topology.logical, "processor"));
  }
  if (topology.logical < online) {
    why += fmt::format(", in an affinity mask of {} of {} processors", topology.logical, online);
  }
  topology.threads = topology.fastest;
  if (topology.fastest < topology.physical) {
    // The others would be waited for at the end of every section.
    why += fmt::format(", {} of them of the fastest kind", topology.fastest);
  }
  if (topology.quota.processors > 0 && topology.quota.processors < topology.threads) {
    // A fraction is worth a thread: it computes until the quota of the period is used up.
    topology.threads = static_cast<int>(std::ceil(topology.quota.processors));
    why += fmt::format("; {} grants the time of {} {}", topology.quota.file, topology.quota.processors,
                       topology.quota.processors == 1 ? "processor" : "processors");
  }
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
  const std::optional<int64_t> value = leading_number(text);
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
    const std::optional<int64_t> level = leading_number(read_proc_file(folder + "/level"));
    if (!level) break;
    if (trimmed(read_proc_file(folder + "/type")) == "Instruction") continue;
    set_cache(topology, *level, parse_size(read_proc_file(folder + "/size")));
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
  topology.fastest = static_cast<int>(fastest_of(root, topology.cores).size());
  topology.nodes = numa_nodes(root, topology.cores);
  topology.quota = read_cpu_quota(root);
  const auto online = parse_cpu_list(read_proc_file(root + "/sys/devices/system/cpu/online"));
  choose_threads(static_cast<int>(online.size()), topology);
  topology.huge_pages = huge_page_setting(root);
  read_caches(root, processors.front(), topology);
  topology.model = proc_field(read_proc_file(root + "/proc/cpuinfo"), "model name").value_or("");
  if (root.empty()) {
    read_caches_from_cpuid(topology);
    if (topology.model.empty()) topology.model = model_from_cpuid();
  }
  return topology;
}

}  // namespace quern::cpu
