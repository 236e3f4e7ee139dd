// SPDX-License-Identifier: Apache-2.0
// Owns Gather: copies slices of a table that indices name. Does not own any arithmetic on what is copied.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/file_map.h"
#include "ops/context.h"
#include "ops/tensor.h"

namespace quern::ops {

// y[o, j, :] = data[o, index(j), :]  for o < outer, j < count; a slice `:` is `slice_bytes` long.
// Class exact. An index lies in [-extent, extent - 1], a negative one counts from the end.
// Nothing of data is read but the slices named, and nothing at all when an index is out of range.
// No pointer needs alignment. y overlaps neither data nor indices.
struct GatherParams {
  int64_t outer = 1;
  int64_t extent = 0;  // of the gathered axis
  int64_t count = 0;   // indices
  size_t slice_bytes = 0;
  DType index_dtype = DType::i64;  // i64 or i32
};

struct GatherArgs {
  const void* data = nullptr;
  const void* indices = nullptr;
  void* y = nullptr;
  const CopyBytes* copy = nullptr;  // not null: reads the slices of data, in place of this room
};

// Errors: bad_request for an index out of range, before anything is written; unsupported for another index type; those
// of args.copy.
// `where` is the place for errors.
Result<void> gather(const Context& ctx, const GatherParams& params, const GatherArgs& args, std::string_view where);

// data with `axis` replaced by the extents of indices. Errors: bad_request for an axis outside of
// [-rank, rank - 1] or a result rank above kMaxRank.
Result<Shape> gather_shape(const Shape& data, const Shape& indices, int64_t axis, std::string_view where);

// What runs on every machine, for reports.
inline constexpr std::string_view kGatherVariant = "gather_copy";

}  // namespace quern::ops
