// SPDX-License-Identifier: Apache-2.0
// gated_delta_rule for AVX-512: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/gated_delta_rule/kernels.h"

namespace quern::ops {
namespace {

struct Simd {
  using V = __m512;
  static constexpr int64_t kLanes = 16;

  static V zero() { return _mm512_setzero_ps(); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load_some(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(below(n), p); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static void store_some(float* p, int64_t n, V x) { _mm512_mask_storeu_ps(p, below(n), x); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static float total(V v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  static __mmask16 below(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
};

#include "ops/gated_delta_rule/generic.h"

}  // namespace

void delta_rule_recurrent_avx512vnni(const DeltaKernelArgs& a) noexcept { recurrent(a); }
void delta_rule_chunked_avx512vnni(const DeltaKernelArgs& a) noexcept { chunked(a); }

}  // namespace quern::ops
