// SPDX-License-Identifier: Apache-2.0
// AVX-512 VNNI variants: byte products by vpdpbusd, the 16 columns of a panel in one vector.
#include "ops/matmul_nbits/generic.h"

namespace quern::ops {
namespace {

// ---- quantization ----

constexpr int kBlocksAtOnce = 16;
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;

// Lane i of the result is v[i] reduced over its 16 lanes. Overwrites v.
template <class Combine>
[[gnu::always_inline]] inline __m512i reduce_each(__m512i* v, Combine combine) {
  unrolled<8>([&](auto i) __attribute__((always_inline)) {
    v[i] = combine(_mm512_shuffle_i64x2(v[i], v[i + 8], 0x44), _mm512_shuffle_i64x2(v[i], v[i + 8], 0xee));
  });
  unrolled<4>([&](auto i) __attribute__((always_inline)) {
    v[i] = combine(_mm512_shuffle_i64x2(v[i], v[i + 4], 0x88), _mm512_shuffle_i64x2(v[i], v[i + 4], 0xdd));
  });
  unrolled<2>([&](auto i) __attribute__((always_inline)) {
    v[i] = combine(_mm512_unpacklo_epi64(v[i], v[i + 2]), _mm512_unpackhi_epi64(v[i], v[i + 2]));
  });
  const __m512 x = _mm512_castsi512_ps(v[0]);
  const __m512 y = _mm512_castsi512_ps(v[1]);
  const __m512i mixed =
      combine(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), mixed);
}

struct Max {
  __m512i operator()(__m512i a, __m512i b) const { return _mm512_max_epi32(a, b); }
};
struct Add {
  __m512i operator()(__m512i a, __m512i b) const { return _mm512_add_epi32(a, b); }
};

// Bits of |x|, whose order as integers is the order of the values, with infinity and then NaN at the top.
[[gnu::always_inline]] inline __m512i magnitude(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

// One row's part of a tile of `height` rows.
struct RowOut {
  uint8_t* codes;
  uint8_t* correction;
  uint8_t* scale;
  int64_t stride;  // bytes from a block to the next

  RowOut(uint8_t* tile, int64_t height, int64_t row)
      : codes(tile + row * kNBitsBlock),
        correction(tile + height * kNBitsBlock + row * 4),
        scale(tile + height * (kNBitsBlock + 4) + row * 4),
        stride(height * kNBitsRowBlockBytes) {}

  void put(int64_t b, int32_t correction_value, uint32_t scale_bits) const {
    *reinterpret_cast<int32_t*>(correction + b * stride) = correction_value;
    *reinterpret_cast<uint32_t*>(scale + b * stride) = scale_bits;
  }
  void put_codes(int64_t b, __m512i first, __m512i second) const {
    auto* to = reinterpret_cast<__m128i*>(codes + b * stride);
    _mm_storeu_si128(to, _mm512_cvtepi32_epi8(first));
    _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(second));
  }
};

struct Scales {
  __m512 scale;    // amax / 127
  __m512 inverse;  // 127 / amax, 0 where amax is 0 or the quotient overflows
};

[[gnu::always_inline]] inline Scales scales_of(__m512i amax_bits) {
  const __m512 amax = _mm512_castsi512_ps(amax_bits);
  const __m512 c127 = _mm512_set1_ps(127.0f);
  const __mmask16 not_zero = _mm512_test_epi32_mask(amax_bits, amax_bits);
  const __m512 quotient = _mm512_maskz_div_ps(not_zero, c127, amax);
  const __m512 infinity = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(kInfinityBits)));
  const __mmask16 finite = _mm512_cmp_ps_mask(quotient, infinity, _CMP_LT_OQ);
  return {_mm512_div_ps(amax, c127), _mm512_maskz_mov_ps(finite, quotient)};
}

