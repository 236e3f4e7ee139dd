// SPDX-License-Identifier: Apache-2.0
// The AVX2 variants: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/block_index/kernels.h"

namespace quern::ops {
namespace {

struct Simd {
  using V = __m256;
  static constexpr int32_t kLanes = 8;
  static constexpr int32_t kHeads = 2, kBlocks = 4;  // 8 sums of 16 registers

  static V zero() { return _mm256_setzero_ps(); }
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
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  // out[i] is the sum of the lanes of x[i], for each in the same order.
  static void reduce(const V (&x)[kHeads * kBlocks], float* out) {
#pragma GCC unroll 2
    for (int32_t i = 0; i < 8; i += 4) {
      const V ab = _mm256_add_ps(_mm256_unpacklo_ps(x[i], x[i + 1]), _mm256_unpackhi_ps(x[i], x[i + 1]));
      const V cd = _mm256_add_ps(_mm256_unpacklo_ps(x[i + 2], x[i + 3]), _mm256_unpackhi_ps(x[i + 2], x[i + 3]));
      const V all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
      _mm_store_ps(out + i, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    }
  }
};

#include "ops/block_index/generic.h"

}  // namespace

void block_score_f32_avx2(const BlockScoreArgs& a) noexcept { score<float>(a); }
void block_score_bf16_avx2(const BlockScoreArgs& a) noexcept { score<uint16_t>(a); }

}  // namespace quern::ops
