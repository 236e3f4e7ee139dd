// SPDX-License-Identifier: Apache-2.0
// The size rules of Split and the copy of one piece.
#include "ops/split/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace quern::ops {
namespace {

// A copy below this size costs less than waking a worker.
constexpr size_t kBytesPerChunk = 64 * 1024;

}  // namespace

Result<void> split_evenly(int64_t extent, bool even, std::span<int64_t> sizes, std::string_view where) {
  const auto count = static_cast<int64_t>(sizes.size());
  QUERN_CHECK(count > 0, "a split has at least one piece");
  const int64_t piece = ceil_div(extent, count);
  const int64_t last = extent - piece * (count - 1);
  if (last < 0 || (even && last != piece)) {
    return bad_request(std::string(where),
                       fmt::format("extent {} cannot be cut into {} {}pieces", extent, count, even ? "equal " : ""));
  }
  std::fill(sizes.begin(), sizes.end(), piece);
  sizes.back() = last;
  return {};
}

Result<void> check_split_sizes(int64_t extent, std::span<const int64_t> sizes, std::string_view where) {
  int64_t left = extent;
  bool fits = true;
  for (int64_t size : sizes) {
    fits = fits && size >= 0 && size <= left;
    if (fits) left -= size;
  }
  if (fits && left == 0) return {};
  return bad_request(std::string(where), fmt::format("split sizes [{}] do not add up to the extent {} of the axis",
                                                     fmt::join(sizes, ", "), extent));
}

void split_copy(const Context& ctx, const Tensor& x, const SplitPiece& piece, void* y) {
  if (piece.outer == 0 || piece.size == 0 || piece.inner == 0) return;
  const auto element_bytes = static_cast<size_t>(bits_of(x.dtype) / 8);
  const size_t run = static_cast<size_t>(piece.size * piece.inner) * element_bytes;
  const size_t stride = static_cast<size_t>(piece.extent * piece.inner) * element_bytes;
  const auto* from = static_cast<const std::byte*>(x.data) + static_cast<size_t>(piece.offset) * element_bytes;
  auto* to = static_cast<std::byte*>(y);
  auto copy = [&](int64_t begin, int64_t end, int) {
    for (int64_t o = begin; o < end; o++) {
      std::memcpy(to + static_cast<size_t>(o) * run, from + static_cast<size_t>(o) * stride, run);
    }
  };
  const auto chunk = static_cast<int64_t>(std::max<size_t>(1, kBytesPerChunk / run));
  if (piece.outer <= chunk) {
    copy(0, piece.outer, 0);
  } else {
    ctx.pool->parallel_for(piece.outer, chunk, copy);
  }
  if (ctx.counters != nullptr) ctx.counters->bytes_copied += static_cast<size_t>(piece.outer) * run;
}

}  // namespace quern::ops
