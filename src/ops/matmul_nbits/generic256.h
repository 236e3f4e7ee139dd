// SPDX-License-Identifier: Apache-2.0
// Owns the product of int8 rows for 256-bit vectors, which AVX2 and AVX-VNNI share but for one instruction. For files
// with instruction-set flags only, like generic.h.
#pragma once

#include "ops/matmul_nbits/generic.h"

namespace quern::ops {
namespace {

constexpr ScaleSelect<32> kSelect = scale_select<32>();  // of half a line

// A panel is two halves of 8 columns. Block: 16, 32, or 0 for the longer ones.
// Dot: kHalvesAtOnce, 1 where the sums of both would not fit the registers; Sum begin(total), Sum add(sum, codes u8,
// activations s8), at most 8 times, and total end(total, sum), total being 8 x int32; kFromTotal: a Sum goes on where
// the total is; kExpands: it pays to expand 4-bit codes once for many rows.
// Expanded_: 4-bit codes come a byte each, in lines like those of 8-bit codes.
template <class Dot, int Bits, int Block, bool HasZeros, bool Expanded_ = false>
struct Product256 {
  static constexpr int kOneRowPanels = 4;
  static constexpr int kTilePanels = 1;
  static int64_t row_block_bytes(int64_t block) { return block + 8; }

  // The same product of panels that expand() wrote.
  using Expanded = Product256<Dot, Bits, Block, HasZeros, true>;
  static constexpr bool kExpands = Bits == 4 && Dot::kExpands && !Expanded_;

