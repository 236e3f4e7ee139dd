// SPDX-License-Identifier: Apache-2.0
// Owns the memory layouts that packing, preparation of rows and products share, and what a kernel is given. Plain data
// only: files with instruction-set flags include this, so it has no functions and no other quern headers.
#pragma once

#include <cstdint>

namespace quern::ops {

// Packed weights. Columns lie in panels of 16, the last one padded with zero codes and zero scales. A panel is a
// sequence of 64-byte lines in the order in which a product reads them. It has its k-blocks of 16, 32, 64, 128 or 256
// one after the other; for block b:
//   zero points u8:  where b is a multiple of 4, one line with those of blocks b..b+3, 16 bytes each
//   zero points f32: one line
//   codes, 4 bytes a column in each line:
//     4 bits: line j has, for each column, bytes whose low nibbles are the codes of k = 8j..8j+3 and whose high nibbles
//             are those of k = 8j+4..8j+7
//     8 bits: line j has the codes of k = 4j..4j+3
//   scales float32:  one line
//   scales bfloat16: where b is even, one line for blocks b and b+1: the 32-bit lane of a column has the scale of b in
//                    its low half and that of b+1 in its high half
// Codes past the end of K may be anything: they meet zeros. Panels start on 64-byte boundaries.
inline constexpr int kNBitsPanel = 16;
inline constexpr int kNBitsLineBytes = 64;

enum class NBitsZeros : uint8_t {
  none,  // 8 for 4-bit codes, 128 for 8-bit ones
  u8,
  f32,  // product of float rows only
};

struct NBitsPanels {
  const uint8_t* data;  // first panel
  int64_t panels;
  int64_t panel_bytes;
  int64_t columns;  // more than (panels - 1) * 16, at most panels * 16
  int64_t blocks;   // of a panel
  int64_t block;    // k of a block
  int64_t bits;     // 4 or 8
  NBitsZeros zeros;
  bool bf16_scales;
};

// Prepared rows lie in tiles of 4; a last tile has the 1 to 3 rows that are left. A tile of h rows has its k-blocks
// one after the other:
//   s8:  h * block int8 codes (row by row), h int32 corrections (-8 * sum of the row's codes of the block), h float32
//        scales
//   f32: for each chunk of 32 k (16 where the block is 16), h * chunk float32 (row by row); then the h sums of the
//        block, k in order. An element is x[k] * 2^-s(k). With p the position of code k in its 32-bit lane (4 bits:
//        8 (k mod 4), and 4 more where k mod 8 >= 4; 8 bits: 8 (k mod 4)), s is p where the kernel takes the code where
//        it lies, and less where it shifts the lane down first: 4 bits: p - 12 for p >= 20; 8 bits: p - 16 for p >= 16.
// Elements past the end of a row are zero.
inline constexpr int kNBitsTileRows = 4;
inline constexpr int kNBitsChunk = 32;

// Prepares `row_count` contiguous rows of k floats into tiles at `out`.
struct NBitsRowsArgs {
  const float* x;
  int64_t row_count;
  int64_t k;
  int64_t block;
  int64_t bits;  // of the codes they will meet; read for f32 rows only
  uint8_t* out;
};

// Multiplies row_count prepared rows (from the start of a tile) with consecutive panels, and writes `columns` columns
// of every row.
struct NBitsProductArgs {
  NBitsPanels weights;
  const uint8_t* rows;  // first tile
  float* y;             // row 0, first column of the first panel
  int64_t y_stride;     // floats from a row of y to the next
  int64_t row_count;
};

}  // namespace quern::ops
