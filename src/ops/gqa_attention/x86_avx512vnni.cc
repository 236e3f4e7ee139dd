// SPDX-License-Identifier: Apache-2.0
// The AVX-512 variants: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/gqa_attention/kernels.h"

namespace quern::ops {
namespace {

#include "ops/gqa_attention/generic_load.h"

struct Simd {
  using V = __m512;
  using Mask = __mmask16;
  static constexpr int32_t kLanes = 16;
  static constexpr int32_t kTileRows = 12;  // 24 accumulators of 32 registers
  static constexpr int32_t kSums = 8;       // more would read from more rows at once than memory likes

  static V zero() { return _mm512_setzero_ps(); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load_some(const float* p, int32_t n) { return _mm512_maskz_loadu_ps(between(0, n), p); }
  static V load(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load(const Brain* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static V load(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  // Rows end at a multiple of 8 elements: half a vector is the only part there is.
  template <class T>
  static V load_some(const T* p, int32_t) {
    return _mm512_zextps256_ps512(load_8(p));
  }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static void store_some(float* p, int32_t n, V x) { _mm512_mask_storeu_ps(p, between(0, n), x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static V abs(V x) { return _mm512_abs_ps(x); }
  static V copy_sign(V size, V sign) {
    const V bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, size), _mm512_and_ps(bit, sign));
  }
  static V round(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V scale_by_pow2(V x, V n) { return _mm512_scalef_ps(x, n); }

  // Lanes i with lo <= i < hi, for any lo and hi.
  static Mask between(int32_t lo, int32_t hi) { return static_cast<Mask>(first_bits(hi) & ~first_bits(lo)); }
  static Mask not_below(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
  static V keep(Mask m, V x) { return _mm512_maskz_mov_ps(m, x); }
  static V choose(Mask m, V yes, V no) { return _mm512_mask_mov_ps(no, m, yes); }

  static float first(V x) { return _mm512_cvtss_f32(x); }
  static float sum(V x) { return _mm512_reduce_add_ps(x); }
  static float highest(V x) { return _mm512_reduce_max_ps(x); }

  // Lane i is the sum of the lanes of x[i], for i < kSums.
  static V reduce(const V (&x)[kSums]) {
    const V a = reduce_4(x[0], x[1], x[2], x[3]);
    const V b = reduce_4(x[4], x[5], x[6], x[7]);
    const V ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, ab, 0x88), _mm512_shuffle_f32x4(ab, ab, 0xDD));
  }

  // x[0], x[0], x[1], x[1], ... of the lower half.
  static V twice(V x) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), x);
  }
  static V swap_pairs(V x) { return _mm512_permute_ps(x, 0xB1); }
  // a - b in even lanes, a + b in odd ones.
  static V sub_add(V a, V b) { return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b); }

 private:
  static uint32_t first_bits(int32_t n) { return n <= 0 ? 0U : n >= kLanes ? 0xFFFFU : (1U << n) - 1U; }
  // In each quarter: the sums of that quarter of a, b, c, d.
  static V reduce_4(V a, V b, V c, V d) {
    const V ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const V cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  }
};

#include "ops/gqa_attention/generic.h"

}  // namespace

void gqa_attention_tile_f32_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<float>(a); }
void gqa_attention_tile_f16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<Half>(a); }
void gqa_attention_tile_bf16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<Brain>(a); }
void gqa_attention_tile_i8_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<int8_t>(a); }
void gqa_attention_rows_f32_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<float>(a); }
void gqa_attention_rows_f16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<Half>(a); }
void gqa_attention_rows_bf16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<Brain>(a); }
void gqa_attention_rows_i8_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<int8_t>(a); }
void gqa_attention_rotate_f32_avx512vnni(const AttentionRotateArgs& a) noexcept { rotate_heads(a); }

}  // namespace quern::ops
