// SPDX-License-Identifier: Apache-2.0
// Checks indices and copies slices on the threads of the context.
#include "ops/gather/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace quern::ops {
namespace {

// A copy below this size costs less than waking a worker.
constexpr size_t kBytesPerChunk = 64 * 1024;

int64_t load_index(const GatherParams& p, const void* indices, int64_t j) {
  const auto* bytes = static_cast<const std::byte*>(indices);
  if (p.index_dtype == DType::i64) {
    int64_t v = 0;
    std::memcpy(&v, bytes + j * 8, sizeof(v));
    return v;
  }
  int32_t v = 0;
  std::memcpy(&v, bytes + j * 4, sizeof(v));
  return v;
}

}  // namespace

Result<Shape> gather_shape(const Shape& data, const Shape& indices, int64_t axis, std::string_view where) {
  const int rank = data.rank();
  if (axis < -rank || axis >= rank) {
    return bad_request(std::string(where),
                       fmt::format("axis {} is outside of the data's shape {}", axis, data.to_string()));
  }
  if (rank - 1 + indices.rank() > kMaxRank) {
    return bad_request(std::string(where), fmt::format("data {} gathered with indices {} has more than {} dimensions",
                                                       data.to_string(), indices.to_string(), kMaxRank));
  }
  const int at = static_cast<int>(axis < 0 ? axis + rank : axis);
  Shape out;
  for (int i = 0; i < at; i++) out.push_back(data[i]);
  for (int64_t d : indices.dims()) out.push_back(d);
  for (int i = at + 1; i < rank; i++) out.push_back(data[i]);
  return out;
}

Result<void> gather(const Context& ctx, const GatherParams& p, const GatherArgs& a, std::string_view where) {
  if (p.index_dtype != DType::i64 && p.index_dtype != DType::i32) {
    return unsupported(std::string(where),
                       fmt::format("indices of type {} are not supported (int64 or int32)", dtype_name(p.index_dtype)));
  }
  for (int64_t j = 0; j < p.count; j++) {
    const int64_t index = load_index(p, a.indices, j);
    if (index < -p.extent || index >= p.extent) {
      return bad_request(std::string(where), fmt::format("index {} at position {} is outside of [{}, {}]", index, j,
                                                         -p.extent, p.extent - 1));
    }
  }
  if (p.outer == 0 || p.count == 0 || p.slice_bytes == 0) return {};
  const int64_t slices = p.outer * p.count;
  const auto* data = static_cast<const std::byte*>(a.data);
  auto* y = static_cast<std::byte*>(a.y);
  const auto chunk = static_cast<int64_t>(std::max<size_t>(1, kBytesPerChunk / p.slice_bytes));
  const auto from = [&](int64_t i) {
    const int64_t index = load_index(p, a.indices, i % p.count);
    const int64_t slice = i / p.count * p.extent + (index < 0 ? index + p.extent : index);
    return data + static_cast<size_t>(slice) * p.slice_bytes;
  };
  const auto to = [&](int64_t i) { return y + static_cast<size_t>(i) * p.slice_bytes; };
  if (a.copy != nullptr) {
    for (int64_t i = 0; i < slices; i++) {
      const Result<void> done = (*a.copy)({from(i), p.slice_bytes}, {to(i), p.slice_bytes});
      if (!done.ok()) return Error{done.error().code, done.error().what, std::string(where)};
    }
    return {};
  }
  auto copy = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) std::memcpy(to(i), from(i), p.slice_bytes);
  };
  if (slices <= chunk) {
    copy(0, slices, 0);
  } else {
    ctx.pool->parallel_for(slices, chunk, copy);
  }
  return {};
}

}  // namespace quern::ops
