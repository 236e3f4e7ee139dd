// SPDX-License-Identifier: Apache-2.0
// Owns the deterministic random numbers of tests and benchmarks: the same seed gives the same values everywhere.
#pragma once

#include <cstdint>
#include <span>

namespace quern::support {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n), n >= 1.
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  // In [low, high).
  float uniform(float low, float high) { return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f); }
  // Mean 0, deviation 1, within +-6: a sum of twelve uniform numbers.
  float normal() {
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += uniform(0, 1);
    return sum;
  }
  void fill_uniform(std::span<float> out, float low, float high) {
    for (float& v : out) v = uniform(low, high);
  }
  void fill_normal(std::span<float> out, float deviation = 1) {
    for (float& v : out) v = normal() * deviation;
  }

 private:
  uint64_t state_;
};

}  // namespace quern::support
