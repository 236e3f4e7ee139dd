// SPDX-License-Identifier: Apache-2.0
// Owns Split: cutting a tensor along one axis, as views of its storage or as copies. Class exact.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "ops/context.h"
#include "ops/tensor.h"

namespace quern::ops {

// Where one piece of a contiguous tensor lies: `outer` runs of size * inner elements, the first one `offset` elements
// from the start, each extent * inner elements after the one before it.
struct SplitPiece {
  int64_t outer = 1;
  int64_t extent = 0;  // of the axis in the whole tensor
  int64_t inner = 1;
  int64_t offset = 0;
  int64_t size = 0;  // of the axis in the piece
};

// `count` pieces of an axis of the given extent: ceil(extent / count) each and the last one smaller (`even` false), or
// all of one size (`even` true). At most `sizes.size()` pieces. Errors: bad_request when that does not come out.
Result<void> split_evenly(int64_t extent, bool even, std::span<int64_t> sizes, std::string_view where);

// Errors: bad_request unless every size is >= 0 and they add up to `extent`.
Result<void> check_split_sizes(int64_t extent, std::span<const int64_t> sizes, std::string_view where);

// Copies one piece to the contiguous y and counts the bytes.
void split_copy(const Context& ctx, const Tensor& x, const SplitPiece& piece, void* y);

}  // namespace quern::ops
