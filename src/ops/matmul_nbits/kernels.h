// SPDX-License-Identifier: Apache-2.0
// Owns the two memory layouts that packing, quantization and products share, and what a kernel is given. Plain data
// only: files with instruction-set flags include this, so it has no functions and no other quern headers.
#pragma once

#include <cstdint>

namespace quern::ops {

// Packed weights. Columns lie in panels of 16, the last one padded with zero codes and zero scales. A panel has its
// k-blocks of 32 one after the other, 320 bytes each:
//   256 bytes of codes: the 64-byte line j (0..3) has, for each of the 16 columns, 4 bytes whose low nibbles are the
//                       codes of k = 8j..8j+3 and whose high nibbles are those of k = 8j+4..8j+7
//   64 bytes:           16 float32 scales
// and, for weights with zero points only, after its last block 16 bytes (one zero point a column) for each block,
// padded to a multiple of 64 bytes. Panels start on 64-byte boundaries. Other forms fit beside this one: scales that
// are exact in bfloat16 make blocks of 288 bytes, a larger block size repeats the code lines before the scales, and
// 8-bit codes take twice the lines.
inline constexpr int kNBitsBlock = 32;
inline constexpr int kNBitsPanel = 16;
inline constexpr int kNBitsLineBytes = 64;
inline constexpr int kNBitsCodeBytes = kNBitsBlock * kNBitsPanel / 2;
inline constexpr int kNBitsBlockBytes = kNBitsCodeBytes + kNBitsPanel * 4;

// Quantized rows. Rows lie in tiles of 4; a last tile has the 1 to 3 rows that are left. A tile of h rows has its
// k-blocks one after the other, h * 40 bytes each: h * 32 int8 codes (row by row), h int32 corrections
// (-8 * sum of the row's codes of the block), h float32 scales. Codes past the end of a row are zero.
inline constexpr int kNBitsTileRows = 4;
inline constexpr int kNBitsRowBlockBytes = kNBitsBlock + 4 + 4;
inline constexpr int kNBitsDefaultZero = 8;

// Quantizes `row_count` contiguous rows of k floats into tiles at `out`.
struct NBitsQuantizeArgs {
  const float* x;
  int64_t row_count;
  int64_t k;
  uint8_t* out;
};

// Multiplies row_count quantized rows (from the start of a tile) with consecutive panels, and writes `columns` columns
// of every row: all columns of the panels but those that pad the last one.
struct NBitsProductArgs {
  const uint8_t* weights;  // first panel
  const uint8_t* rows;     // first tile
  float* y;                // row 0, first column of the first panel
  int64_t y_stride;        // floats from a row of y to the next
  int64_t row_count;
  int64_t panels;
  int64_t panel_bytes;
  int64_t blocks;   // of a panel
  int64_t columns;  // more than (panels - 1) * 16, at most panels * 16
  bool has_zero_points;
};

}  // namespace quern::ops
