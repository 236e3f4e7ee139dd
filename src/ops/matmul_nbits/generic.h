// SPDX-License-Identifier: Apache-2.0
// Owns what the SIMD files share: how a range of panels and rows is walked in tiles. For files with instruction-set
// flags only; everything here is a template in an unnamed namespace, so each file has its own copy, made with its own
// flags.
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

// By these vpshufb makes float32 of a vector of scales: all of a lane, or its low or its high half as upper bits.
template <int Bytes>
struct alignas(Bytes) ScaleSelect {
  uint8_t bytes[3][Bytes];
};
constexpr int kWhole = 0;
constexpr int kLow = 1;
constexpr int kHigh = 2;
template <int Bytes>
constexpr ScaleSelect<Bytes> scale_select() {
  ScaleSelect<Bytes> s{};
  for (int i = 0; i < Bytes; i++) {
    s.bytes[kWhole][i] = static_cast<uint8_t>(i % 16);
    s.bytes[kLow][i] = static_cast<uint8_t>(i % 4 < 2 ? 0x80 : i % 16 - 2);
    s.bytes[kHigh][i] = static_cast<uint8_t>(i % 4 < 2 ? 0x80 : i % 16);
  }
  return s;
}

// A tile of rows times panels that lie panel_stride apart.
struct NBitsTile {
  const NBitsPanels* form;  // blocks, block, bits, zeros, bf16_scales
  const uint8_t* weights;   // panel 0
  int64_t panel_stride;
  const uint8_t* rows;
  float* y;                 // row 0, first column of panel 0
  int64_t y_stride;         // floats between rows
  int64_t y_panel_stride;   // floats between panels
  int64_t columns;          // from the first column of panel 0 to the end of the range
  const uint8_t* prefetch;  // lines to ask for, walked with the blocks in all panels, by kernels that gain by it
  int prefetch_lines;       // a block
  int64_t ahead;            // bytes by which `prefetch` is ahead where this tile is the only one, else 0
};

// How far ahead of itself a tile asks for weights when nobody else does, in bytes.
inline constexpr int64_t kBytesAheadOneRow = 1280;
inline constexpr int64_t kBytesAhead = 2560;

// Tiles that share a panel from which it pays to write it with a byte for each code first, and the room for that.
inline constexpr int64_t kExpandTiles = 8;
inline constexpr int kExpandedBytes = 64 << 10;

// `rows` <= 4 are left.
template <class Kernel, int Panels>
[[gnu::always_inline]] inline void tile_of_rows(const NBitsTile& t, int64_t rows) {
  switch (rows) {
    case 1: Kernel::template tile<1, Panels>(t); break;
    case 2: Kernel::template tile<2, Panels>(t); break;
    case 3: Kernel::template tile<3, Panels>(t); break;
    default: Kernel::template tile<4, Panels>(t); break;
  }
}

// Cuts the panels from `first` on into `Panels` equal stretches and walks those side by side: that many long streams
// read memory faster than one (16 to 36 % on one thread). Returns the first panel that is left over.
template <class Kernel, int Panels, int MaxRows>
int64_t walk_streams(const NBitsProductArgs& p, int64_t first) {
  const NBitsPanels& w = p.weights;
  const int64_t length = (w.panels - first) / Panels;
  const int64_t tiles = (p.row_count + kNBitsTileRows - 1) / kNBitsTileRows;
  const int64_t row_bytes = w.blocks * Kernel::row_block_bytes(w.block);
  const int block_lines = static_cast<int>((w.panel_bytes / w.blocks + kNBitsLineBytes - 1) / kNBitsLineBytes);
  NBitsTile t;
  t.form = &w;
  t.panel_stride = length * w.panel_bytes;
  t.y_stride = p.y_stride;
  t.y_panel_stride = length * kNBitsPanel;
  constexpr bool kMayExpand = MaxRows > 1 && Panels == 1 && Kernel::kExpands;
  alignas(64) uint8_t expanded[kMayExpand ? kExpandedBytes : 1];
  for (int64_t g = first; g < first + length; g++) {
    const uint8_t* panel = w.data + g * w.panel_bytes;
    bool expands = false;
    if constexpr (kMayExpand) expands = tiles >= kExpandTiles && Kernel::expand(w, panel, expanded);
    t.weights = expands ? expanded : panel;
    t.columns = w.columns - g * kNBitsPanel;
    // One tile of rows asks for its own panels some way ahead. Several share out the lines of the next panels, so that
    // the requests are spread over the whole time that the present panels take.
    const int lines = static_cast<int>((block_lines + tiles - 1) / tiles);
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t row = i * kNBitsTileRows;
      t.rows = p.rows + row * row_bytes;
      t.y = p.y + row * p.y_stride + g * kNBitsPanel;
      t.prefetch_lines = i * lines < block_lines ? lines : 0;
      t.ahead = 0;
      if (tiles == 1) {
        t.ahead = p.row_count == 1 ? kBytesAheadOneRow : kBytesAhead;
        t.prefetch = panel + t.ahead;
      } else {
        t.prefetch = panel + w.panel_bytes + i * lines * w.blocks * kNBitsLineBytes;
      }
      if constexpr (MaxRows == 1) {
        Kernel::template tile<1, Panels>(t);
      } else if (kMayExpand && expands) {
        if constexpr (kMayExpand) tile_of_rows<typename Kernel::Expanded, Panels>(t, p.row_count - row);
      } else {
        tile_of_rows<Kernel, Panels>(t, p.row_count - row);
      }
    }
  }
  return first + length * Panels;
}

// Kernel has kTilePanels (panels of a tile of several rows), kOneRowPanels (of a single row), row_block_bytes(block)
// (bytes of a prepared row and block) and tile<Rows, Panels>(NBitsTile).
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

}  // namespace
}  // namespace quern::ops
