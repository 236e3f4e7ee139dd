// SPDX-License-Identifier: Apache-2.0
// Owns what the CPU can execute: detection, the named instruction sets, and the cap that QUERN_ISA puts on them.
// Does not own which kernel is chosen (ops/kernel_list.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace quern::cpu {

// An instruction set that kernels are written for. Each is a set of features, not a rung of a ladder:
// avxvnni and avx512vnni both contain avx2 but not each other.
enum class Isa : uint8_t {
  scalar,      // the baseline of the target (x86-64: SSE2)
  avx2,        // AVX2, FMA, F16C
  avxvnni,     // avx2 and AVX-VNNI (256-bit vpdpbusd)
  avx512vnni,  // avx2 and AVX-512 F, BW, DQ, VL, VNNI
  avx512bf16,  // avx512vnni and AVX-512 BF16 (vdpbf16ps)
};

inline constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avxvnni, Isa::avx512vnni, Isa::avx512bf16};

std::string_view isa_name(Isa isa);

// Which instruction sets may be used. `scalar` always may.
struct Features {
  bool avx2 = false;
  bool avxvnni = false;
  bool avx512vnni = false;
  bool avx512bf16 = false;

  bool has(Isa isa) const {
    switch (isa) {
      case Isa::scalar: return true;
      case Isa::avx2: return avx2;
      case Isa::avxvnni: return avxvnni;
      case Isa::avx512vnni: return avx512vnni;
      case Isa::avx512bf16: return avx512bf16;
    }
    return false;
  }
};

// What the CPU and the operating system (saved registers) support.
Features detect_features();

// `detected` reduced to the named set, for example "avx2". Errors: bad_request for an unknown name or for a set that
// `detected` does not contain.
Result<Features> cap_features(const Features& detected, std::string_view name);

// detect_features() under the environment variable QUERN_ISA, when it is set and not empty.
Result<Features> usable_features();

}  // namespace quern::cpu
