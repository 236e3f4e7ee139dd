// SPDX-License-Identifier: Apache-2.0
// Owns Cast: conversion between element types, element by element. Does not own range checks on behalf of consumers.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"

namespace quern::ops {

// y[i] = (to) x[i]  between float32, int64 and int32, and the identity of each.
// int64 -> int32 keeps the low 32 bits. An integer becomes the nearest float32 (ties to even). A float32 is truncated
// toward zero; NaN and what does not fit become the lowest integer (the standard leaves them open).
// Class exact. No pointer needs alignment. y is x, or does not overlap it; y is x only between types of one size.
struct CastParams {
  int64_t count = 0;
  DType from = DType::f32;
  DType to = DType::f32;
};

struct CastArgs {
  const void* x = nullptr;
  void* y = nullptr;
};

bool cast_supported(DType from, DType to);

// Errors: unsupported for a pair of types that cast_supported() refuses. `where` is the place for errors.
Result<void> cast(const Context& ctx, const CastParams& params, const CastArgs& args, std::string_view where);

}  // namespace quern::ops
