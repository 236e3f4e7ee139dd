// SPDX-License-Identifier: Apache-2.0
// The scalar variants, straight from the formula in kernels.h; the truth for all others and never optimised.
#include <cmath>
#include <limits>

#include "ops/element.h"
#include "ops/sparse_attention/kernels.h"

namespace quern::ops {
namespace {

template <class E>
void tile(const SparseTileArgs& a) {
  for (int32_t r = 0; r < a.rows; r++) {
    float* x = a.scratch + r * kSparseTileKeys;
    float top = a.m[r];
    for (int32_t t = 0; t < a.keys; t++) {
      double dot = 0;
      for (int64_t i = 0; i < a.d; i++) {
        dot += static_cast<double>(a.q[int64_t{r} * a.d + i]) *
               static_cast<double>(E::load(a.k, a.index[t] * a.kv_stride + i));
      }
      x[t] = static_cast<float>(dot) * a.scale;
      if (std::isnan(x[t]) || x[t] > top) top = x[t];
    }
    // A row of scores of -infinity weighs nothing.
    const double base = std::isinf(top) && top < 0 ? 0.0 : static_cast<double>(top);
    const double carry = std::exp(static_cast<double>(a.m[r]) - base);
    double sum = a.l[r] * carry;
    for (int32_t t = 0; t < a.keys; t++) sum += std::exp(static_cast<double>(x[t]) - base);
    float* o = a.o + int64_t{r} * a.d;
    for (int64_t i = 0; i < a.d; i++) {
      double value = o[i] * carry;
      for (int32_t t = 0; t < a.keys; t++) {
        value += std::exp(static_cast<double>(x[t]) - base) *
                 static_cast<double>(E::load(a.v, a.index[t] * a.kv_stride + i));
      }
      o[i] = static_cast<float>(value);
    }
    a.m[r] = top;
    a.l[r] = static_cast<float>(sum);
  }
}

}  // namespace

void sparse_tile_f32_reference(const SparseTileArgs& a) noexcept { tile<FloatElement>(a); }
void sparse_tile_bf16_reference(const SparseTileArgs& a) noexcept { tile<BrainElement>(a); }

}  // namespace quern::ops