  // Writes a panel with a byte for each code. Returns false where it would take more than kExpandedBytes.
  static bool expand(const NBitsPanels& form, const uint8_t* panel, uint8_t* to) {
    const int64_t lines = block_of(form) / (4 * kSteps) * kChunkLines;  // of codes, a block
    if (form.panel_bytes + form.blocks * lines * kNBitsLineBytes > kExpandedBytes) return false;
    const __m256i nibble = _mm256_set1_epi8(15);
    const auto put = [&](__m256i v) __attribute__((always_inline)) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(to), v);
      to += 32;
    };
    const auto next = [&]() __attribute__((always_inline)) {
      const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel));
      panel += 32;
      return v;
    };
    for (int64_t b = 0; b < form.blocks; b++) {
      if (HasZeros && b % kZerosOfLine == 0) {
        put(next());
        put(next());
      }
      for (int64_t i = 0; i < lines; i++) {
        const __m256i first = next();
        const __m256i second = next();
        put(_mm256_and_si256(first, nibble));
        put(_mm256_and_si256(second, nibble));
        put(_mm256_and_si256(_mm256_srli_epi16(first, 4), nibble));
        put(_mm256_and_si256(_mm256_srli_epi16(second, 4), nibble));
      }
      if (!form.bf16_scales || b % 2 == 0) {
        put(next());
        put(next());
      }
    }
    return true;
  }

  template <int Rows, int Panels>
  static void tile(const NBitsTile& t) {
    const NBitsPanels& form = *t.form;
    const int64_t code_bytes = block_of(form) / (4 * kSteps) * kChunkLines * kNBitsLineBytes;
    const int64_t row_bytes = Rows * row_block_bytes(block_of(form));
    __m256 acc[Panels * Rows * 2];
    unrolled<Panels * Rows * 2>([&](auto i) __attribute__((always_inline)) { acc[i] = _mm256_setzero_ps(); });
    Place at{t.weights, t.weights, t.weights, t.rows, kSelect.bytes[kWhole]};
    const uint8_t* prefetch = t.prefetch;
    // The processor's own prefetching reads several streams best without requests from here (see x86_avx512vnni.cc).
    const int lines = Panels > 1 ? 0 : t.prefetch_lines;
    for (int64_t b = 0; b < form.blocks; b++) {
      if constexpr (HasZeros) {
        const bool next_line = b % kZerosOfLine == 0;
        at.zeros = next_line ? at.codes : at.zeros + kNBitsPanel;
        if (next_line) at.codes += kNBitsLineBytes;
      }
      const bool second = form.bf16_scales && b % 2 == 1;
      if (form.bf16_scales) at.select = kSelect.bytes[second ? kHigh : kLow];
      if (!second) at.scales = at.codes + code_bytes;
      prefetch_panels<1>(prefetch, 0, lines);
      prefetch += lines * kNBitsLineBytes;
      unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
        block<Rows>(form, at.panel(j * t.panel_stride), acc + j * Rows * 2);
      });
      at.codes += second ? code_bytes : code_bytes + kNBitsLineBytes;
      at.rows += row_bytes;
    }
    unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
      const int64_t columns = t.columns - j * t.y_panel_stride;
      unrolled<Rows * 2>([&](auto i) __attribute__((always_inline)) {
        store(t.y + (i / 2) * t.y_stride + j * t.y_panel_stride + (i % 2) * 8, acc[j * Rows * 2 + i],
              columns - (i % 2) * 8);
      });
    });
  }

 private:
  static constexpr int kSteps = Block == 16 ? 4 : 8;  // of 4 k, to a chunk
  static constexpr bool kPacked = Bits == 4 && !Expanded_;
  static constexpr int kChunkLines = kPacked ? kSteps / 2 : kSteps;
  static constexpr int kZerosOfLine = kNBitsLineBytes / kNBitsPanel;  // blocks
  static int64_t block_of(const NBitsPanels& form) { return Block == 0 ? form.block : Block; }

  // A block of a panel and of the rows.
  struct Place {
    const uint8_t* codes;
    const uint8_t* scales;
    const uint8_t* zeros;
    const uint8_t* rows;
    const uint8_t* select;

    [[gnu::always_inline]] Place panel(int64_t offset) const {
      return {codes + offset, scales + offset, zeros + offset, rows, select};
    }
  };

  template <int Rows>
  [[gnu::always_inline]] static inline void block(const NBitsPanels& form, const Place& at, __m256* acc) {
    constexpr int kHalves = Dot::kHalvesAtOnce;
    const auto* row_scales = reinterpret_cast<const float*>(at.rows + Rows * (block_of(form) + 4));
    unrolled<2 / kHalves>([&](auto pass) __attribute__((always_inline)) {
      __m256i total[Rows * kHalves];
      sums<Rows, kHalves, decltype(pass)::value>(form, at, total);
      // Half by half, so that only one vector of scales takes a register.
      unrolled<Rows * kHalves>([&](auto i) __attribute__((always_inline)) {
        constexpr int kRow = i % Rows;
        constexpr int kHalf = pass * kHalves + i / Rows;
        add_scaled(total[kRow * kHalves + i / Rows], at.scales + kHalf * 32, at.select, row_scales[kRow],
                   acc + kRow * 2 + kHalf);
      });
    });
  }

  [[gnu::always_inline]] static inline void add_scaled(__m256i total, const uint8_t* line, const uint8_t* select,
                                                       float row_scale, __m256* acc) {
    const __m256i scales = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)),
                                               _mm256_load_si256(reinterpret_cast<const __m256i*>(select)));
    const __m256 both = _mm256_mul_ps(_mm256_castsi256_ps(scales), _mm256_set1_ps(row_scale));
    *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), both, *acc);
  }

  // The sums of `Halves` halves of a block, the first being half Pass * Halves.
  template <int Rows, int Halves, int Pass>
  [[gnu::always_inline]] static inline void sums(const NBitsPanels& form, const Place& at, __m256i* total) {
    // One chunk adds the zero terms last: held meanwhile, they would cost registers that 4 rows do not leave.
    constexpr bool kZerosFirst = Block == 0 || Dot::kFromTotal;
    const auto zero_of = [&](auto i) __attribute__((always_inline)) {
      return zero_term(at.rows + Rows * block_of(form) + (i / Halves) * 4, at.zeros + (Pass * Halves + i % Halves) * 8);
    };
    unrolled<Rows * Halves>([&](auto i) __attribute__((always_inline)) {
      total[i] = kZerosFirst ? zero_of(i) : _mm256_setzero_si256();
    });
    const uint8_t* codes = at.codes + Pass * 32;
    const uint8_t* rows = at.rows;
    for (int64_t c = 0; c < block_of(form) / (4 * kSteps); c++) {
      chunk<Rows, Halves>(codes, rows, block_of(form), total);
      codes += kChunkLines * kNBitsLineBytes;
      rows += 4 * kSteps;
    }
    if constexpr (!kZerosFirst) {
      unrolled<Rows * Halves>([&](auto i) __attribute__((always_inline)) {
        total[i] = _mm256_add_epi32(total[i], zero_of(i));
      });
    }
  }

  // Adds the products of a chunk's 16 or 32 k.
  template <int Rows, int Halves>
  [[gnu::always_inline]] static inline void chunk(const uint8_t* lines, const uint8_t* rows, int64_t block,
                                                  __m256i* total) {
    typename Dot::Sum sum[Rows * Halves];
    unrolled<Rows * Halves>([&](auto i) __attribute__((always_inline)) { sum[i] = Dot::begin(total[i]); });
    unrolled<kSteps>([&](auto step) __attribute__((always_inline)) {
      __m256i codes[Halves];
      unrolled<Halves>([&](auto h) __attribute__((always_inline)) {
        codes[h] = step_codes<decltype(step)::value>(lines + h * 32);
      });
      unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
        const __m256i x = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(rows + r * block + step * 4));
        unrolled<Halves>([&](auto h) __attribute__((always_inline)) {
          sum[r * Halves + h] = Dot::add(sum[r * Halves + h], codes[h], x);
        });
      });
    });
    unrolled<Rows * Halves>([&](auto i) __attribute__((always_inline)) { total[i] = Dot::end(total[i], sum[i]); });
  }

  // Half of the codes of step Step of a chunk, as bytes.
  template <int Step>
  [[gnu::always_inline]] static inline __m256i step_codes(const uint8_t* lines) {
    const int line = kPacked ? Step / 2 : Step;
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines + line * kNBitsLineBytes));
    if constexpr (!kPacked) {
      return v;
    } else {
      return _mm256_and_si256(Step % 2 == 0 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
    }
  }

  // What a sum starts from: -zero * sum of the row's codes. The correction is 8 times the second factor.
  [[gnu::always_inline]] static inline __m256i zero_term(const uint8_t* correction, const uint8_t* zeros) {
    const __m256i c = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(correction));
    if constexpr (HasZeros) {
      // Both factors fit 16 bits, and the upper half of each zero is empty.
      const __m256i zero = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros)));
      return _mm256_madd_epi16(zero, _mm256_srai_epi32(c, 3));
    } else {
      return Bits == 4 ? c : _mm256_slli_epi32(c, 4);
    }
  }

  [[gnu::always_inline]] static inline void store(float* y, __m256 v, int64_t columns) {
    if (columns >= 8) {
      _mm256_storeu_ps(y, v);
    } else if (columns > 0) {
      const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      _mm256_maskstore_ps(y, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(columns)), lanes), v);
    }
  }
};

// Dots<Bits> gives the Dot.
template <template <int> class Dots, int Bits, int Block>
void multiply_256(const NBitsProductArgs& args) {
  if (args.weights.zeros == NBitsZeros::none) {
    walk<Product256<Dots<Bits>, Bits, Block, false>>(args);
  } else {
    walk<Product256<Dots<Bits>, Bits, Block, true>>(args);
  }
}

template <template <int> class Dots, int Bits>
void multiply_256(const NBitsProductArgs& args) {
  switch (args.weights.block) {
    case 16: multiply_256<Dots, Bits, 16>(args); break;
    case 32: multiply_256<Dots, Bits, 32>(args); break;
    default: multiply_256<Dots, Bits, 0>(args); break;
  }
}

template <template <int> class Dots>
void multiply_256(const NBitsProductArgs& args) {
  if (args.weights.bits == 4) {
    multiply_256<Dots, 4>(args);
  } else {
    multiply_256<Dots, 8>(args);
  }
}

}  // namespace
}  // namespace quern::ops
