// SPDX-License-Identifier: Apache-2.0
// Owns how a room's kernels.inc becomes a table and how a variant is chosen from it. A room includes its list with
// QUERN_KERNEL defined for declaring and for listing; lines of an ISA that is not compiled in expand to nothing.
#pragma once

#include <span>
#include <string_view>

#include "cpu/features.h"

namespace quern::ops {

// Type-erased row of a room's table, for `inspect kernels`.
struct VariantInfo {
  cpu::Isa isa;
  std::string_view symbol;
  std::string_view role;  // what it does within its room: of the variants of one role, the first usable one is chosen
};

template <class Function>
struct Variant {
  cpu::Isa isa;
  Function* run;
  std::string_view symbol;
};

// The first variant of the list (best first) whose instruction set may be used. The last line of every list is scalar,
// so there always is one.
template <class Function>
const Variant<Function>& select(std::span<const Variant<Function>> variants, const cpu::Features& features) {
  for (const auto& v : variants) {
    if (features.has(v.isa)) return v;
  }
  return variants.back();
}

}  // namespace quern::ops

#define QUERN_ISA_LINE_scalar(...) __VA_ARGS__
#if defined(__x86_64__)
#define QUERN_ISA_LINE_avx2(...) __VA_ARGS__
#define QUERN_ISA_LINE_avxvnni(...) __VA_ARGS__
#define QUERN_ISA_LINE_avx512vnni(...) __VA_ARGS__
#define QUERN_ISA_LINE_avx512bf16(...) __VA_ARGS__
#else
#define QUERN_ISA_LINE_avx2(...)
#define QUERN_ISA_LINE_avxvnni(...)
#define QUERN_ISA_LINE_avx512vnni(...)
#define QUERN_ISA_LINE_avx512bf16(...)
#endif
