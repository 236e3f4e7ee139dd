// SPDX-License-Identifier: Apache-2.0
// The formulas of matmul_nbits.h, element by element. Float32 operations in the documented order are part of the
// contract, so there are no wider sums here; test.cc holds this against hand-written numbers and an independent double
// form.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/matmul_nbits/layout.h"

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

// One block of one column.
struct Column {
  const NBitsPanels& weights;
  const uint8_t* panel;
  int64_t c;

  Column(const NBitsPanels& w, int64_t column)
      : weights(w), panel(w.data + column / kNBitsPanel * w.panel_bytes), c(column % kNBitsPanel) {}

  int code(int64_t b, int64_t k) const {
    const NBitsCodePlace place = nbits_code_place(weights.bits, k, c);
    const uint8_t byte = panel[nbits_block_place(weights, b).codes + place.byte];
    if (weights.bits == 8) return byte;
    return place.high ? byte >> 4 : byte & 15;
  }
  float scale(int64_t b) const {
    const auto bits = load<uint32_t>(panel + nbits_block_place(weights, b).scales + c * 4);
    float value;
    const uint32_t as_float = !weights.bf16_scales ? bits : b % 2 == 0 ? bits << 16 : bits & 0xffff0000u;
    std::memcpy(&value, &as_float, sizeof value);
    return value;
  }
  int integer_zero(int64_t b) const {
    if (weights.zeros == NBitsZeros::none) return nbits_default_zero(weights.bits);
    return panel[nbits_block_place(weights, b).zeros + c];
  }
  float float_zero(int64_t b) const { return load<float>(panel + nbits_block_place(weights, b).zeros + c * 4); }
  // The nearest code, also of a floating-point zero point.
  int whole_zero(int64_t b) const {
    if (weights.zeros != NBitsZeros::f32) return integer_zero(b);
    const float most = weights.bits == 4 ? 15 : 255;
    return static_cast<int>(std::nearbyint(std::fmin(std::fmax(float_zero(b), 0.0f), most)));
  }
};

}  // namespace

void quantize_rows_f32_s8_reference(const NBitsRowsArgs& args) noexcept {
  const int64_t blocks = ceil_div(args.k, args.block);
  for (int64_t row = 0; row < args.row_count; row++) {
    const NBitsRowsPlace place(row, args.row_count, blocks, args.block, nbits_s8_block_bytes(args.block));
    for (int64_t b = 0; b < blocks; b++) {
      const float* x = args.x + row * args.k + b * args.block;
      const int64_t count = std::min(args.block, args.k - b * args.block);
      const BlockScales scales = block_scales(x, count);
      int32_t sum = 0;
      for (int64_t i = 0; i < args.block; i++) {
        int8_t code = 0;
        if (i < count && scales.inverse != 0) code = static_cast<int8_t>(std::nearbyint(x[i] * scales.inverse));
        store(args.out + place.s8_code(b, i), code);
        sum += code;
      }
      store(args.out + place.s8_correction(b), -8 * sum);
      store(args.out + place.s8_scale(b), scales.scale);
    }
  }
}

void matmul_nbits_s8_reference(const NBitsProductArgs& args) noexcept {
  const NBitsPanels& w = args.weights;
  for (int64_t row = 0; row < args.row_count; row++) {
    const NBitsRowsPlace place(row, args.row_count, w.blocks, w.block, nbits_s8_block_bytes(w.block));
    for (int64_t n = 0; n < w.columns; n++) {
      const Column column(w, n);
      float y = 0;
      for (int64_t b = 0; b < w.blocks; b++) {
        int32_t sum = 0;
        for (int64_t k = 0; k < w.block; k++) {
          sum += load<int8_t>(args.rows + place.s8_code(b, k)) * (column.code(b, k) - column.integer_zero(b));
        }
        y = std::fma(static_cast<float>(sum), column.scale(b) * load<float>(args.rows + place.s8_scale(b)), y);
      }
      args.y[row * args.y_stride + n] = y;
    }
  }
}

void arrange_rows_f32_reference(const NBitsRowsArgs& args) noexcept {
  const int64_t blocks = ceil_div(args.k, args.block);
  for (int64_t row = 0; row < args.row_count; row++) {
    const NBitsRowsPlace place(row, args.row_count, blocks, args.block, nbits_f32_block_bytes(args.block));
    for (int64_t b = 0; b < blocks; b++) {
      float sum = 0;
      for (int64_t i = 0; i < args.block; i++) {
        const int64_t k = b * args.block + i;
        const float x = k < args.k ? args.x[row * args.k + k] : 0.0f;
        const float power = 1.0f / static_cast<float>(int64_t{1} << nbits_shift(args.bits, i));
        store(args.out + place.f32_element(b, i), x * power);
        sum += x;
      }
      store(args.out + place.f32_sum(b), sum);
    }
  }
}

void matmul_nbits_f32_reference(const NBitsProductArgs& args) noexcept {
  const NBitsPanels& w = args.weights;
  for (int64_t row = 0; row < args.row_count; row++) {
    const NBitsRowsPlace place(row, args.row_count, w.blocks, w.block, nbits_f32_block_bytes(w.block));
    for (int64_t n = 0; n < w.columns; n++) {
      const Column column(w, n);
      float y = 0;
      for (int64_t b = 0; b < w.blocks; b++) {
        float p = 0;
        for (int64_t k = 0; k < w.block; k++) {
          const int64_t centred = column.code(b, k) - column.whole_zero(b);
          const auto shifted = static_cast<float>(centred * (int64_t{1} << nbits_shift(w.bits, k)));
          p = std::fma(load<float>(args.rows + place.f32_element(b, k)), shifted, p);
        }
        if (w.zeros == NBitsZeros::f32) {
          const float offset = static_cast<float>(column.whole_zero(b)) - column.float_zero(b);
          p = std::fma(offset, load<float>(args.rows + place.f32_sum(b)), p);
        }
        y = std::fma(p, column.scale(b), y);
      }
      args.y[row * args.y_stride + n] = y;
    }
  }
}

}  // namespace quern::ops
