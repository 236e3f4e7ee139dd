// SPDX-License-Identifier: Apache-2.0
// Owns arithmetic that reports overflow instead of wrapping, for every number that a file or a caller supplies.
#pragma once

#include <concepts>
#include <optional>

namespace quern {

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T r{};
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T r{};
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// ceil(a / b) for a >= 0 and b > 0.
template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// a rounded up to a multiple of b, for a >= 0 and b > 0, where the result fits.
template <std::integral T>
constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}

}  // namespace quern
