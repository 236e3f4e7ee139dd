// SPDX-License-Identifier: Apache-2.0
// The AVX-512 variants: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/block_index/kernels.h"

namespace quern::ops {
namespace {

struct Simd {
  using V = __m512;
  static constexpr int32_t kLanes = 16;
  static constexpr int32_t kHeads = 4, kBlocks = 4;  // 16 sums of 32 registers

  static V zero() { return _mm512_setzero_ps(); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const uint16_t* p) {
    return widen(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
  // The first half; the other one is zero.
  static V load_half(const float* p) { return _mm512_maskz_loadu_ps(kHalf, p); }
  static V load_half(const uint16_t* p) {
    return widen(_mm512_zextsi256_si512(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
  }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  // out[i] is the sum of the lanes of x[i], for each in the same order.
  static void reduce(const V (&x)[kHeads * kBlocks], float* out) {
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

#include "ops/block_index/generic.h"

}  // namespace

void block_score_f32_avx512vnni(const BlockScoreArgs& a) noexcept { score<float>(a); }
void block_score_bf16_avx512vnni(const BlockScoreArgs& a) noexcept { score<uint16_t>(a); }

}  // namespace quern::ops
