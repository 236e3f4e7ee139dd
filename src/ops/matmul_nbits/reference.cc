// SPDX-License-Identifier: Apache-2.0
// The formula of matmul_nbits.h, element by element. Float32 operations in the documented order are part of the
// contract, so there are no wider sums here; test.cc holds this against hand-written numbers and an independent double
// form.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/matmul_nbits/kernels.h"

namespace quern::ops {
namespace {

template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
void store(uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// The `height` rows of tile `tile`, block by block.
struct TileView {
  int64_t height;
  int64_t offset;

  TileView(int64_t tile, int64_t row_count, int64_t blocks)
      : height(std::min<int64_t>(kNBitsTileRows, row_count - tile * kNBitsTileRows)),
        offset(tile * kNBitsTileRows * blocks * kNBitsRowBlockBytes) {}

  int64_t block(int64_t b) const { return offset + b * height * kNBitsRowBlockBytes; }
  int64_t codes(int64_t b, int64_t row) const { return block(b) + row * kNBitsBlock; }
  int64_t correction(int64_t b, int64_t row) const { return block(b) + height * kNBitsBlock + row * 4; }
  int64_t scale(int64_t b, int64_t row) const { return block(b) + height * (kNBitsBlock + 4) + row * 4; }
};

struct BlockScales {
  float scale;    // sa
  float inverse;  // 127 / amax
};

BlockScales block_scales(const float* x, int64_t count) {
  float amax = 0;
  for (int64_t i = 0; i < count; i++) {
    // A comparison would skip a NaN.
    if (!std::isfinite(x[i])) return {std::numeric_limits<float>::quiet_NaN(), 0};
    amax = std::max(amax, std::fabs(x[i]));
  }
  if (amax == 0) return {0, 0};
  const float inverse = 127.0f / amax;
  return {amax / 127.0f, std::isinf(inverse) ? 0 : inverse};
}

int code_of(const uint8_t* block, int64_t column, int64_t k) {
  const uint8_t byte = block[k / 8 * kNBitsLineBytes + column * 4 + k % 4];
  return k % 8 < 4 ? byte & 15 : byte >> 4;
}

}  // namespace

void quantize_rows_f32_s8_reference(const NBitsQuantizeArgs& args) noexcept {
  const int64_t blocks = (args.k + kNBitsBlock - 1) / kNBitsBlock;
  for (int64_t row = 0; row < args.row_count; row++) {
    const TileView tile(row / kNBitsTileRows, args.row_count, blocks);
    const int64_t r = row % kNBitsTileRows;
    for (int64_t b = 0; b < blocks; b++) {
      const float* x = args.x + row * args.k + b * kNBitsBlock;
      const int64_t count = std::min<int64_t>(kNBitsBlock, args.k - b * kNBitsBlock);
      const BlockScales scales = block_scales(x, count);
      int32_t sum = 0;
      for (int64_t i = 0; i < kNBitsBlock; i++) {
        int8_t code = 0;
        if (i < count && scales.inverse != 0) code = static_cast<int8_t>(std::nearbyint(x[i] * scales.inverse));
        store(args.out + tile.codes(b, r) + i, code);
        sum += code;
      }
      store(args.out + tile.correction(b, r), -kNBitsDefaultZero * sum);
      store(args.out + tile.scale(b, r), scales.scale);
    }
  }
}

void matmul_nbits_s8_u4_reference(const NBitsProductArgs& args) noexcept {
  for (int64_t row = 0; row < args.row_count; row++) {
    const TileView tile(row / kNBitsTileRows, args.row_count, args.blocks);
    const int64_t r = row % kNBitsTileRows;
    for (int64_t column = 0; column < args.columns; column++) {
      const uint8_t* panel = args.weights + column / kNBitsPanel * args.panel_bytes;
      const int64_t c = column % kNBitsPanel;
      float y = 0;
      for (int64_t b = 0; b < args.blocks; b++) {
        const uint8_t* block = panel + b * kNBitsBlockBytes;
        const int zero =
            args.has_zero_points ? panel[args.blocks * kNBitsBlockBytes + b * kNBitsPanel + c] : kNBitsDefaultZero;
        int32_t sum = 0;
        for (int64_t k = 0; k < kNBitsBlock; k++) {
          sum += load<int8_t>(args.rows + tile.codes(b, r) + k) * (code_of(block, c, k) - zero);
        }
        const auto weight_scale = load<float>(block + kNBitsCodeBytes + c * 4);
        y = std::fma(static_cast<float>(sum), weight_scale * load<float>(args.rows + tile.scale(b, r)), y);
      }
      args.y[row * args.y_stride + column] = y;
    }
  }
}

}  // namespace quern::ops
