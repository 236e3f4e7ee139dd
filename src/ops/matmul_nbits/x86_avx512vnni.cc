// SPDX-License-Identifier: Apache-2.0
// AVX-512 VNNI variants: byte products by vpdpbusd, the 16 columns of a panel in one vector.
#include "ops/matmul_nbits/generic.h"

namespace quern::ops {
namespace {

// ---- quantization ----

constexpr int kLanes = 16;
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
  int64_t block;
  uint8_t* codes;
  uint8_t* correction;
  uint8_t* scale;
  int64_t stride;  // bytes from a block to the next

  RowOut(uint8_t* tile, int64_t block_k, int64_t height, int64_t row)
      : block(block_k),
        codes(tile + row * block),
        correction(tile + height * block + row * 4),
        scale(tile + height * (block + 4) + row * 4),
        stride(height * (block + 8)) {}

  void put(int64_t b, int32_t correction_value, uint32_t scale_bits) const {
    *reinterpret_cast<int32_t*>(correction + b * stride) = correction_value;
    *reinterpret_cast<uint32_t*>(scale + b * stride) = scale_bits;
  }
  // Elements k to k + 15 of block b.
  void put_codes(int64_t b, int64_t k, __m512i values) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + b * stride + k), _mm512_cvtepi32_epi8(values));
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

// The 16 floats at x of which `count` are there, zeros for the rest; nothing past them is read.
[[gnu::always_inline]] inline __m512 load_present(const float* x, int64_t count) {
  const uint32_t lanes = count >= kLanes ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1;
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), x);
}

// `count` elements of one block.
void quantize_block(const float* x, int64_t count, int64_t b, const RowOut& out) {
  __m512i m = _mm512_setzero_si512();
  for (int64_t k = 0; k < count; k += kLanes) m = _mm512_max_epi32(m, magnitude(load_present(x + k, count - k)));
  const auto amax = static_cast<uint32_t>(_mm512_reduce_max_epi32(m));
  if (amax >= kInfinityBits) {
    for (int64_t k = 0; k < out.block; k += kLanes) out.put_codes(b, k, _mm512_setzero_si512());
    out.put(b, 0, kNanBits);
    return;
  }
  const Scales scales = scales_of(_mm512_set1_epi32(static_cast<int>(amax)));
  __m512i sum = _mm512_setzero_si512();
  for (int64_t k = 0; k < out.block; k += kLanes) {
    __m512i q = _mm512_setzero_si512();
    if (k < count) q = _mm512_cvtps_epi32(_mm512_mul_ps(load_present(x + k, count - k), scales.inverse));
    out.put_codes(b, k, q);
    sum = _mm512_add_epi32(sum, q);
  }
  out.put(b, -8 * _mm512_reduce_add_epi32(sum),
          static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(_mm512_castps512_ps128(scales.scale)))));
}

// 16 whole blocks: the reductions of all of them together take 11 cycles a block instead of 20. Block: 16, 32, or 0 for
// the longer ones.
template <int Block>
void quantize_16_blocks(const float* x, int64_t b, const RowOut& out) {
  const int64_t block = Block == 0 ? out.block : Block;
  __m512i v[kBlocksAtOnce];
  unrolled<kBlocksAtOnce>([&](auto i) __attribute__((always_inline)) {
    const float* from = x + i * block;
    __m512i m = magnitude(_mm512_loadu_ps(from));
    _mm_prefetch(reinterpret_cast<const char*>(from + kBlocksAtOnce * block), _MM_HINT_T0);
    for (int64_t k = kLanes; k < block; k += kLanes) {
      m = _mm512_max_epi32(m, magnitude(_mm512_loadu_ps(from + k)));
      _mm_prefetch(reinterpret_cast<const char*>(from + kBlocksAtOnce * block + k), _MM_HINT_T0);
    }
    v[i] = m;
  });
  const __m512i amax = reduce_each(v, Max{});
  if (_mm512_cmpge_epi32_mask(amax, _mm512_set1_epi32(static_cast<int>(kInfinityBits))) != 0) {
    for (int i = 0; i < kBlocksAtOnce; i++) quantize_block(x + i * block, block, b + i, out);
    return;
  }
  alignas(64) float inverse[kBlocksAtOnce];
  alignas(64) uint32_t scale[kBlocksAtOnce];
  alignas(64) int32_t correction[kBlocksAtOnce];
  const Scales scales = scales_of(amax);
  _mm512_store_ps(inverse, scales.inverse);
  _mm512_store_si512(scale, _mm512_castps_si512(scales.scale));
  unrolled<kBlocksAtOnce>([&](auto i) __attribute__((always_inline)) {
    const float* from = x + i * block;
    const __m512 factor = _mm512_set1_ps(inverse[i]);
    __m512i sum = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from), factor));
    out.put_codes(b + i, 0, sum);
    for (int64_t k = kLanes; k < block; k += kLanes) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + k), factor));
      out.put_codes(b + i, k, q);
      sum = _mm512_add_epi32(sum, q);
    }
    v[i] = sum;
  });
  const __m512i sum = reduce_each(v, Add{});
  _mm512_store_si512(correction, _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sum), 3));
  for (int i = 0; i < kBlocksAtOnce; i++) out.put(b + i, correction[i], scale[i]);
}

