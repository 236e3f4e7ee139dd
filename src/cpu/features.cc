// SPDX-License-Identifier: Apache-2.0
// Owns the CPUID and XGETBV reading behind cpu/features.h. A feature counts only when the operating system also saves
// the registers it uses; otherwise the first context switch would corrupt results.
#include "cpu/features.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quern::cpu {
namespace {

constexpr const char* kVariable = "QUERN_ISA";

Features features_of(Isa isa) {
  Features set;
  set.avx2 = isa != Isa::scalar;
  set.avxvnni = isa == Isa::avxvnni;
  set.avx512bf16 = isa == Isa::avx512bf16;
  set.avx512vnni = isa == Isa::avx512vnni || set.avx512bf16;
  return set;
}

// The names of what `features` holds, or of all sets, as "a, b, c".
std::string list_names(const Features* features) {
  std::string names;
  for (Isa isa : kIsas) {
    if (features != nullptr && !features->has(isa)) continue;
    if (!names.empty()) names += ", ";
    names += isa_name(isa);
  }
  return names;
}

#if defined(__x86_64__)

// Bits of XCR0, the register states that the operating system saves.
constexpr uint64_t kXmmAndYmmState = 0x06;
constexpr uint64_t kZmmState = 0xE0;  // opmask, upper halves of zmm0-15, zmm16-31

// The instruction itself, because the intrinsic needs -mxsave and baseline files have no ISA flags. Only legal after
// CPUID reported OSXSAVE.
uint64_t read_xcr0() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

#endif

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avxvnni: return "avxvnni";
    case Isa::avx512vnni: return "avx512vnni";
    case Isa::avx512bf16: return "avx512bf16";
  }
  return "?";
}

Features detect_features() {
  Features found;
#if defined(__x86_64__)
  // Values from the CPUID instruction's definition; <cpuid.h> names them differently in gcc and clang.
  constexpr uint32_t kLeaf1EcxFma = 1u << 12;
  constexpr uint32_t kLeaf1EcxOsxsave = 1u << 27;
  constexpr uint32_t kLeaf1EcxAvx = 1u << 28;
  constexpr uint32_t kLeaf1EcxF16c = 1u << 29;
  constexpr uint32_t kLeaf7EbxAvx2 = 1u << 5;
  constexpr uint32_t kLeaf7EbxAvx512f = 1u << 16;
  constexpr uint32_t kLeaf7EbxAvx512dq = 1u << 17;
  constexpr uint32_t kLeaf7EbxAvx512bw = 1u << 30;
  constexpr uint32_t kLeaf7EbxAvx512vl = 1u << 31;
  constexpr uint32_t kLeaf7EcxAvx512vnni = 1u << 11;
  constexpr uint32_t kLeaf7Sub1EaxAvxvnni = 1u << 4;
  constexpr uint32_t kLeaf7Sub1EaxAvx512bf16 = 1u << 5;

  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return found;
  if (!all(ecx, kLeaf1EcxOsxsave | kLeaf1EcxAvx | kLeaf1EcxFma | kLeaf1EcxF16c)) return found;
  const uint64_t state = read_xcr0();
  if ((state & kXmmAndYmmState) != kXmmAndYmmState) return found;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return found;
  const uint32_t subleaves = eax;
  found.avx2 = all(ebx, kLeaf7EbxAvx2);
  if (!found.avx2) return found;
  constexpr uint32_t kAvx512 = kLeaf7EbxAvx512f | kLeaf7EbxAvx512dq | kLeaf7EbxAvx512bw | kLeaf7EbxAvx512vl;
  found.avx512vnni = (state & kZmmState) == kZmmState && all(ebx, kAvx512) && all(ecx, kLeaf7EcxAvx512vnni);
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
    found.avxvnni = all(eax, kLeaf7Sub1EaxAvxvnni);
    found.avx512bf16 = found.avx512vnni && all(eax, kLeaf7Sub1EaxAvx512bf16);
  }
#endif
  return found;
}

Result<Features> cap_features(const Features& detected, std::string_view name) {
  for (Isa isa : kIsas) {
    if (isa_name(isa) != name) continue;
    if (!detected.has(isa)) {
      return bad_request("instruction set",
                         fmt::format("this CPU does not have {}; it has {}", name, list_names(&detected)));
    }
    return features_of(isa);
  }
  return bad_request("instruction set", fmt::format("\"{}\" is not known; known are {}", name, list_names(nullptr)));
}

Result<Features> usable_features() {
  const char* name = std::getenv(kVariable);
  if (name == nullptr || *name == '\0') return detect_features();
  Result<Features> capped = cap_features(detect_features(), name);
  if (!capped.ok()) return bad_request(kVariable, capped.error().what);
  return capped;
}

}  // namespace quern::cpu
