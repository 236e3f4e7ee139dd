// SPDX-License-Identifier: Apache-2.0
// Owns the product of float rows, which AVX2 and AVX-512 share but for the width of a vector. For files with
// instruction-set flags only, like generic.h.
//
// A 32-bit lane has several codes of one column, so the code at bit s becomes the float q * 2^s of a whole vector of
// columns by one AND and one conversion, and the rows carry the 2^-s: there is no buffer of expanded weights.
#pragma once

#include "ops/matmul_nbits/generic.h"

namespace quern::ops {
namespace {

// V has Float and Int (vectors), kLanes, kOneRowPanels, kTilePanels, kMaxSums (vectors of sums that registers hold; a
// larger tile is done panel by panel), kEmbedsBroadcast (a multiply-add can broadcast its operand from memory) and the
// operations used below.
template <class V, int Bits, int Chunk>
struct FloatProduct {
  using Float = typename V::Float;
  using Int = typename V::Int;
  static constexpr int kOneRowPanels = V::kOneRowPanels;
  static constexpr int kTilePanels = V::kTilePanels;
  static constexpr int kParts = kNBitsPanel / V::kLanes;  // vectors of a panel
  static constexpr int kPartBytes = V::kLanes * 4;
  static constexpr int kLaneCodes = 32 / Bits;
  static constexpr int kChunkLines = Chunk / kLaneCodes;
  static int64_t row_block_bytes(int64_t block) { return (block + 1) * 4; }

  template <int Rows, int Panels>
  static void tile(const NBitsTile& t) {
    if constexpr (Rows * Panels * kParts > V::kMaxSums) {
      NBitsTile one = t;
      for (int i = 0; i < Panels; i++) {
        small_tile<Rows, 1>(one);
        one.weights += t.panel_stride;
        one.prefetch += t.panel_stride;
        one.y += t.y_panel_stride;
        one.columns -= t.y_panel_stride;
      }
    } else {
      small_tile<Rows, Panels>(t);
    }
  }

