// SPDX-License-Identifier: Apache-2.0
// The AVX2 variants: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/gqa_attention/kernels.h"

namespace quern::ops {
namespace {

#include "ops/gqa_attention/generic_load.h"

struct Simd {
  using V = __m256;
  using Mask = __m256;  // all bits of a lane
  static constexpr int32_t kLanes = 8;
  static constexpr int32_t kTileRows = 6;  // 12 accumulators of 16 registers
  static constexpr int32_t kSums = 8;
  static constexpr int32_t kLeaves = 1;       // a load a product would be too many for two products a cycle
  static constexpr int32_t kHeldVectors = 0;  // two rows of o do not fit into registers

  static V zero() { return _mm256_setzero_ps(); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static V load_some(const float* p, int32_t n) { return _mm256_maskload_ps(p, _mm256_castps_si256(between(0, n))); }
  // Keys and values. Rows end at a multiple of 8 elements, so that there is no part of a vector.
  template <class T>
  static V load(const T* p) {
    return load_8(p);
  }
  template <class T>
  static V load_some(const T* p, int32_t) {
    return load_8(p);
  }
  static void store(float* p, V x) { _mm256_storeu_ps(p, x); }
  static void store_some(float* p, int32_t n, V x) { _mm256_maskstore_ps(p, _mm256_castps_si256(between(0, n)), x); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V div(V a, V b) { return _mm256_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static V abs(V x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static V copy_sign(V size, V sign) { return _mm256_or_ps(abs(size), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign)); }
  // 2^n for n >= -126 in the last bits of x.
  static V pow2(V x) {
    const __m256i exponent = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }

  // Lanes i with lo <= i < hi, for any lo and hi.
  static Mask between(int32_t lo, int32_t hi) {
    const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), i),
                                                   _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), i)));
  }
  static Mask not_below(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
  static V keep(Mask m, V x) { return _mm256_and_ps(m, x); }
  static V choose(Mask m, V yes, V no) { return _mm256_blendv_ps(no, yes, m); }

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

  // Lane i is the sum of the lanes of x[i], in the order of generic_tile.h.
  static V reduce(const V (&x)[kSums]) {
    const V a = reduce_4(x[0], x[1], x[2], x[3]);
    const V b = reduce_4(x[4], x[5], x[6], x[7]);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }

  // Of each run of n lanes the first `count` go to `to`, run after run `stride` apart. Masked stores take longer.
  template <int32_t n>
  static void spread(V x, int32_t count, float* to, int64_t stride) {
    float lanes[kLanes];
    store(lanes, x);
    for (int32_t run = 0; run < kLanes / n; run++) {
      for (int32_t i = 0; i < count; i++) to[run * stride + i] = lanes[run * n + i];
    }
  }

  // x[0], x[0], x[1], x[1], ... of the lower half.
  static V twice(V x) { return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)); }
  static V swap_pairs(V x) { return _mm256_permute_ps(x, 0xB1); }
  // a - b in even lanes, a + b in odd ones.
  static V sub_add(V a, V b) { return _mm256_addsub_ps(a, b); }

 private:
  // In each half: the sums of that half of a, b, c, d.
  static V reduce_4(V a, V b, V c, V d) {
    const V ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const V cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  }
};

// clang-format off: the others build on the first.
#include "ops/gqa_attention/generic.h"
#include "ops/gqa_attention/generic_rotate.h"
#include "ops/gqa_attention/generic_rows.h"
#include "ops/gqa_attention/generic_tile.h"

}  // namespace

void gqa_attention_tile_f32_avx2(const AttentionBlockArgs& a) noexcept { block_of_many_rows<float>(a); }
void gqa_attention_tile_f16_avx2(const AttentionBlockArgs& a) noexcept { block_of_many_rows<Half>(a); }
void gqa_attention_tile_bf16_avx2(const AttentionBlockArgs& a) noexcept { block_of_many_rows<Brain>(a); }
void gqa_attention_tile_i8_avx2(const AttentionBlockArgs& a) noexcept { block_of_many_rows<int8_t>(a); }
void gqa_attention_rows_f32_avx2(const AttentionBlockArgs& a) noexcept { block_of_few_rows<float>(a); }
void gqa_attention_rows_f16_avx2(const AttentionBlockArgs& a) noexcept { block_of_few_rows<Half>(a); }
void gqa_attention_rows_bf16_avx2(const AttentionBlockArgs& a) noexcept { block_of_few_rows<Brain>(a); }
void gqa_attention_rows_i8_avx2(const AttentionBlockArgs& a) noexcept { block_of_few_rows<int8_t>(a); }
void gqa_attention_merge_f32_avx2(const AttentionMergeArgs& a) noexcept { merge_rows(a); }
void gqa_attention_rotate_f32_avx2(const AttentionRotateArgs& a) noexcept { rotate_heads(a); }

}  // namespace quern::ops
