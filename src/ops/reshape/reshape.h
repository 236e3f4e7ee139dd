// SPDX-License-Identifier: Apache-2.0
// Owns Reshape: the rule that turns a requested shape into extents, and when the result can lie on the storage of the
// input. Class exact: elements keep their row-major order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/tensor.h"

namespace quern::ops {

// Entry 0 takes the extent of the input at the same place (with allow_zero: is zero), one entry may be -1 and takes
// what is left. Errors: bad_request, with the shapes seen, when the entries cannot hold the input's elements, leave -1
// open (the others' product is 0), repeat -1, are below -1, or combine 0 and -1 under allow_zero.
Result<Shape> reshape_shape(const Shape& input, std::span<const int64_t> request, bool allow_zero,
                            std::string_view where);

struct ReshapedRows {
  RowLayout layout;
  bool contiguous = true;
};

// How `shape` (of the same number of elements) lies on the storage of x, starting at x's first element. Nothing when
// the rows of `shape` cross a gap of x's layout or leave rows that no RowLayout describes.
std::optional<ReshapedRows> reshape_rows(const Tensor& x, const Shape& shape);

// Copies x, of any layout, to the contiguous y and counts the bytes.
void reshape_copy(const Context& ctx, const Tensor& x, void* y);

}  // namespace quern::ops
