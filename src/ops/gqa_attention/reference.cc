// SPDX-License-Identifier: Apache-2.0
// The scalar variants, straight from the formulas in kernels.h; the truth for all others and never optimised.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/brain.h"
#include "base/half.h"
#include "ops/gqa_attention/kernels.h"

namespace quern::ops {
namespace {

// Payloads of files may be unaligned.
template <class T>
T load(const void* base, int64_t i) {
  T x;
  std::memcpy(&x, static_cast<const char*>(base) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return x;
}

double number(float x) { return x; }
double number(Half x) { return half_to_float(x.bits); }
double number(Brain x) { return brain_to_float(x.bits); }
double number(int8_t x) { return x; }

template <class T>
void block(const AttentionBlockArgs& a) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  constexpr bool kScaled = std::is_same_v<T, int8_t>;
  for (int32_t r = 0; r < a.rows; r++) {
    if (a.hi[r] <= a.lo[r]) continue;
    float x[kAttentionMaxKeys];
    float top = a.m[r];
    for (int32_t t = a.lo[r]; t < a.hi[r]; t++) {
      double dot = 0;
      for (int32_t i = 0; i < a.d; i++) {
        dot += static_cast<double>(a.q[int64_t{r} * a.d + i]) * number(load<T>(a.k, t * a.kv_stride + i));
      }
      if (kScaled) dot *= a.k_scale[t];
      if (a.softcap > 0) dot = a.softcap * std::tanh(dot / a.softcap);
      if (a.bias != nullptr) dot += a.bias[r][t];
      x[t] = static_cast<float>(dot);
      if (!(x[t] <= top)) top = x[t];
    }
    const double base = top == kNothing ? 0.0 : top;
    const double carry = std::exp(a.m[r] - base);
    double sum = a.l[r] * carry;
    for (int32_t t = a.lo[r]; t < a.hi[r]; t++) sum += std::exp(x[t] - base);
    float* o = a.o + r * a.o_stride;
    for (int32_t i = 0; i < a.d; i++) {
      double value = o[i] * carry;
      for (int32_t t = a.lo[r]; t < a.hi[r]; t++) {
        const double weight = std::exp(x[t] - base) * (kScaled ? a.v_scale[t] : 1.0f);
        value += weight * number(load<T>(a.v, t * a.kv_stride + i));
      }
      o[i] = static_cast<float>(value);
    }
    a.m[r] = top;
    a.l[r] = static_cast<float>(sum);
  }
}

Half to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) <= 0x7f800000u) return {float_to_half(x)};
  return {static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu))};
}

Brain to_brain(float x) { return {float_to_brain(x)}; }

template <class T, class Convert>
void store_rows(const AttentionStoreArgs& a, Convert convert) {
  for (int32_t h = 0; h < a.heads; h++) {
    T* y = static_cast<T*>(a.y) + h * a.y_stride;
    for (int32_t i = 0; i < a.d; i++) y[i] = convert(load<float>(a.x, h * a.x_stride + i));
  }
}

}  // namespace

void gqa_attention_tile_f32_reference(const AttentionBlockArgs& a) noexcept { block<float>(a); }
void gqa_attention_tile_f16_reference(const AttentionBlockArgs& a) noexcept { block<Half>(a); }
void gqa_attention_tile_bf16_reference(const AttentionBlockArgs& a) noexcept { block<Brain>(a); }
void gqa_attention_tile_i8_reference(const AttentionBlockArgs& a) noexcept { block<int8_t>(a); }
void gqa_attention_rows_f32_reference(const AttentionBlockArgs& a) noexcept { block<float>(a); }
void gqa_attention_rows_f16_reference(const AttentionBlockArgs& a) noexcept { block<Half>(a); }
void gqa_attention_rows_bf16_reference(const AttentionBlockArgs& a) noexcept { block<Brain>(a); }
void gqa_attention_rows_i8_reference(const AttentionBlockArgs& a) noexcept { block<int8_t>(a); }

void gqa_attention_store_f16_reference(const AttentionStoreArgs& a) noexcept { store_rows<Half>(a, to_half); }
void gqa_attention_store_bf16_reference(const AttentionStoreArgs& a) noexcept { store_rows<Brain>(a, to_brain); }

void gqa_attention_store_i8_reference(const AttentionStoreArgs& a) noexcept {
  constexpr float kMostCode = 127;
  for (int32_t h = 0; h < a.heads; h++) {
    float amax = 0;
    for (int32_t i = 0; i < a.d; i++) {
      const float size = std::abs(load<float>(a.x, h * a.x_stride + i));
      if (!(size <= amax)) amax = size;
      if (!std::isfinite(amax)) break;
    }
    int8_t* y = static_cast<int8_t*>(a.y) + h * a.y_stride;
    float* scale = a.scale + h * a.scale_stride;
    if (!std::isfinite(amax) || amax < kAttentionLeastAmax) {
      *scale = std::isfinite(amax) ? 0 : std::numeric_limits<float>::quiet_NaN();
      std::memset(y, 0, static_cast<size_t>(a.d));
      continue;
    }
    *scale = amax / kMostCode;
    const float codes = kMostCode / amax;
    for (int32_t i = 0; i < a.d; i++) {
      y[i] = static_cast<int8_t>(std::nearbyint(load<float>(a.x, h * a.x_stride + i) * codes));
    }
  }
}

void gqa_attention_merge_reference(const AttentionMergeArgs& a) noexcept {
  for (int32_t r = 0; r < a.rows; r++) {
    const float top = a.part_m[r] > a.m[r] ? a.part_m[r] : a.m[r];
    const double base = std::isinf(top) && top < 0 ? 0.0 : top;
    const double carry = std::exp(a.m[r] - base);
    const double weight = std::exp(a.part_m[r] - base);
    a.m[r] = top;
    a.l[r] = static_cast<float>(a.l[r] * carry + a.part_l[r] * weight);
    for (int64_t i = r * a.o_stride; i < (r + 1) * a.o_stride; i++) {
      a.o[i] = static_cast<float>(a.o[i] * carry + a.part_o[i] * weight);
    }
  }
}

void gqa_attention_rotate_reference(const AttentionRotateArgs& a) noexcept {
  const int32_t half = a.rotary / 2;
  for (int32_t h = 0; h < a.heads; h++) {
    const float* x = a.x + h * a.x_stride;
    float* y = a.y + h * a.y_stride;
    for (int32_t j = 0; j < half; j++) {
      const int32_t first = a.interleaved ? 2 * j : j;
      const int32_t second = a.interleaved ? 2 * j + 1 : j + half;
      const float c = load<float>(a.cos, j);
      const float s = load<float>(a.sin, j);
      y[first] = (load<float>(x, first) * c - load<float>(x, second) * s) * a.scale;
      y[second] = (load<float>(x, second) * c + load<float>(x, first) * s) * a.scale;
    }
    for (int32_t i = a.rotary; i < a.d; i++) y[i] = load<float>(x, i) * a.scale;
  }
}

}  // namespace quern::ops
