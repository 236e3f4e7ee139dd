// SPDX-License-Identifier: Apache-2.0
// Owns what a variant of rms_norm is called with. No functions: files of several instruction sets include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// Rows [row_begin, row_end) of the contract in rms_norm.h; row i of x starts at
// (i / inner) * outer_stride + (i % inner) * inner_stride. No pointer needs alignment. skip, bias and residual may be
// null.
struct RmsNormKernelArgs {
  const float* x;
  int64_t inner, inner_stride, outer_stride;
  const float* gamma;
  const float* skip;
  int64_t skip_rows;
  const float* bias;
  float* y;
  float* residual;
  int64_t row_begin, row_end, n;
  float epsilon;
};

}  // namespace quern::ops
