// SPDX-License-Identifier: Apache-2.0
// gated_delta_rule for AVX2: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/gated_delta_rule/kernels.h"

namespace quern::ops {
namespace {

struct Simd {
  using V = __m256;
  static constexpr int64_t kLanes = 8;

  static V zero() { return _mm256_setzero_ps(); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static V load_some(const float* p, int64_t n) { return _mm256_maskload_ps(p, below(n)); }
  static void store(float* p, V x) { _mm256_storeu_ps(p, x); }
  static void store_some(float* p, int64_t n, V x) { _mm256_maskstore_ps(p, below(n), x); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static float total(V v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  static __m256i below(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

#include "ops/gated_delta_rule/generic.h"

}  // namespace

void delta_rule_recurrent_avx2(const DeltaKernelArgs& a) noexcept { recurrent(a); }
void delta_rule_chunked_avx2(const DeltaKernelArgs& a) noexcept { chunked(a); }

}  // namespace quern::ops