 private:
  // A function of its own, whatever the compiler thinks of inlining, keeps its sums in registers.
  template <int Rows, int Panels>
  [[gnu::noinline]] static void small_tile(const NBitsTile& t) {
    constexpr int kVectors = Panels * kParts;
    constexpr int kSums = Rows * kVectors;
    const NBitsPanels form = *t.form;
    const int chunks = static_cast<int>(form.block) / Chunk;
    const uint8_t* weights = t.weights;
    const auto* x = reinterpret_cast<const float*>(t.rows);
    const uint8_t* prefetch = t.prefetch;
    // Requests are spread evenly over the chunks, and are no more than the panel has lines: what they run ahead they
    // would ask for again in the next panel (one row, bfloat16 scales: 128 instead of 137 us).
    const int64_t all_chunks = form.blocks * chunks;
    const int64_t panel_lines = form.panel_bytes / kNBitsLineBytes;
    const int64_t prefetch_lines =
        t.prefetch_lines * form.blocks < panel_lines ? t.prefetch_lines * form.blocks : panel_lines;
    int64_t lines_due = 0;
    Float totals[kSums];
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) { totals[i] = V::zero(); });
    for (int64_t b = 0; b < form.blocks; b++) {
      Float sum[kSums];
      unrolled<kSums>([&](auto i) __attribute__((always_inline)) { sum[i] = V::zero(); });
      for (int c = 0; c < chunks; c++) {
        for (lines_due += prefetch_lines; lines_due >= all_chunks; lines_due -= all_chunks) {
          prefetch_panels<Panels>(prefetch, t.panel_stride, 1);
          prefetch += kNBitsLineBytes;
        }
        for (int l = 0; l < kChunkLines; l++) {
          add_line<Rows, Panels>(weights, t.panel_stride, x, sum);
          weights += kNBitsLineBytes;
          x += kLaneCodes;
        }
        x += (Rows - 1) * Chunk;
      }

      // The scales of a pair of bfloat16 blocks lie behind the codes of the second one.
      const bool before_second = form.bf16_scales && b % 2 == 0 && b + 1 < form.blocks;
      const uint8_t* scales = weights + (before_second ? chunks * kChunkLines * kNBitsLineBytes : 0);
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        const int64_t panel = (j / kParts) * t.panel_stride;
        const Float zero = zero_points(form, t.weights + panel, b, j % kParts);
        Int bits = V::load(scales + panel + (j % kParts) * kPartBytes);
        if (form.bf16_scales) {
          bits = b % 2 == 0 ? V::template shift_left<16>(bits) : V::bit_and(bits, V::ints(-0x10000));
        }
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
          constexpr int kSum = decltype(r)::value * kVectors + decltype(j)::value;
          const Float p = V::negative_multiply_add(zero, V::floats(x[r]), sum[kSum]);
          totals[kSum] = V::multiply_add(p, V::as_floats(bits), totals[kSum]);
        });
      });
      x += Rows;
      if (!before_second) weights += kNBitsLineBytes;
    }
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRow = decltype(i)::value / kVectors;
      constexpr int kPanel = decltype(i)::value % kVectors / kParts;
      constexpr int kColumn = decltype(i)::value % kParts * V::kLanes;
      V::store(t.y + kRow * t.y_stride + kPanel * t.y_panel_stride + kColumn, totals[i],
               t.columns - kPanel * t.y_panel_stride - kColumn);
    });
  }

  template <int Rows, int Panels>
  [[gnu::always_inline]] static inline void add_line(const uint8_t* weights, int64_t panel_stride, const float* x,
                                                     Float* sum) {
    constexpr int kVectors = Panels * kParts;
    unrolled<kLaneCodes>([&](auto i) __attribute__((always_inline)) {
      const auto code_of = [&](auto j) __attribute__((always_inline)) {
        return code<decltype(i)::value>(V::load(weights + (j / kParts) * panel_stride + (j % kParts) * kPartBytes));
      };
      if constexpr (Rows == 1 || V::kEmbedsBroadcast) {
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          const Float q = code_of(j);
          unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
            constexpr int kSum = decltype(r)::value * kVectors + decltype(j)::value;
            sum[kSum] = V::multiply_add(V::floats(x[r * Chunk + i]), q, sum[kSum]);
          });
          // A broadcast inside the multiply-add is free on Zen 4, one of its own is not (4 rows x 2 panels: 92 instead
          // of 80 % of the peak): a pointer of unknown value keeps the compiler from sharing one among the panels.
          if constexpr (V::kEmbedsBroadcast && j + 1 < kVectors) asm("" : "+r"(x));
        });
      } else {
        Float q[kVectors];
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) { q[j] = code_of(j); });
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
          const Float v = V::floats(x[r * Chunk + i]);
          unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
            constexpr int kSum = decltype(r)::value * kVectors + decltype(j)::value;
            sum[kSum] = V::multiply_add(v, q[j], sum[kSum]);
          });
        });
      }
    });
  }

  // Code I of each lane, as q * 2^s.
  template <int I>
  [[gnu::always_inline]] static inline Float code(Int line) {
    if constexpr (I == kLaneCodes - 1) {
      return V::to_floats(V::template shift_right<32 - Bits>(line));
    } else {
      constexpr int kShift = I % 4 * 8 + I / 4 * 4;
      return V::to_floats(V::bit_and(line, V::ints(((1 << Bits) - 1) << kShift)));
    }
  }

  [[gnu::always_inline]] static inline Float zero_points(const NBitsPanels& form, const uint8_t* panel, int64_t b,
                                                         int part) {
    const uint8_t* zeros = panel + form.zeros_offset;
    const int64_t first = b * kNBitsPanel + part * V::kLanes;
    // These lines are a stream beside that of the codes: asks for the next panel's (one row, bfloat16 scales: 169
    // instead of 177 us; float32 zero points gain nothing).
    if (form.zeros == NBitsZeros::u8 && part == 0) {
      _mm_prefetch(reinterpret_cast<const char*>(zeros + form.panel_bytes + first), _MM_HINT_T0);
    }
    if (form.zeros == NBitsZeros::u8) return V::to_floats(V::load_bytes(zeros + first));
    if (form.zeros == NBitsZeros::f32) return V::as_floats(V::load(zeros + first * 4));
    return V::floats(Bits == 4 ? 8.0f : 128.0f);
  }
};

template <class V>
void float_product(const NBitsProductArgs& args) {
  constexpr int kShortChunk = 16;
  const bool short_blocks = args.weights.block < kNBitsChunk;
  if (args.weights.bits == 4) {
    short_blocks ? walk<FloatProduct<V, 4, kShortChunk>>(args) : walk<FloatProduct<V, 4, kNBitsChunk>>(args);
  } else {
    short_blocks ? walk<FloatProduct<V, 8, kShortChunk>>(args) : walk<FloatProduct<V, 8, kNBitsChunk>>(args);
  }
}

}  // namespace
}  // namespace quern::ops
