// SPDX-License-Identifier: Apache-2.0
// The AVX2 variants: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/sparse_attention/kernels.h"

namespace quern::ops {
namespace {

struct Simd {
  using V = __m256;
  static constexpr int32_t kLanes = 8;
  static constexpr int32_t kRows = 2, kKeys = 4, kColumns = 4;  // 8 sums of 16 registers

  static V zero() { return _mm256_setzero_ps(); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static V load(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // Heads end at a multiple of 8 elements, so that there is no part of a vector.
  template <class T>
  static V load_half(const T* p) {
    return load(p);
  }
  static void store(float* p, V x) { _mm256_storeu_ps(p, x); }
  static void store_half(float* p, V x) { store(p, x); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static V round(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // n is integral and at least -126 where the result is used.
  static V scale_by_pow2(V x, V n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  // value, or 0 where x is below the limit.
  static V drop_below(V x, float limit, V value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ), value);
  }
  static float first(V x) { return _mm256_cvtss_f32(x); }
  static float sum(V x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static float highest(V x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }

  // out[i] is the sum of the lanes of x[i], for each in the same order.
  static void reduce(const V (&x)[kRows * kKeys], float* out) {
#pragma GCC unroll 2
    for (int32_t i = 0; i < 8; i += 4) {
      const V ab = _mm256_add_ps(_mm256_unpacklo_ps(x[i], x[i + 1]), _mm256_unpackhi_ps(x[i], x[i + 1]));
      const V cd = _mm256_add_ps(_mm256_unpacklo_ps(x[i + 2], x[i + 3]), _mm256_unpackhi_ps(x[i + 2], x[i + 3]));
      const V all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
      _mm_store_ps(out + i, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    }
  }
};

#include "ops/sparse_attention/generic.h"

}  // namespace

void sparse_tile_f32_avx2(const SparseTileArgs& a) noexcept { tile<float>(a); }
void sparse_tile_bf16_avx2(const SparseTileArgs& a) noexcept { tile<uint16_t>(a); }

}  // namespace quern::ops
