// SPDX-License-Identifier: Apache-2.0
// Owns conversion between float32 and IEEE binary16 held in uint16_t, for code that no instruction set helps.
#pragma once

#include <bit>
#include <cstdint>

namespace quern {

// Exact, denormals, infinities and NaN included.
inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  // As float32 bits the exponent is 112 too small, which the product corrects, also where the half is denormal.
  uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  if (magnitude >= 0x0f800000u) bits = magnitude | 0x7f800000u;
  return std::bit_cast<float>(bits | static_cast<uint32_t>(half & 0x8000u) << 16);
}

// Rounds to nearest, ties to even; too large becomes infinity, NaN stays a (quiet) NaN.
inline uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 rounds up to 2^16
  if (magnitude < 0x38800000u) {
    // Below 2^-14: the sum with 0.5 has its last bit at 2^-24, the unit of denormal halves, and rounds there.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) - 0x3f000000u);
  }
  const uint32_t even = magnitude >> 13 & 1u;
  return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0x0fffu + even) >> 13);
}

}  // namespace quern
