// SPDX-License-Identifier: Apache-2.0
// Owns the rotary embedding of qwen4_exp: its frequencies, the table of a call's positions, and the rotation of heads
// with its roundings. Does not own the rotation inside GroupQueryAttention (gqa_attention).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/tensor.h"

namespace quern::ops {

// f[i] = 1 / theta^(2i / rotary), i < rotary / 2 = frequencies.size(), in float32: the exponent, the power (rounded
// from a float64 one) and the quotient are rounded one after the other, which gives the bit patterns of PyTorch.
void rope_frequencies(double theta, std::span<float> frequencies);

// cos and sin, [positions][frequencies], of fl32(position * frequency), each rounded to `type` and held as float32. A
// position becomes a float32 first. Text has equal positions in all three components of mRoPE, so there is one.
struct RopeTable {
  DType type = DType::f32;
  std::span<const int64_t> positions;
  std::span<const float> frequencies;
  float* cos = nullptr;
  float* sin = nullptr;
};
void fill_rope_table(const RopeTable& table);

// For each head of a token, with h = rotary / 2 and i < h, the rest of a head unchanged:
//   y[i]     = r(r(x[i]     * cos[i]) + r(-x[i + h] * sin[i]))
//   y[i + h] = r(r(x[i + h] * cos[i]) + r( x[i]     * sin[i]))
// Source: apply_rotary_pos_emb of transformers 5.17.
//
// x and y are float32 or both bfloat16; arithmetic is float32, r rounds to the type (nothing for float32). y may be x
// in the same layout, otherwise they do not overlap. Class stable.
struct PartialRopeParams {
  DType type = DType::f32;  // f32 or bf16
  int64_t tokens = 0;
  int32_t heads = 0;      // >= 1
  int32_t head_size = 0;  // >= 1
  int32_t rotary = 0;     // even, at most head_size
};

struct PartialRopeArgs {
  const void* x = nullptr;  // row t * heads + h is head h of token t
  RowLayout x_layout;
  const float* cos = nullptr;  // [tokens][rotary / 2]
  const float* sin = nullptr;
  void* y = nullptr;
  RowLayout y_layout;
};

// Errors: unsupported for another type, bad_request for params outside of the contract. `where` is the place for
// errors.
Result<void> partial_rope(const Context& ctx, const PartialRopeParams& params, const PartialRopeArgs& args,
                          std::string_view where);

// What runs on every machine, for reports.
inline constexpr std::string_view kPartialRopeVariant = "partial_rope_reference";

}  // namespace quern::ops
