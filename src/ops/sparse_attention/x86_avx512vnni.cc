// SPDX-License-Identifier: Apache-2.0
// The AVX-512 variants: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/sparse_attention/kernels.h"

namespace quern::ops {
namespace {

struct Simd {
  using V = __m512;
  static constexpr int32_t kLanes = 16;
  static constexpr int32_t kRows = 4, kKeys = 4, kColumns = 4;  // 16 sums of 32 registers

  static V zero() { return _mm512_setzero_ps(); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const uint16_t* p) {
    return widen(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
  // The first half; the other one is zero.
  static V load_half(const float* p) { return _mm512_maskz_loadu_ps(kHalf, p); }
  static V load_half(const uint16_t* p) {
    return widen(_mm512_zextsi256_si512(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
  }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static void store_half(float* p, V x) { _mm512_mask_storeu_ps(p, kHalf, x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static V round(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V scale_by_pow2(V x, V n) { return _mm512_scalef_ps(x, n); }
  // value, or 0 where x is below the limit.
  static V drop_below(V x, float limit, V value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), value);
  }
  static float first(V x) { return _mm512_cvtss_f32(x); }
  static float sum(V x) { return _mm512_reduce_add_ps(x); }
  static float highest(V x) { return _mm512_reduce_max_ps(x); }

  // out[i] is the sum of the lanes of x[i], for each in the same order.
  static void reduce(const V (&x)[kRows * kKeys], float* out) {
    V y[8];
#pragma GCC unroll 8
    for (int32_t i = 0; i < 8; i++) {
      y[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
    // Lane quarters hold partial sums of four vectors each.
    V z[4];
#pragma GCC unroll 4
    for (int32_t i = 0; i < 4; i++) {
      z[i] = _mm512_add_ps(_mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0x44),
                           _mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0xEE));
    }
#pragma GCC unroll 4
    for (int32_t i = 0; i < 4; i++) {
      const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(z[i]), _mm512_extractf32x8_ps(z[i], 1));
      _mm_store_ps(out + 4 * i, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    }
  }

 private:
  static constexpr __mmask16 kHalf = 0xff;
  static V widen(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
};

#include "ops/sparse_attention/generic.h"

}  // namespace

void sparse_tile_f32_avx512vnni(const SparseTileArgs& a) noexcept { tile<float>(a); }
void sparse_tile_bf16_avx512vnni(const SparseTileArgs& a) noexcept { tile<uint16_t>(a); }

}  // namespace quern::ops