// `count` <= 32 elements of one block; nothing past them is read.
void quantize_block(const float* x, int64_t count, int64_t b, const RowOut& out) {
  const uint32_t present = count >= kNBitsBlock ? 0xffffffffu : (1u << count) - 1;
  const __m512 first = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present), x);
  const __m512 second = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present >> 16), x + 16);
  const auto amax =
      static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(magnitude(first), magnitude(second))));
  if (amax >= kInfinityBits) {
    out.put_codes(b, _mm512_setzero_si512(), _mm512_setzero_si512());
    out.put(b, 0, kNanBits);
    return;
  }
  const Scales scales = scales_of(_mm512_set1_epi32(static_cast<int>(amax)));
  const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(first, scales.inverse));
  const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(second, scales.inverse));
  out.put_codes(b, q0, q1);
  out.put(b, -kNBitsDefaultZero * _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1)),
          static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(_mm512_castps512_ps128(scales.scale)))));
}

// 16 whole blocks: the reductions of all of them together take 11 cycles a block instead of 20.
void quantize_16_blocks(const float* x, int64_t b, const RowOut& out) {
  __m512i v[kBlocksAtOnce];
  unrolled<kBlocksAtOnce>([&](auto i) __attribute__((always_inline)) {
    v[i] = _mm512_max_epi32(magnitude(_mm512_loadu_ps(x + i * kNBitsBlock)),
                            magnitude(_mm512_loadu_ps(x + i * kNBitsBlock + 16)));
  });
  const __m512i amax = reduce_each(v, Max{});
  if (_mm512_cmpge_epi32_mask(amax, _mm512_set1_epi32(static_cast<int>(kInfinityBits))) != 0) {
    for (int i = 0; i < kBlocksAtOnce; i++) quantize_block(x + i * kNBitsBlock, kNBitsBlock, b + i, out);
    return;
  }
  alignas(64) float inverse[kBlocksAtOnce];
  alignas(64) uint32_t scale[kBlocksAtOnce];
  alignas(64) int32_t correction[kBlocksAtOnce];
  const Scales scales = scales_of(amax);
  _mm512_store_ps(inverse, scales.inverse);
  _mm512_store_si512(scale, _mm512_castps_si512(scales.scale));
  unrolled<kBlocksAtOnce>([&](auto i) __attribute__((always_inline)) {
    const __m512 factor = _mm512_set1_ps(inverse[i]);
    const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i * kNBitsBlock), factor));
    const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i * kNBitsBlock + 16), factor));
    out.put_codes(b + i, q0, q1);
    v[i] = _mm512_add_epi32(q0, q1);
  });
  const __m512i sum = reduce_each(v, Add{});
  _mm512_store_si512(correction, _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sum), 3));
  for (int i = 0; i < kBlocksAtOnce; i++) out.put(b + i, correction[i], scale[i]);
}

// ---- product ----

struct Product512 {
  static constexpr int kOneRowPanels = 4;
  static constexpr int kTilePanels = 2;

