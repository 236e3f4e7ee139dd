// SPDX-License-Identifier: Apache-2.0
// Owns what the SIMD files share: how a range of panels and rows is walked in tiles, and the bodies for 256-bit
// vectors. For files with instruction-set flags only; everything here is a template in an unnamed namespace, so each
// file has its own copy, made with its own flags.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/matmul_nbits/kernels.h"

namespace quern::ops {
namespace {

template <int I>
struct Index {
  static constexpr int value = I;
  constexpr operator int() const { return I; }  // NOLINT: implicit by intent
};

template <int I, int N, class F>
[[gnu::always_inline]] inline void unrolled_from(F& f) {
  if constexpr (I < N) {
    f(Index<I>{});
    unrolled_from<I + 1, N>(f);
  }
}

// f(0) ... f(N-1) with constant indices, so that arrays of vectors become registers. With a loop variable g++ 12 keeps
// such arrays in memory: 240-390 instead of 880 GOP/s for a tile of vpdpbusd.
template <int N, class F>
[[gnu::always_inline]] inline void unrolled(F&& f) {
  unrolled_from<0, N>(f);
}

// A tile of rows times panels that lie panel_stride apart.
struct NBitsTile {
  const uint8_t* weights;
  int64_t panel_stride;
  const uint8_t* rows;
  int64_t blocks;
  float* y;                 // row 0, first column of panel 0
  int64_t y_stride;         // floats between rows
  int64_t y_panel_stride;   // floats between panels
  int64_t columns;          // from the first column of panel 0 to the end of the range
  const uint8_t* prefetch;  // lines to ask for, walked with the blocks in all panels; null for none
  int prefetch_lines;       // a block
};

inline constexpr int kBlockLines = kNBitsBlockBytes / kNBitsLineBytes;

// How far ahead of itself a tile asks for weights when nobody else does: 4 blocks suffice for the short work of one
// row.
inline constexpr int kBlocksAheadOneRow = 4;
inline constexpr int kBlocksAhead = 8;

template <class Kernel, int Rows, int Panels>
void run_tile(const NBitsTile& tile, bool has_zero_points) {
  if (has_zero_points) {
    Kernel::template tile<Rows, Panels, true>(tile);
  } else {
    Kernel::template tile<Rows, Panels, false>(tile);
  }
}

// Cuts the panels from `first` on into `Panels` equal stretches and walks those side by side: that many long streams
// read memory faster than one (16 to 36 % on one thread). Returns the first panel that is left over.
template <class Kernel, int Panels, int MaxRows>
int64_t walk_streams(const NBitsProductArgs& p, int64_t first) {
  const int64_t length = (p.panels - first) / Panels;
  const int64_t tiles = (p.row_count + kNBitsTileRows - 1) / kNBitsTileRows;
  NBitsTile t;
  t.panel_stride = length * p.panel_bytes;
  t.blocks = p.blocks;
  t.y_stride = p.y_stride;
  t.y_panel_stride = length * kNBitsPanel;
  for (int64_t g = first; g < first + length; g++) {
    t.weights = p.weights + g * p.panel_bytes;
    t.columns = p.columns - g * kNBitsPanel;
    // One tile of rows asks for its own panels some blocks ahead. Several share out the lines of the next panels, so
    // that the requests are spread over the whole time that the present panels take.
    const int lines = static_cast<int>((kBlockLines + tiles - 1) / tiles);
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t row = i * kNBitsTileRows;
      t.rows = p.rows + row * p.blocks * kNBitsRowBlockBytes;
      t.y = p.y + row * p.y_stride + g * kNBitsPanel;
      t.prefetch_lines = i * lines < kBlockLines ? lines : 0;
      if (tiles == 1) {
        t.prefetch = t.weights + (p.row_count == 1 ? kBlocksAheadOneRow : kBlocksAhead) * kNBitsBlockBytes;
      } else {
        t.prefetch = t.weights + p.panel_bytes + i * lines * p.blocks * kNBitsLineBytes;
      }
      if constexpr (MaxRows == 1) {
        run_tile<Kernel, 1, Panels>(t, p.has_zero_points);
      } else {
        switch (p.row_count - row) {
          case 1: run_tile<Kernel, 1, Panels>(t, p.has_zero_points); break;
          case 2: run_tile<Kernel, 2, Panels>(t, p.has_zero_points); break;
          case 3: run_tile<Kernel, 3, Panels>(t, p.has_zero_points); break;
          default: run_tile<Kernel, 4, Panels>(t, p.has_zero_points); break;
        }
      }
    }
  }
  return first + length * Panels;
}

// Kernel has kTilePanels (panels of a tile of several rows), kOneRowPanels (of a single row) and
// tile<Rows, Panels, HasZeroPoints>(NBitsTile).
template <class Kernel>
void walk(const NBitsProductArgs& p) {
  if (p.row_count == 1) {
    const int64_t done = walk_streams<Kernel, Kernel::kOneRowPanels, 1>(p, 0);
    walk_streams<Kernel, 1, 1>(p, done);
    return;
  }
  int64_t done = 0;
  if constexpr (Kernel::kTilePanels > 1) done = walk_streams<Kernel, Kernel::kTilePanels, kNBitsTileRows>(p, done);
  walk_streams<Kernel, 1, kNBitsTileRows>(p, done);
}

// Asks for the next lines of every panel of a tile.
template <int Panels>
[[gnu::always_inline]] inline void prefetch_panels(const uint8_t* from, int64_t panel_stride, int lines) {
  for (int i = 0; i < lines; i++) {
    unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
      _mm_prefetch(reinterpret_cast<const char*>(from + j * panel_stride + i * kNBitsLineBytes), _MM_HINT_T0);
    });
  }
}

