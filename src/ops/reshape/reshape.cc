// SPDX-License-Identifier: Apache-2.0
// The shape rule, the view rule and the copy for what the view rule refuses.
#include "ops/reshape/reshape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace quern::ops {
namespace {

// A copy below this size costs less than waking a worker.
constexpr size_t kBytesPerChunk = 64 * 1024;

}  // namespace

Result<Shape> reshape_shape(const Shape& input, std::span<const int64_t> request, bool allow_zero,
                            std::string_view where) {
  const auto refuse = [&](std::string why) {
    return bad_request(std::string(where),
                       fmt::format("cannot reshape {} to [{}]: {}", input.to_string(), fmt::join(request, ", "), why));
  };
  if (request.size() > static_cast<size_t>(kMaxRank)) return refuse(fmt::format("more than {} dimensions", kMaxRank));
  const auto total = input.checked_elements();
  if (!total) return refuse("the input's extents overflow");

  Shape out;
  int open = -1;
  bool literal_zero = false;
  for (int i = 0; i < static_cast<int>(request.size()); i++) {
    int64_t d = request[static_cast<size_t>(i)];
    if (d < -1) return refuse(fmt::format("entry {} is below -1", d));
    if (d == -1) {
      if (open >= 0) return refuse("-1 occurs twice");
      open = i;
      d = 1;
    } else if (d == 0 && !allow_zero) {
      if (i >= input.rank()) return refuse(fmt::format("entry {} is 0 but the input has no such dimension", i));
      d = input[i];
    } else if (d == 0) {
      literal_zero = true;
    }
    out.push_back(d);
  }
  if (literal_zero && open >= 0) return refuse("0 and -1 exclude each other under allowzero");
  const auto named = out.checked_elements();
  if (!named) return refuse("the requested extents overflow");
  if (open >= 0) {
    if (*named == 0) return refuse("the product of the other entries is 0, so -1 has no value");
    if (*total % *named != 0) return refuse(fmt::format("{} elements are not a multiple of {}", *total, *named));
    out[open] = *total / *named;
  } else if (*named != *total) {
    return refuse(fmt::format("{} elements do not fill {}", *total, *named));
  }
  return out;
}

std::optional<ReshapedRows> reshape_rows(const Tensor& x, const Shape& shape) {
  if (x.contiguous || x.shape.checked_elements().value_or(0) <= 1) return ReshapedRows{};
  const int64_t width = x.shape.back();
  const int64_t row_width = shape.rank() == 0 ? 1 : shape.back();
  RowLayout rows = x.layout;
  // Rows that follow each other without a gap are one run.
  const bool joined = rows.inner > 1 && rows.inner_stride == width;
  const int64_t run = rows.inner == 1 ? width : joined ? rows.inner * width : 0;
  if (run > 0) {
    const int64_t runs = x.shape.rows() * width / run;
    if (runs <= 1 || rows.outer_stride == run) return ReshapedRows{};
    if (run % row_width == 0) {
      if (run == row_width) return ReshapedRows{{1, 0, rows.outer_stride}, false};
      return ReshapedRows{{run / row_width, row_width, rows.outer_stride}, false};
    }
  }
  if (row_width == width) return ReshapedRows{rows, false};
  return std::nullopt;
}

void reshape_copy(const Context& ctx, const Tensor& x, void* y) {
  const auto element_bytes = static_cast<size_t>(bits_of(x.dtype) / 8);
  if (x.shape.checked_elements().value_or(0) == 0) return;
  // A contiguous tensor is cut into even pieces whatever its rows are.
  const int64_t rows = x.contiguous ? x.elements() : x.shape.rows();
  const int64_t width = x.contiguous || x.shape.rank() == 0 ? 1 : x.shape.back();
  const RowLayout layout = x.contiguous ? RowLayout{1, 0, 1} : x.layout;
  const size_t row_bytes = static_cast<size_t>(width) * element_bytes;
  const auto* from = static_cast<const std::byte*>(x.data);
  auto* to = static_cast<std::byte*>(y);
  auto copy = [&](int64_t begin, int64_t end, int) {
    if (x.contiguous) {
      std::memcpy(to + static_cast<size_t>(begin) * row_bytes, from + static_cast<size_t>(begin) * row_bytes,
                  static_cast<size_t>(end - begin) * row_bytes);
      return;
    }
    for (int64_t r = begin; r < end; r++) {
      std::memcpy(to + static_cast<size_t>(r) * row_bytes, from + static_cast<size_t>(layout.offset(r)) * element_bytes,
                  row_bytes);
    }
  };
  const auto chunk = static_cast<int64_t>(std::max<size_t>(1, kBytesPerChunk / row_bytes));
  if (rows <= chunk) {
    copy(0, rows, 0);
  } else {
    ctx.pool->parallel_for(rows, chunk, copy);
  }
  if (ctx.counters != nullptr) ctx.counters->bytes_copied += static_cast<size_t>(rows) * row_bytes;
}

}  // namespace quern::ops