  // The integer sums of a block wait in registers while the next block's are made: scaling them between those vpdpbusd
  // keeps both kinds of work in flight (4 rows x 2 panels: 72 instead of 70 % of the vpdpbusd peak).
  template <int Rows, int Panels, bool HasZeroPoints>
  static void tile(const NBitsTile& t) {
    constexpr int kSums = Rows * Panels;
    constexpr int kRowBytes = Rows * kNBitsRowBlockBytes;
    __m512 acc[kSums];
    __m512i waiting[kSums];
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) { acc[i] = _mm512_setzero_ps(); });
    const uint8_t* weights = t.weights;
    const uint8_t* zeros = t.weights + t.blocks * kNBitsBlockBytes;
    const uint8_t* rows = t.rows;
    const uint8_t* prefetch = t.prefetch;

    const auto scale = [&](auto i, const uint8_t* block, const uint8_t* block_rows) __attribute__((always_inline)) {
      const float* scales = reinterpret_cast<const float*>(block_rows + Rows * (kNBitsBlock + 4));
      const __m512 weight_scale = _mm512_loadu_ps(block + (i % Panels) * t.panel_stride + kNBitsCodeBytes);
      const __m512 both = _mm512_mul_ps(weight_scale, _mm512_set1_ps(scales[i / Panels]));
      acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(waiting[i]), both, acc[i]);
    };
    const auto block = [&](auto first) __attribute__((always_inline)) {
      const auto* codes = reinterpret_cast<const int32_t*>(rows);
      const auto* corrections = reinterpret_cast<const int32_t*>(rows + Rows * kNBitsBlock);
      __m512i sum[kSums];
      prefetch_panels<Panels>(prefetch, t.panel_stride, t.prefetch_lines);
      prefetch += t.prefetch_lines * kNBitsLineBytes;
      unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
        const __m512i correction = _mm512_set1_epi32(corrections[i / Panels]);
        if constexpr (HasZeroPoints) {
          // zero * -sum: both fit 16 bits, and the upper half of each zero is empty.
          const auto* panel_zeros = reinterpret_cast<const __m128i*>(zeros + (i % Panels) * t.panel_stride);
          const __m512i zero = _mm512_cvtepu8_epi32(_mm_loadu_si128(panel_zeros));
          sum[i] = _mm512_madd_epi16(zero, _mm512_srai_epi32(correction, 3));
        } else {
          sum[i] = correction;
        }
      });
      unrolled<8>([&](auto step) __attribute__((always_inline)) {
        constexpr int kStep = decltype(step)::value;
        __m512i w[Panels];
        unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
          const __m512i line = _mm512_loadu_si512(weights + j * t.panel_stride + kStep / 2 * kNBitsLineBytes);
          const __m512i nibbles = kStep % 2 == 0 ? line : _mm512_srli_epi16(line, 4);
          w[j] = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
        });
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
          const __m512i x = _mm512_set1_epi32(codes[r * 8 + kStep]);
          unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
            sum[r * Panels + j] = _mm512_dpbusd_epi32(sum[r * Panels + j], w[j], x);
          });
        });
        if constexpr (!decltype(first)::value) {
          unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
            if constexpr (i >= kStep * kSums / 8 && i < (kStep + 1) * kSums / 8) {
              scale(i, weights - kNBitsBlockBytes, rows - kRowBytes);
            }
          });
        }
      });
      unrolled<kSums>([&](auto i) __attribute__((always_inline)) { waiting[i] = sum[i]; });
      weights += kNBitsBlockBytes;
      zeros += kNBitsPanel;
      rows += kRowBytes;
    };

    block(Index<1>{});
    for (int64_t b = 1; b < t.blocks; b++) block(Index<0>{});
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
      scale(i, weights - kNBitsBlockBytes, rows - kRowBytes);
      const int64_t columns = t.columns - (i % Panels) * t.y_panel_stride;
      const auto lanes = static_cast<__mmask16>(columns >= kNBitsPanel ? 0xffff : (1u << columns) - 1);
      _mm512_mask_storeu_ps(t.y + (i / Panels) * t.y_stride + (i % Panels) * t.y_panel_stride, lanes, acc[i]);
    });
  }
};

}  // namespace

void quantize_rows_f32_s8_avx512vnni(const NBitsQuantizeArgs& args) noexcept {
  const int64_t blocks = (args.k + kNBitsBlock - 1) / kNBitsBlock;
  for (int64_t row = 0; row < args.row_count; row++) {
    const int64_t first = row / kNBitsTileRows * kNBitsTileRows;
    const int64_t height = args.row_count - first < kNBitsTileRows ? args.row_count - first : kNBitsTileRows;
    const RowOut out(args.out + first * blocks * kNBitsRowBlockBytes, height, row - first);
    const float* x = args.x + row * args.k;
    int64_t b = 0;
    for (; (b + kBlocksAtOnce) * kNBitsBlock <= args.k; b += kBlocksAtOnce) {
      quantize_16_blocks(x + b * kNBitsBlock, b, out);
    }
    for (; b < blocks; b++) quantize_block(x + b * kNBitsBlock, args.k - b * kNBitsBlock, b, out);
  }
}

void matmul_nbits_s8_u4_avx512vnni(const NBitsProductArgs& args) noexcept { walk<Product512>(args); }

}  // namespace quern::ops
