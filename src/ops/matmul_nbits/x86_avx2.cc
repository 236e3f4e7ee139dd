// SPDX-License-Identifier: Apache-2.0
// AVX2 variants: byte products by vpmaddubsw, 8 columns a vector.
#include "ops/matmul_nbits/generic256.h"

namespace quern::ops {
namespace {

// Adds to 16 x int16: 8 additions of at most 2 * 15 * 127 reach 30,480.
[[gnu::always_inline]] inline __m256i add_nibbles(__m256i sum, __m256i nibbles, __m256i x) {
  __m256i next = _mm256_add_epi16(sum, _mm256_maddubs_epi16(nibbles, x));
  // Keeps this addition where it is: g++ 12 would reassociate the 8 of them and spill all products.
  asm("" : "+x"(next));
  return next;
}

template <int Bits>
struct DotAvx2;

template <>
struct DotAvx2<4> {
  using Sum = __m256i;
  static constexpr int kHalvesAtOnce = 2;
  static constexpr bool kFromTotal = false;
  static constexpr bool kExpands = true;  // 128 rows: 3.29 instead of 3.49 ms on Zen 5

  [[gnu::always_inline]] static inline Sum begin(__m256i /*total*/) { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static inline Sum add(Sum sum, __m256i codes, __m256i x) { return add_nibbles(sum, codes, x); }
  [[gnu::always_inline]] static inline __m256i end(__m256i total, Sum sum) {
    return _mm256_add_epi32(total, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
  }
};

// Whole bytes would saturate the int16 of vpmaddubsw.
template <>
struct DotAvx2<8> {
  struct Sum {
    __m256i low, high;
  };
  static constexpr int kHalvesAtOnce = 1;
  static constexpr bool kFromTotal = false;
  static constexpr bool kExpands = false;

  [[gnu::always_inline]] static inline Sum begin(__m256i /*total*/) {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
  }
  [[gnu::always_inline]] static inline Sum add(Sum sum, __m256i codes, __m256i x) {
    const __m256i nibble = _mm256_set1_epi8(15);
    return {add_nibbles(sum.low, _mm256_and_si256(codes, nibble), x),
            add_nibbles(sum.high, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble), x)};
  }
  [[gnu::always_inline]] static inline __m256i end(__m256i total, Sum sum) {
    const __m256i low = _mm256_madd_epi16(sum.low, _mm256_set1_epi16(1));
    const __m256i high = _mm256_madd_epi16(sum.high, _mm256_set1_epi16(16));
    return _mm256_add_epi32(total, _mm256_add_epi32(low, high));
  }
};

// ---- quantization ----

// Bits of |float|, whose order as integers is the order of the values, with infinity and then NaN at the top.
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;
constexpr int64_t kLongestBlock = 256;

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

[[gnu::always_inline]] inline __m256i magnitude(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

// A whole block.
[[gnu::always_inline]] inline void quantize_block(const float* x, int64_t block, uint8_t* codes, int32_t* correction,
                                                  float* scale) {
  __m256i m0 = _mm256_setzero_si256();
  __m256i m1 = m0;
  for (int64_t k = 0; k < block; k += 16) {
    m0 = _mm256_max_epi32(m0, magnitude(_mm256_loadu_ps(x + k)));
    m1 = _mm256_max_epi32(m1, magnitude(_mm256_loadu_ps(x + k + 8)));
  }
  const uint32_t amax_bits = reduce_max(_mm256_max_epi32(m0, m1));
  if (amax_bits >= kInfinityBits) {
    for (int64_t k = 0; k < block; k += 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + k), _mm_setzero_si128());
    }
    *correction = 0;
    *scale = float_of(kNanBits);
    return;
  }
  const float amax = float_of(amax_bits);
  const float quotient = amax_bits == 0 ? 0.0f : 127.0f / amax;
  const __m256 inverse = _mm256_set1_ps(quotient == float_of(kInfinityBits) ? 0.0f : quotient);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t k = 0; k < block; k += 16) {
    const __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + k), inverse));
    const __m256i q1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + k + 8), inverse));
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(q0, q1));
    // Packing works in 128-bit halves: the permutation puts the groups of four back in order.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q0, q1), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + k), bytes);
  }
  *correction = -8 * reduce_add(sum);
  *scale = amax / 127.0f;
}

// Block: 16, 32, or 0 for the longer ones.
template <int Block>
void quantize_rows(const NBitsRowsArgs& args) {
  const int64_t block = Block == 0 ? args.block : Block;
  const int64_t blocks = (args.k + block - 1) / block;
  for (int64_t row = 0; row < args.row_count; row++) {
    const int64_t first = row / kNBitsTileRows * kNBitsTileRows;
    const int64_t height = args.row_count - first < kNBitsTileRows ? args.row_count - first : kNBitsTileRows;
    const int64_t r = row - first;
    uint8_t* out = args.out + first * blocks * (block + 8);
    for (int64_t b = 0; b < blocks; b++, out += height * (block + 8)) {
      const float* x = args.x + row * args.k + b * block;
      alignas(32) float tail[kLongestBlock];
      const int64_t left = args.k - b * block;
      if (left < block) {
        for (int64_t i = 0; i < block; i++) tail[i] = i < left ? x[i] : 0.0f;
        x = tail;
      }
      quantize_block(x, block, out + r * block, reinterpret_cast<int32_t*>(out + height * block) + r,
                     reinterpret_cast<float*>(out + height * (block + 4)) + r);
    }
  }
}

}  // namespace

void quantize_rows_f32_s8_avx2(const NBitsRowsArgs& args) noexcept {
  switch (args.block) {
    case 16: quantize_rows<16>(args); break;
    case 32: quantize_rows<32>(args); break;
    default: quantize_rows<0>(args); break;
  }
}

void matmul_nbits_s8_avx2(const NBitsProductArgs& args) noexcept { multiply_256<DotAvx2>(args); }

}  // namespace quern::ops
