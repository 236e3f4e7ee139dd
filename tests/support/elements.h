// SPDX-License-Identifier: Apache-2.0
// Owns what the tests of rooms for float32 and bfloat16 share: a tensor of either type that is filled from and read as
// floats, and ends at an unreadable page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/element.h"
#include "tests/support/guard_page.h"
#include "tests/support/random.h"

namespace quern::support {

// `count` elements; those of bfloat16 keep the rounded values.
class Elements {
 public:
  Elements(DType type, int64_t count) : type_(type), count_(count), bytes_(static_cast<size_t>(count) * width()) {}
  Elements(DType type, const std::vector<float>& values) : Elements(type, static_cast<int64_t>(values.size())) {
    for (int64_t i = 0; i < count_; i++) set(i, values[static_cast<size_t>(i)]);
  }
  DType type() const { return type_; }
  int64_t size() const { return count_; }
  void* data() const { return bytes_.data(); }
  void set(int64_t i, float x) const {
    ops::with_element(type_, [&](auto e) { e.store(data(), i, x); });
  }
  float operator[](int64_t i) const {
    float x = 0;
    ops::with_element(type_, [&](auto e) { x = e.load(data(), i); });
    return x;
  }
  const Elements& fill_normal(Random& random, float deviation = 1) const {
    for (int64_t i = 0; i < count_; i++) set(i, random.normal() * deviation);
    return *this;
  }
  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t i = 0; i < count_; i++) out.push_back((*this)[i]);
    return out;
  }

 private:
  size_t width() const { return static_cast<size_t>(bits_of(type_)) / 8; }
  DType type_;
  int64_t count_;
  GuardedArray<uint8_t> bytes_;
};

// What is left of x in a tensor of the type.
inline float rounded(DType type, float x) { return type == DType::bf16 ? ops::BrainElement::round(x) : x; }

inline constexpr DType kElementTypes[] = {DType::f32, DType::bf16};

}  // namespace quern::support
