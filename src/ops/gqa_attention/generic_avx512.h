// SPDX-License-Identifier: Apache-2.0
// The vector type of AVX-512 and its operations. The x86_avx512*.cc files include it behind generic_load.h, inside
// their anonymous namespace; nothing else may.

struct Simd {
  using V = __m512;
  using Mask = __mmask16;
  static constexpr int32_t kLanes = 16;
  static constexpr int32_t kTileRows = 12;  // 24 accumulators of 32 registers
  static constexpr int32_t kSums = 16;
  static constexpr int32_t kLeaves = 4;       // four columns of 6 rows are 24 sums, too
  static constexpr int32_t kHeldVectors = 8;  // a row of o of 128 columns, for two rows

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
  // 2^n for n >= -126 in the last bits of x.
  static V pow2(V x) {
    const __m512i exponent = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }

  // Lanes i with lo <= i < hi, for any lo and hi.
  static Mask between(int32_t lo, int32_t hi) { return static_cast<Mask>(first_bits(hi) & ~first_bits(lo)); }
  static Mask not_below(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
  static V keep(Mask m, V x) { return _mm512_maskz_mov_ps(m, x); }
  static V choose(Mask m, V yes, V no) { return _mm512_mask_mov_ps(no, m, yes); }

  static float first(V x) { return _mm512_cvtss_f32(x); }
  static float sum(V x) { return _mm512_reduce_add_ps(x); }
  static float highest(V x) { return _mm512_reduce_max_ps(x); }

  // Lane i is the sum of the lanes of x[i], in the order of generic_tile.h.
  static V reduce(const V (&x)[kSums]) {
    return fold_quarters(fold_quarters(reduce_4(x[0], x[1], x[2], x[3]), reduce_4(x[4], x[5], x[6], x[7])),
                         fold_quarters(reduce_4(x[8], x[9], x[10], x[11]), reduce_4(x[12], x[13], x[14], x[15])));
  }
  // Of each run of n lanes the first `count` go to `to`, run after run `stride` apart.
  template <int32_t n>
  static void spread(V x, int32_t count, float* to, int64_t stride) {
#pragma GCC unroll 4
    for (int32_t run = 0; run < kLanes / n; run++) {
      store_some(to + run * stride, count, x);
      const __m512i bits = _mm512_castps_si512(x);
      x = _mm512_castsi512_ps(_mm512_alignr_epi32(bits, bits, n % kLanes));
    }
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
  // a0 + a1, a2 + a3, b0 + b1, b2 + b3 of the quarters of a and b.
  static V fold_quarters(V a, V b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
  // In each quarter: the sums of that quarter of a, b, c, d.
  static V reduce_4(V a, V b, V c, V d) {
    const V ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const V cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  }
};
