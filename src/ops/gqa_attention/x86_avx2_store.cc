// SPDX-License-Identifier: Apache-2.0
// The AVX2 conversions of new rows to the element types of a cache. Appending is a small part of a call, so there are
// no wider ones.
#include <immintrin.h>

#include <cstdint>

#include "ops/gqa_attention/kernels.h"

namespace quern::ops {
namespace {

__m128i to_half(__m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

__m128i to_brain(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}

template <class Convert>
void store_rows(const AttentionStoreArgs& a, Convert convert) {
  for (int32_t h = 0; h < a.heads; h++) {
    const float* x = a.x + h * a.x_stride;
    uint16_t* y = static_cast<uint16_t*>(a.y) + h * a.y_stride;
    for (int32_t i = 0; i < a.d; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), convert(_mm256_loadu_ps(x + i)));
    }
  }
}

// The largest |x| of a row as bits: they are ordered like the numbers, NaN above infinity.
int32_t largest_bits(const float* x, int32_t d) {
  const __m256i size = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
  for (int32_t i = 0; i < d; i += 8) {
    top = _mm256_max_epi32(top, _mm256_and_si256(size, _mm256_castps_si256(_mm256_loadu_ps(x + i))));
  }
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
  return _mm_cvtsi128_si32(half);
}

void store_codes(const float* x, int32_t d, float factor, int8_t* y) {
  const __m256 codes = _mm256_set1_ps(factor);
  for (int32_t i = 0; i < d; i += 8) {
    const __m256i wide = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), codes));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(y + i), _mm_packs_epi16(words, words));
  }
}

}  // namespace

void gqa_attention_store_f16_avx2(const AttentionStoreArgs& a) noexcept { store_rows(a, to_half); }
void gqa_attention_store_bf16_avx2(const AttentionStoreArgs& a) noexcept { store_rows(a, to_brain); }

void gqa_attention_store_i8_avx2(const AttentionStoreArgs& a) noexcept {
  constexpr int32_t kInfinity = 0x7f800000;
  constexpr float kMostCode = 127;
  for (int32_t h = 0; h < a.heads; h++) {
    const float* x = a.x + h * a.x_stride;
    int8_t* y = static_cast<int8_t*>(a.y) + h * a.y_stride;
    float* scale = a.scale + h * a.scale_stride;
    const int32_t bits = largest_bits(x, a.d);
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
    if (bits >= kInfinity || amax < kAttentionLeastAmax) {
      *scale = bits >= kInfinity ? __builtin_nanf("") : 0.0f;
      for (int32_t i = 0; i < a.d; i += 8) _mm_storel_epi64(reinterpret_cast<__m128i*>(y + i), _mm_setzero_si128());
    } else {
      *scale = amax / kMostCode;
      store_codes(x, a.d, kMostCode / amax, y);
    }
  }
}

}  // namespace quern::ops
