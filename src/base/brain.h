// SPDX-License-Identifier: Apache-2.0
// Owns conversion between float32 and bfloat16 held in uint16_t, for code that no instruction set helps.
#pragma once

#include <bit>
#include <cstdint>

namespace quern {

// Exact: a bfloat16 is the upper half of a float32.
inline float brain_to_float(uint16_t brain) { return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16); }

// Rounds to nearest, ties to even; too large becomes infinity, NaN stays a (quiet) NaN.
inline uint16_t float_to_brain(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  const uint32_t even = bits >> 16 & 1u;
  return static_cast<uint16_t>((bits + 0x7fffu + even) >> 16);
}

}  // namespace quern
