// SPDX-License-Identifier: Apache-2.0
// Sums straight from the formula, one output after the other, on the threads of the context.
#include "ops/reduce_sum/reduce_sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace quern::ops {
namespace {

// A sum below this size costs less than waking a worker.
constexpr int64_t kElementsPerChunk = 16 * 1024;

// Some dimensions of a row-major tensor with their strides, walked in row-major order.
struct Walk {
  int rank = 0;
  int64_t count = 1;
  std::array<int64_t, kMaxRank> extent{}, stride{};

  void add(int64_t e, int64_t s) {
    extent[static_cast<size_t>(rank)] = e;
    stride[static_cast<size_t>(rank++)] = s;
    count *= e;
  }
  int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (int d = rank; d-- > 0;) {
      const auto k = static_cast<size_t>(d);
      at += i % extent[k] * stride[k];
      i /= extent[k];
    }
    return at;
  }
};

template <class T, class Sum>
void sum_range(const ReduceSumArgs& a, const Walk& kept, const Walk& reduced, int64_t begin, int64_t end) {
  const auto* x = static_cast<const std::byte*>(a.x);
  auto* y = static_cast<std::byte*>(a.y);
  // The innermost reduced dimension is a plain strided loop; the others are walked around it.
  const bool flat = reduced.rank == 0;
  const int64_t run = flat ? 1 : reduced.extent[static_cast<size_t>(reduced.rank) - 1];
  const int64_t step = flat ? 0 : reduced.stride[static_cast<size_t>(reduced.rank) - 1];
  for (int64_t o = begin; o < end; o++) {
    const int64_t base = kept.offset(o);
    Sum sum = 0;
    for (int64_t r = 0; r < reduced.count; r += run) {
      const std::byte* p = x + (base + reduced.offset(r)) * static_cast<int64_t>(sizeof(T));
      for (int64_t i = 0; i < run; i++, p += step * static_cast<int64_t>(sizeof(T))) {
        T v;
        std::memcpy(&v, p, sizeof(T));
        sum += static_cast<Sum>(v);
      }
    }
    const T r = static_cast<T>(sum);
    std::memcpy(y + o * static_cast<int64_t>(sizeof(T)), &r, sizeof(T));
  }
}

using Loop = void (*)(const ReduceSumArgs&, const Walk&, const Walk&, int64_t, int64_t);

Loop find_loop(DType dtype) {
  switch (dtype) {
    case DType::f32: return &sum_range<float, double>;
    case DType::i64: return &sum_range<int64_t, uint64_t>;
    case DType::i32: return &sum_range<int32_t, uint32_t>;
    default: return nullptr;
  }
}

}  // namespace

bool reduce_sum_supported(DType dtype) { return find_loop(dtype) != nullptr; }

Result<uint32_t> reduced_axes(const Shape& shape, std::span<const int64_t> axes, std::string_view where) {
  const int rank = shape.rank();
  uint32_t bits = 0;
  for (int64_t axis : axes) {
    if (axis < -rank || axis >= rank) {
      return bad_request(std::string(where),
                         fmt::format("axis {} is outside of the input's shape {}", axis, shape.to_string()));
    }
    bits |= 1u << (axis < 0 ? axis + rank : axis);
  }
  return bits;
}

Result<void> reduce_sum(const Context& ctx, const ReduceSumParams& p, const ReduceSumArgs& a, std::string_view where) {
  const Loop loop = find_loop(p.dtype);
  if (loop == nullptr) {
    return unsupported(std::string(where),
                       fmt::format("summing {} is not supported (float32, int64 and int32)", dtype_name(p.dtype)));
  }
  const bool empty = p.shape.checked_elements() == 0;
  for (int d = 0; d < p.shape.rank(); d++) {
    if ((p.axes >> d & 1) == 0 && p.shape[d] == 0) return {};
  }
  Walk kept, reduced;
  int64_t stride = 1;
  std::array<int64_t, kMaxRank> strides{};
  for (int d = p.shape.rank(); d-- > 0;) {
    strides[static_cast<size_t>(d)] = stride;
    if (!empty) stride *= p.shape[d];
  }
  for (int d = 0; d < p.shape.rank(); d++) {
    // Nothing is read of a tensor without elements; what is left of its reduced part is one empty dimension.
    const bool is_reduced = (p.axes >> d & 1) != 0;
    if (is_reduced && empty) continue;
    (is_reduced ? reduced : kept).add(p.shape[d], strides[static_cast<size_t>(d)]);
  }
  if (empty) reduced.add(0, 0);
  const int64_t work = std::max<int64_t>(1, reduced.count);
  const int64_t chunk = std::max<int64_t>(1, kElementsPerChunk / work);
  if (kept.count <= chunk) {
    loop(a, kept, reduced, 0, kept.count);
  } else {
    ctx.pool->parallel_for(kept.count, chunk,
                           [&](int64_t begin, int64_t end, int) { loop(a, kept, reduced, begin, end); });
  }
  return {};
}

}  // namespace quern::ops
