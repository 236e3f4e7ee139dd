// SPDX-License-Identifier: Apache-2.0
// Owns how portable code reads, rounds and writes the elements of float32 and bfloat16 tensors: one template serves
// both; and how rooms that have variants for both choose one. Not for files of an instruction set, which have loads of
// their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/brain.h"
#include "base/dtype.h"
#include "base/error.h"
#include "ops/kernel_list.h"

namespace quern::ops {

// Elements may lie at any address. round() is what storing and loading again does: nothing for float32.
struct FloatElement {
  static float load(const void* base, int64_t i) {
    float x;
    std::memcpy(&x, static_cast<const char*>(base) + i * 4, sizeof(x));
    return x;
  }
  static void store(void* base, int64_t i, float x) { std::memcpy(static_cast<char*>(base) + i * 4, &x, sizeof(x)); }
  static float round(float x) { return x; }
};

struct BrainElement {
  static float load(const void* base, int64_t i) {
    uint16_t x;
    std::memcpy(&x, static_cast<const char*>(base) + i * 2, sizeof(x));
    return brain_to_float(x);
  }
  static void store(void* base, int64_t i, float x) {
    const uint16_t narrow = float_to_brain(x);
    std::memcpy(static_cast<char*>(base) + i * 2, &narrow, sizeof(narrow));
  }
  static float round(float x) { return brain_to_float(float_to_brain(x)); }
};

// The element types of models that run as their checkpoint is stored, or widened.
constexpr bool is_float_or_brain(DType type) { return type == DType::f32 || type == DType::bf16; }

// Errors: unsupported for any other type.
Result<void> check_float_or_brain(DType type, std::string_view where);

// Calls f with the one of the two that reads `type`.
template <class F>
void with_element(DType type, F&& f) {
  if (type == DType::bf16) {
    f(BrainElement{});
  } else {
    f(FloatElement{});
  }
}

// A line of a list that has variants for several element types.
template <class Function>
struct TypedVariant {
  cpu::Isa isa;
  DType type;
  Function* run;
  std::string_view symbol;
};

// The first variant for the type whose instruction set may be used. The last line of each type is scalar.
template <class Function>
const TypedVariant<Function>& select_typed(std::span<const TypedVariant<Function>> variants, DType type,
                                           const cpu::Features& features) {
  const auto* found = std::find_if(variants.data(), variants.data() + variants.size(),
                                   [&](const auto& v) { return v.type == type && features.has(v.isa); });
  QUERN_CHECK(found != variants.data() + variants.size(), "a scalar kernel of every type");
  return *found;
}

// The address of element i.
inline const void* element_at(DType type, const void* base, int64_t i) {
  return static_cast<const char*>(base) + i * (bits_of(type) / 8);
}
inline void* element_at(DType type, void* base, int64_t i) {
  return static_cast<char*>(base) + i * (bits_of(type) / 8);
}

}  // namespace quern::ops
