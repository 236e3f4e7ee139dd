// SPDX-License-Identifier: Apache-2.0
// Owns what the variants of hyper_mix are called with: one row each of the contract in hyper_mix.h. No pointer needs
// alignment. No functions: files of several instruction sets include it.
#pragma once

#include <cstdint>

namespace quern::ops {

struct HyperGateKernelArgs {
  void* a;
  int64_t rank;
  int32_t streams;
};

struct HyperMixKernelArgs {
  const void* normed;
  const void* gate_logits;
  void* out;
  int64_t hidden;
  int32_t streams;
};

struct HyperScatterKernelArgs {
  void* x;
  const void* y;
  const void* inject_logits;
  int64_t hidden;
  int32_t streams;
};

using HyperGateKernel = void(const HyperGateKernelArgs&) noexcept;
using HyperMixKernel = void(const HyperMixKernelArgs&) noexcept;
using HyperScatterKernel = void(const HyperScatterKernelArgs&) noexcept;

}  // namespace quern::ops
