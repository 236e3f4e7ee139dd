// SPDX-License-Identifier: Apache-2.0
// Owns the scalar activations that rooms share, in float32 with the operations in PyTorch's order, so that a bfloat16
// result rounds alike. Not for files of an instruction set.
#pragma once

#include <cmath>
#include <cstdint>

namespace quern::ops {

enum class Activation : uint8_t { sigmoid, silu };

// exp overflows to infinity below -88.7, which gives the limit 0.
inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
inline float silu(float x) { return x / (1 + std::exp(-x)); }
inline float activate(Activation f, float x) { return f == Activation::silu ? silu(x) : sigmoid(x); }

// log(1 + exp(x)); above 20 the difference to x is below half an ulp, and exp need not be taken.
inline float softplus(float x) {
  constexpr float kLinearAbove = 20;
  return x > kLinearAbove ? x : std::log1p(std::exp(x));
}

}  // namespace quern::ops