template <int Block>
void quantize_row(const float* x, int64_t k, const RowOut& out) {
  const int64_t block = Block == 0 ? out.block : Block;
  int64_t b = 0;
  for (; (b + kBlocksAtOnce) * block <= k; b += kBlocksAtOnce) quantize_16_blocks<Block>(x + b * block, b, out);
  for (; b * block < k; b++) {
    const int64_t left = k - b * block;
    quantize_block(x + b * block, left < block ? left : block, b, out);
  }
}

// ---- product ----

constexpr ScaleSelect<64> kSelect = scale_select<64>();

// Block: 16, 32, or 0 for the longer ones.
template <int Bits, int Block, bool HasZeros>
struct Product512 {
  static constexpr int kOneRowPanels = 4;
  static constexpr int kTilePanels = Block == 16 ? 1 : 2;
  static constexpr bool kExpands = false;
  static int64_t row_block_bytes(int64_t block) { return block + 8; }

  // The integer sums of a block wait in registers while the next block's are made: scaling them between those vpdpbusd
  // keeps both kinds of work in flight (4 rows x 2 panels: 72 instead of 70 % of the vpdpbusd peak).
  template <int Rows, int Panels>
  static void tile(const NBitsTile& t) {
    if constexpr (Rows == 1 && Panels == kOneRowPanels) {
      one_row<Panels>(t);
      return;
    }
    constexpr int kSums = Rows * Panels;
    const NBitsPanels& form = *t.form;
    const int64_t block = Block == 0 ? form.block : Block;
    const int64_t chunks = block / (4 * kSteps);
    const int64_t code_bytes = chunks * kChunkLines * kNBitsLineBytes;
    const int64_t row_bytes = Rows * row_block_bytes(block);
    __m512 acc[kSums];
    __m512i sum[kSums];
    __m512i waiting[kSums];
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) { acc[i] = _mm512_setzero_ps(); });
    const uint8_t* weights = t.weights;
    const uint8_t* zeros = t.weights;
    const uint8_t* rows = t.rows;
    const uint8_t* prefetch = t.prefetch;
    // A long block spreads its requests over its chunks. A tile that is alone reads fastest without any (4 rows, 4
    // bits: 22 instead of 19 GB/s).
    const auto requests = t.ahead != 0 ? 0 : static_cast<int>((t.prefetch_lines + chunks - 1) / chunks);
    const uint8_t* scales = nullptr;  // of the waiting sums
    const uint8_t* select = kSelect.bytes[kWhole];

    const auto scale = [&](auto i) __attribute__((always_inline)) {
      const auto* row_scales = reinterpret_cast<const float*>(rows - Rows * 4);
      const __m512 weight_scale = scales_of_line(scales + (i % Panels) * t.panel_stride, select);
      const __m512 both = _mm512_mul_ps(weight_scale, _mm512_set1_ps(row_scales[i / Panels]));
      acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(waiting[i]), both, acc[i]);
    };
    const auto chunk = [&](int64_t c, auto with_scaling) __attribute__((always_inline)) {
      const uint8_t* lines = weights + c * kChunkLines * kNBitsLineBytes;
      const uint8_t* codes = rows + c * 4 * kSteps;
      unrolled<kSteps>([&](auto step) __attribute__((always_inline)) {
        constexpr int kStep = decltype(step)::value;
        __m512i w[Panels];
        unrolled<Panels>([&](auto j)
                             __attribute__((always_inline)) { w[j] = step_codes<kStep>(lines + j * t.panel_stride); });
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
          const __m512i x = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(codes + r * block + kStep * 4));
          unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
            sum[r * Panels + j] = _mm512_dpbusd_epi32(sum[r * Panels + j], w[j], x);
          });
        });
        if constexpr (decltype(with_scaling)::value) {
          unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
            if constexpr (i >= kStep * kSums / kSteps && i < (kStep + 1) * kSums / kSteps) scale(i);
          });
        }
      });
    };
    const auto one_block = [&](int64_t b, auto first) __attribute__((always_inline)) {
      if constexpr (HasZeros) step_zeros(b, weights, zeros);
      const auto* corrections = reinterpret_cast<const int32_t*>(rows + Rows * block);
      unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
        sum[i] = zero_term(corrections[i / Panels], zeros + (i % Panels) * t.panel_stride);
      });
      prefetch_panels<Panels>(prefetch, t.panel_stride, requests);
      prefetch += requests * kNBitsLineBytes;
      chunk(0, Index<!decltype(first)::value>{});
      if constexpr (Block == 0) {
        for (int64_t c = 1; c < chunks; c++) {
          prefetch_panels<Panels>(prefetch, t.panel_stride, requests);
          prefetch += requests * kNBitsLineBytes;
          chunk(c, Index<0>{});
        }
      }
      unrolled<kSums>([&](auto i) __attribute__((always_inline)) { waiting[i] = sum[i]; });
      const bool second = form.bf16_scales && b % 2 == 1;
      if (!second) scales = weights + code_bytes;
      if (form.bf16_scales) select = kSelect.bytes[second ? kHigh : kLow];
      weights += second ? code_bytes : code_bytes + kNBitsLineBytes;
      rows += row_bytes;
    };

    one_block(0, Index<1>{});
    for (int64_t b = 1; b < form.blocks; b++) one_block(b, Index<0>{});
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
      scale(i);
      store(t.y + (i / Panels) * t.y_stride + (i % Panels) * t.y_panel_stride, acc[i],
            t.columns - (i % Panels) * t.y_panel_stride);
    });
  }

 private:
  static constexpr int kSteps = Block == 16 ? 4 : 8;  // of 4 k, to a chunk
  static constexpr int kChunkLines = Bits == 4 ? kSteps / 2 : kSteps;
  static constexpr int kZerosOfLine = kNBitsLineBytes / kNBitsPanel;  // blocks

  // The codes of step Step of a chunk, as bytes.
  template <int Step>
  [[gnu::always_inline]] static inline __m512i step_codes(const uint8_t* lines) {
    if constexpr (Bits == 8) {
      return _mm512_loadu_si512(lines + Step * kNBitsLineBytes);
    } else {
      const __m512i line = _mm512_loadu_si512(lines + Step / 2 * kNBitsLineBytes);
      return _mm512_and_si512(Step % 2 == 0 ? line : _mm512_srli_epi16(line, 4), _mm512_set1_epi8(15));
    }
  }

  // Moves to the zero points of block b, and past a line of them.
  [[gnu::always_inline]] static inline void step_zeros(int64_t b, const uint8_t*& weights, const uint8_t*& zeros) {
    if (b % kZerosOfLine == 0) {
      zeros = weights;
      weights += kNBitsLineBytes;
    } else {
      zeros += kNBitsPanel;
    }
  }

  // What a sum starts from: -zero * sum of the row's codes. correction is 8 times the second factor.
  [[gnu::always_inline]] static inline __m512i zero_term(int32_t correction, const uint8_t* zeros) {
    const __m512i c = _mm512_set1_epi32(correction);
    if constexpr (HasZeros) {
      // Both factors fit 16 bits, and the upper half of each zero is empty.
      const __m512i zero = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
      return _mm512_madd_epi16(zero, _mm512_srai_epi32(c, 3));
    } else {
      return Bits == 4 ? c : _mm512_slli_epi32(c, 4);
    }
  }

  [[gnu::always_inline]] static inline __m512 scales_of_line(const uint8_t* line, const uint8_t* select) {
    return _mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_loadu_si512(line), _mm512_load_si512(select)));
  }

  [[gnu::always_inline]] static inline void store(float* y, __m512 v, int64_t columns) {
    const auto lanes = static_cast<__mmask16>(columns >= kNBitsPanel ? 0xffff : (1u << columns) - 1);
    _mm512_mask_storeu_ps(y, lanes, v);
  }

  // Memory bounds one row, and the processor's own prefetching reads four streams as fast as it can read at all, but
  // only lines in their order and without holes. Hence no requests from here: into the first level they cost 10 to 45 %
  // of the bandwidth.
  template <int Panels>
  static void one_row(const NBitsTile& t) {
    const NBitsPanels& form = *t.form;
    const int64_t block = Block == 0 ? form.block : Block;
    const int64_t chunks = block / (4 * kSteps);
    __m512 acc[Panels];
    __m512i sum[Panels];
    unrolled<Panels>([&](auto j) __attribute__((always_inline)) { acc[j] = _mm512_setzero_ps(); });
    const uint8_t* weights = t.weights;
    const uint8_t* scales = nullptr;
    const uint8_t* zeros = t.weights;
    const uint8_t* rows = t.rows;
    for (int64_t b = 0; b < form.blocks; b++) {
      if constexpr (HasZeros) step_zeros(b, weights, zeros);
      const auto correction = *reinterpret_cast<const int32_t*>(rows + block);
      unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
        sum[j] = zero_term(correction, zeros + j * t.panel_stride);
      });
      for (int64_t c = 0; c < chunks; c++) {
        unrolled<kSteps>([&](auto step) __attribute__((always_inline)) {
          constexpr int kStep = decltype(step)::value;
          const auto* x = reinterpret_cast<const int32_t*>(rows + c * 4 * kSteps + kStep * 4);
          unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
            sum[j] =
                _mm512_dpbusd_epi32(sum[j], step_codes<kStep>(weights + j * t.panel_stride), _mm512_set1_epi32(*x));
          });
        });
        weights += kChunkLines * kNBitsLineBytes;
      }
      const bool second = form.bf16_scales && b % 2 == 1;
      if (!second) {
        scales = weights;
        weights += kNBitsLineBytes;
      }
      const uint8_t* select = kSelect.bytes[!form.bf16_scales ? kWhole : second ? kHigh : kLow];
      const __m512 row_scale = _mm512_set1_ps(*reinterpret_cast<const float*>(rows + block + 4));
      unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
        const __m512 weight_scale = scales_of_line(scales + j * t.panel_stride, select);
        acc[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j]), _mm512_mul_ps(weight_scale, row_scale), acc[j]);
      });
      rows += row_block_bytes(block);
    }
    unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
      store(t.y + j * t.y_panel_stride, acc[j], t.columns - j * t.y_panel_stride);
    });
  }
};

