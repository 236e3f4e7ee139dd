// SPDX-License-Identifier: Apache-2.0
// float32 add, sub, mul, sigmoid and silu_mul for AVX2.
#include <immintrin.h>

#include <cstdint>

#include "ops/elementwise/kernels.h"

namespace quern::ops {
namespace {

constexpr int64_t kLanes = 8;

__m256i lanes_below(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <class Op>
void binary_loop(const ElementwiseKernelArgs& k, Op op) {
  const float* a = static_cast<const float*>(k.a);
  const float* b = static_cast<const float*>(k.b);
  float* y = static_cast<float*>(k.y);
  const auto loop = [&](auto load_a, auto load_b) {
    int64_t i = 0;
    for (; i + kLanes <= k.n; i += kLanes) {
      const auto load = [](const float* p) { return _mm256_loadu_ps(p); };
      _mm256_storeu_ps(y + i, op(load_a(i, load), load_b(i, load)));
    }
    if (i < k.n) {
      const __m256i lanes = lanes_below(k.n - i);
      const auto load = [&](const float* p) { return _mm256_maskload_ps(p, lanes); };
      _mm256_maskstore_ps(y + i, lanes, op(load_a(i, load), load_b(i, load)));
    }
  };
  const auto each_a = [a](int64_t i, auto load) { return load(a + i); };
  const auto each_b = [b](int64_t i, auto load) { return load(b + i); };
  if (k.n == 0) return;
  if (k.a_step == 0) {
    const __m256 one = _mm256_set1_ps(a[0]);
    loop([one](int64_t, auto) { return one; }, each_b);
  } else if (k.b_step == 0) {
    const __m256 one = _mm256_set1_ps(b[0]);
    loop(each_a, [one](int64_t, auto) { return one; });
  } else {
    loop(each_a, each_b);
  }
}

// exp(t) for t in [-87.3, 0] or NaN, to 2 units of the last place: t = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two
// parts of which the first has few bits; exp(r) = 1 + r + r^2 p(r) with p fitted to a relative error of 3.1e-9.
__m256 exp_below_one(__m256 t) {
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(t, _mm256_set1_ps(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.63p-1f), t);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.bd0106p-13f), r);
  __m256 p = _mm256_set1_ps(0x1.6a23fp-10f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.123a0ap-7f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558f2p-5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
  const __m256 one = _mm256_set1_ps(1);
  const __m256 power = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), one);
  // n >= -126, so 2^n is a normal number made of exponent bits alone.
  const int bias = 127, mantissa_bits = 23;
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(bias));
  return _mm256_mul_ps(power, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, mantissa_bits)));
}

// Both halves from e = exp(-|x|), which cannot overflow: 1 / (1 + e) for x >= 0, e / (1 + e) below.
__m256 sigmoid_of(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.3f);
  const __m256 one = _mm256_set1_ps(1);
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  // max() gives its second operand when one is NaN.
  const __m256 e = exp_below_one(_mm256_max_ps(lowest, _mm256_sub_ps(_mm256_setzero_ps(), magnitude)));
  const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
  const __m256 y = _mm256_div_ps(_mm256_blendv_ps(one, e, negative), _mm256_add_ps(one, e));
  return _mm256_and_ps(_mm256_cmp_ps(x, lowest, _CMP_NLT_UQ), y);
}

}  // namespace

void add_f32_avx2(const ElementwiseKernelArgs& k) noexcept {
  binary_loop(k, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
}

void sub_f32_avx2(const ElementwiseKernelArgs& k) noexcept {
  binary_loop(k, [](__m256 a, __m256 b) { return _mm256_sub_ps(a, b); });
}

void mul_f32_avx2(const ElementwiseKernelArgs& k) noexcept {
  binary_loop(k, [](__m256 a, __m256 b) { return _mm256_mul_ps(a, b); });
}

void sigmoid_f32_avx2(const ElementwiseKernelArgs& k) noexcept {
  const float* x = static_cast<const float*>(k.a);
  float* y = static_cast<float*>(k.y);
  int64_t i = 0;
  for (; i + kLanes <= k.n; i += kLanes) _mm256_storeu_ps(y + i, sigmoid_of(_mm256_loadu_ps(x + i)));
  if (i < k.n) {
    const __m256i lanes = lanes_below(k.n - i);
    const float* p = x + i;
    _mm256_maskstore_ps(y + i, lanes, sigmoid_of(_mm256_maskload_ps(p, lanes)));
  }
}

void silu_mul_f32_avx2(const ElementwiseKernelArgs& k) noexcept {
  binary_loop(k, [](__m256 a, __m256 b) { return _mm256_mul_ps(_mm256_mul_ps(a, sigmoid_of(a)), b); });
}

}  // namespace quern::ops
