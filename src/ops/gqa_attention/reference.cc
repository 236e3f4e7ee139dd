// SPDX-License-Identifier: Apache-2.0
// The scalar variants, straight from the formulas in kernels.h; the truth for all others and never optimised.
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/gqa_attention/kernels.h"

namespace quern::ops {
namespace {

// Payloads of files may be unaligned.
float load(const void* base, int64_t i) {
  float x;
  std::memcpy(&x, static_cast<const char*>(base) + i * static_cast<int64_t>(sizeof(float)), sizeof(float));
  return x;
}

}  // namespace

void gqa_attention_block_reference(const AttentionBlockArgs& a) noexcept {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (int32_t r = 0; r < a.rows; r++) {
    if (a.hi[r] <= a.lo[r]) continue;
    float x[kAttentionMaxKeys];
    float top = a.m[r];
    for (int32_t t = a.lo[r]; t < a.hi[r]; t++) {
      double dot = 0;
      for (int32_t i = 0; i < a.d; i++) {
        dot += static_cast<double>(a.q[int64_t{r} * a.d + i]) * load(a.k, t * a.kv_stride + i);
      }
      if (a.softcap > 0) dot = a.softcap * std::tanh(dot / a.softcap);
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
      for (int32_t t = a.lo[r]; t < a.hi[r]; t++) value += std::exp(x[t] - base) * load(a.v, t * a.kv_stride + i);
      o[i] = static_cast<float>(value);
    }
    a.m[r] = top;
    a.l[r] = static_cast<float>(sum);
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
      const float c = load(a.cos, j);
      const float s = load(a.sin, j);
      y[first] = (load(x, first) * c - load(x, second) * s) * a.scale;
      y[second] = (load(x, second) * c + load(x, first) * s) * a.scale;
    }
    for (int32_t i = a.rotary; i < a.d; i++) y[i] = load(x, i) * a.scale;
  }
}

}  // namespace quern::ops