template <int Bits, int Block>
void multiply(const NBitsProductArgs& args) {
  if (args.weights.zeros == NBitsZeros::none) {
    walk<Product512<Bits, Block, false>>(args);
  } else {
    walk<Product512<Bits, Block, true>>(args);
  }
}

template <int Bits>
void multiply(const NBitsProductArgs& args) {
  switch (args.weights.block) {
    case 16: multiply<Bits, 16>(args); break;
    case 32: multiply<Bits, 32>(args); break;
    default: multiply<Bits, 0>(args); break;
  }
}

}  // namespace

void quantize_rows_f32_s8_avx512vnni(const NBitsRowsArgs& args) noexcept {
  const int64_t row_bytes = (args.k + args.block - 1) / args.block * (args.block + 8);
  for (int64_t row = 0; row < args.row_count; row++) {
    const int64_t first = row / kNBitsTileRows * kNBitsTileRows;
    const int64_t height = args.row_count - first < kNBitsTileRows ? args.row_count - first : kNBitsTileRows;
    const RowOut out(args.out + first * row_bytes, args.block, height, row - first);
    const float* x = args.x + row * args.k;
    switch (args.block) {
      case 16: quantize_row<16>(x, args.k, out); break;
      case 32: quantize_row<32>(x, args.k, out); break;
      default: quantize_row<0>(x, args.k, out); break;
    }
  }
}

void matmul_nbits_s8_avx512vnni(const NBitsProductArgs& args) noexcept {
  if (args.weights.bits == 4) {
    multiply<4>(args);
  } else {
    multiply<8>(args);
  }
}

}  // namespace quern::ops
