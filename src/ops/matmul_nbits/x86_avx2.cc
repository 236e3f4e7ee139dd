// SPDX-License-Identifier: Apache-2.0
// AVX2 variants: byte products by vpmaddubsw, 8 columns a vector.
#include "ops/matmul_nbits/generic.h"

namespace quern::ops {
namespace {

struct DotAvx2 {
  using Sum = __m256i;  // 16 x int16: 8 additions of at most 2 * 15 * 127 reach 30,480

  [[gnu::always_inline]] static inline Sum zero() { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static inline Sum add(Sum sum, __m256i codes, __m256i x) {
    Sum next = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
    // Keeps this addition where it is: g++ 12 would reassociate the 8 of them and spill all products.
    asm("" : "+x"(next));
    return next;
  }
  [[gnu::always_inline]] static inline __m256i total(Sum sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};

// Bits of |float|, whose order as integers is the order of the values, with infinity and then NaN at the top.
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;

float float_of(uint32_t bits) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits)))); }

uint32_t reduce_max(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

int32_t reduce_add(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

void quantize_block(const float* x, uint8_t* codes, int32_t* correction, float* scale) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256 v[4];
  unrolled<4>([&](auto i) __attribute__((always_inline)) { v[i] = _mm256_loadu_ps(x + i * 8); });
  const __m256i m01 = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(v[0]), magnitude),
                                       _mm256_and_si256(_mm256_castps_si256(v[1]), magnitude));
  const __m256i m23 = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(v[2]), magnitude),
                                       _mm256_and_si256(_mm256_castps_si256(v[3]), magnitude));
  const uint32_t amax_bits = reduce_max(_mm256_max_epi32(m01, m23));
  if (amax_bits >= kInfinityBits) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_setzero_si256());
    *correction = 0;
    *scale = float_of(kNanBits);
    return;
  }
  const float amax = float_of(amax_bits);
  const float quotient = amax_bits == 0 ? 0.0f : 127.0f / amax;
  const __m256 inverse = _mm256_set1_ps(quotient == float_of(kInfinityBits) ? 0.0f : quotient);
  __m256i q[4];
  unrolled<4>([&](auto i) __attribute__((always_inline)) { q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)); });
  // Packing works in 128-bit halves: the permutation puts the groups of four back in order.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permutevar8x32_epi32(packed, order));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
  *correction = -kNBitsDefaultZero * reduce_add(sum);
  *scale = amax / 127.0f;
}

}  // namespace

void quantize_rows_f32_s8_avx2(const NBitsQuantizeArgs& args) noexcept {
  const int64_t blocks = (args.k + kNBitsBlock - 1) / kNBitsBlock;
  for (int64_t row = 0; row < args.row_count; row++) {
    const int64_t first = row / kNBitsTileRows * kNBitsTileRows;
    const int64_t height = args.row_count - first < kNBitsTileRows ? args.row_count - first : kNBitsTileRows;
    const int64_t r = row - first;
    uint8_t* out = args.out + first * blocks * kNBitsRowBlockBytes;
    for (int64_t b = 0; b < blocks; b++, out += height * kNBitsRowBlockBytes) {
      const float* x = args.x + row * args.k + b * kNBitsBlock;
      alignas(32) float tail[kNBitsBlock];
      const int64_t left = args.k - b * kNBitsBlock;
      if (left < kNBitsBlock) {
        for (int64_t i = 0; i < kNBitsBlock; i++) tail[i] = i < left ? x[i] : 0.0f;
        x = tail;
      }
      quantize_block(x, out + r * kNBitsBlock, reinterpret_cast<int32_t*>(out + height * kNBitsBlock) + r,
                     reinterpret_cast<float*>(out + height * (kNBitsBlock + 4)) + r);
    }
  }
}

void matmul_nbits_s8_u4_avx2(const NBitsProductArgs& args) noexcept { walk<Product256<DotAvx2>>(args); }

}  // namespace quern::ops
