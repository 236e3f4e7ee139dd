// SPDX-License-Identifier: Apache-2.0
// Owns the address arithmetic of kernels.h's layouts for portable code (packing, the reference, tests). Files with
// instruction-set flags do their own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "ops/matmul_nbits/kernels.h"

namespace quern::ops {

// Bytes of the codes of one block of a panel.
inline int64_t nbits_code_bytes(int64_t block, int64_t bits) { return block * bits / 8 * kNBitsPanel; }

// Lines of scales and of zero points that lie before the codes of block b; with b = the number of blocks, of a panel.
inline int64_t nbits_scale_lines(bool bf16_scales, int64_t b) { return bf16_scales ? (b + 1) / 2 : b; }
inline int64_t nbits_zero_lines(NBitsZeros zeros, int64_t b) {
  return zeros == NBitsZeros::none ? 0 : zeros == NBitsZeros::f32 ? b : (b + 3) / 4;
}

// Where block b of a panel has its codes, its line of scales (with bf16 scales those of odd blocks are the high halves)
// and its 16 zero points.
struct NBitsBlockPlace {
  int64_t codes, scales, zeros;
};
inline NBitsBlockPlace nbits_block_place(const NBitsPanels& p, int64_t b) {
  const int64_t code_bytes = nbits_code_bytes(p.block, p.bits);
  const auto codes = [&](int64_t i) {
    const int64_t lines = nbits_scale_lines(p.bf16_scales, i) + nbits_zero_lines(p.zeros, i + 1);
    return i * code_bytes + lines * kNBitsLineBytes;
  };
  NBitsBlockPlace place;
  place.codes = codes(b);
  place.scales = codes(p.bf16_scales ? b / 2 * 2 : b) + code_bytes;
  place.zeros = p.zeros == NBitsZeros::u8 ? codes(b / 4 * 4) - kNBitsLineBytes + b % 4 * kNBitsPanel
                                          : place.codes - kNBitsLineBytes;
  return place;
}

// Byte of the code of k (within its block) and column, from the start of the block's codes; 4-bit codes with a high
// nibble say so.
struct NBitsCodePlace {
  int64_t byte;
  bool high;
};
inline NBitsCodePlace nbits_code_place(int64_t bits, int64_t k, int64_t column) {
  const int64_t k_per_line = 32 / bits;
  return {k / k_per_line * kNBitsLineBytes + column * 4 + k % 4, bits == 4 && k % 8 >= 4};
}

// s(k) of prepared float rows.
inline int nbits_shift(int64_t bits, int64_t k) {
  if (bits == 8) return static_cast<int>(8 * (k % 2));
  const auto position = static_cast<int>(8 * (k % 4) + (k % 8 >= 4 ? 4 : 0));
  return position >= 20 ? position - 12 : position;
}

inline int nbits_default_zero(int64_t bits) { return 1 << (bits - 1); }

inline int64_t nbits_s8_block_bytes(int64_t block) { return block + 8; }
inline int64_t nbits_f32_block_bytes(int64_t block) { return 4 * block + 4; }

// One tile of prepared rows: offsets from the first tile.
struct NBitsRowsPlace {
  int64_t height;  // rows of the tile
  int64_t row;     // of the row in it
  int64_t start;   // of the tile
  int64_t block;   // k of a block

  NBitsRowsPlace(int64_t row_index, int64_t row_count, int64_t blocks, int64_t block_k, int64_t block_bytes)
      : height(std::min<int64_t>(kNBitsTileRows, row_count - row_index / kNBitsTileRows * kNBitsTileRows)),
        row(row_index % kNBitsTileRows),
        start(row_index / kNBitsTileRows * kNBitsTileRows * blocks * block_bytes),
        block(block_k) {}

  int64_t s8_code(int64_t b, int64_t k) const { return s8_block(b) + row * block + k; }
  int64_t s8_correction(int64_t b) const { return s8_block(b) + height * block + row * 4; }
  int64_t s8_scale(int64_t b) const { return s8_block(b) + height * (block + 4) + row * 4; }
  int64_t f32_element(int64_t b, int64_t k) const {
    const int64_t chunk = std::min<int64_t>(block, kNBitsChunk);
    return f32_block(b) + (k / chunk * height * chunk + row * chunk + k % chunk) * 4;
  }
  int64_t f32_sum(int64_t b) const { return f32_block(b) + height * block * 4 + row * 4; }

 private:
  int64_t s8_block(int64_t b) const { return start + b * height * nbits_s8_block_bytes(block); }
  int64_t f32_block(int64_t b) const { return start + b * height * nbits_f32_block_bytes(block); }
};

}  // namespace quern::ops