// ---- 256-bit vectors: a panel is two halves of 8 columns ----

// Dot: Sum zero(); Sum add(Sum, codes u8, activations s8), 8 times a block at most; __m256i total(Sum), 8 x int32.
template <class Dot>
struct Product256 {
  static constexpr int kOneRowPanels = 4;
  static constexpr int kTilePanels = 1;

  template <int Rows, int Panels, bool HasZeroPoints>
  static void tile(const NBitsTile& t) {
    constexpr int kRowBytes = Rows * kNBitsRowBlockBytes;
    __m256 acc[Panels * Rows * 2];
    unrolled<Panels * Rows * 2>([&](auto i) __attribute__((always_inline)) { acc[i] = _mm256_setzero_ps(); });
    const uint8_t* weights = t.weights;
    const uint8_t* zeros = t.weights + t.blocks * kNBitsBlockBytes;
    const uint8_t* rows = t.rows;
    const uint8_t* prefetch = t.prefetch;
    for (int64_t b = 0; b < t.blocks; b++) {
      prefetch_panels<Panels>(prefetch, t.panel_stride, t.prefetch_lines);
      prefetch += t.prefetch_lines * kNBitsLineBytes;
      unrolled<Panels>([&](auto j) __attribute__((always_inline)) {
        block<Rows, HasZeroPoints>(weights + j * t.panel_stride, zeros + j * t.panel_stride, rows, acc + j * Rows * 2);
      });
      weights += kNBitsBlockBytes;
      zeros += kNBitsPanel;
      rows += kRowBytes;
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
  template <int Rows, bool HasZeroPoints>
  [[gnu::always_inline]] static inline void block(const uint8_t* weights, const uint8_t* zeros, const uint8_t* rows,
                                                  __m256* acc) {
    const auto* codes = reinterpret_cast<const int32_t*>(rows);
    const auto* corrections = reinterpret_cast<const int32_t*>(rows + Rows * kNBitsBlock);
    const auto* scales = reinterpret_cast<const float*>(rows + Rows * (kNBitsBlock + 4));
    const __m256i low_nibbles = _mm256_set1_epi8(15);
    typename Dot::Sum sum[Rows * 2];
    unrolled<Rows * 2>([&](auto i) __attribute__((always_inline)) { sum[i] = Dot::zero(); });
    unrolled<8>([&](auto step) __attribute__((always_inline)) {
      constexpr int kStep = decltype(step)::value;
      __m256i half[2];
      unrolled<2>([&](auto h) __attribute__((always_inline)) {
        const uint8_t* line = weights + kStep / 2 * kNBitsLineBytes + h * 32;
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
        half[h] = _mm256_and_si256(kStep % 2 == 0 ? v : _mm256_srli_epi16(v, 4), low_nibbles);
      });
      unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
        const __m256i x = _mm256_set1_epi32(codes[r * 8 + kStep]);
        unrolled<2>([&](auto h)
                        __attribute__((always_inline)) { sum[r * 2 + h] = Dot::add(sum[r * 2 + h], half[h], x); });
      });
    });
    unrolled<Rows * 2>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRow = i / 2;
      constexpr int kHalf = i % 2;
      __m256i total = Dot::total(sum[i]);
      const __m256i correction = _mm256_set1_epi32(corrections[kRow]);
      if constexpr (HasZeroPoints) {
        // zero * -sum: both fit 16 bits, and the upper half of each zero is empty.
        const __m256i zero = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros + kHalf * 8)));
        total = _mm256_add_epi32(total, _mm256_madd_epi16(zero, _mm256_srai_epi32(correction, 3)));
      } else {
        total = _mm256_add_epi32(total, correction);
      }
      const __m256 weight_scale =
          _mm256_loadu_ps(reinterpret_cast<const float*>(weights + kNBitsCodeBytes) + kHalf * 8);
      const __m256 scale = _mm256_mul_ps(weight_scale, _mm256_set1_ps(scales[kRow]));
      acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, acc[i]);
    });
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

}  // namespace
}  // namespace quern::ops
