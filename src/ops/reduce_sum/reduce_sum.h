// SPDX-License-Identifier: Apache-2.0
// Owns ReduceSum: sums over chosen axes. Does not own any other reduction.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/tensor.h"

namespace quern::ops {

// y[kept] = sum over the reduced axes of x. A sum over nothing is 0.
// int64 and int32 are exact modulo 2^64 and 2^32. float32 is summed in float64 in row-major order and rounded once:
// within eps_f32 / 2 of the exact sum, plus elements * eps_f64 * sum|x|. Class exact for integers, stable for float32.
// x is contiguous; y does not overlap it. No pointer needs alignment.
struct ReduceSumParams {
  DType dtype = DType::f32;  // f32, i64 or i32
  Shape shape;               // of x
  uint32_t axes = 0;         // bit i set: dimension i is reduced
};

struct ReduceSumArgs {
  const void* x = nullptr;
  void* y = nullptr;
};

bool reduce_sum_supported(DType dtype);

// Errors: unsupported for another element type. `where` is the place for errors.
Result<void> reduce_sum(const Context& ctx, const ReduceSumParams& params, const ReduceSumArgs& args,
                        std::string_view where);

// The bit set of `axes` (negative ones count from the end, repeated ones count once).
// Errors: bad_request for an axis outside of [-rank, rank - 1].
Result<uint32_t> reduced_axes(const Shape& shape, std::span<const int64_t> axes, std::string_view where);

}  // namespace quern::ops
