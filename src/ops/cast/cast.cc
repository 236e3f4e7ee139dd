// SPDX-License-Identifier: Apache-2.0
// Selects the conversion loop and splits it across threads.
#include "ops/cast/cast.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <type_traits>

namespace quern::ops {
namespace {

// A conversion below this size costs less than waking a worker.
constexpr int64_t kElementsPerChunk = 16 * 1024;

template <class To, class From>
To convert(From v) {
  if constexpr (std::is_same_v<To, From>) {
    return v;
  } else if constexpr (std::is_floating_point_v<From>) {
    // Both limits are powers of two and so exact in float32.
    constexpr From kBelow = static_cast<From>(std::numeric_limits<To>::min());
    return v >= kBelow && v < -kBelow ? static_cast<To>(v) : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(v);
  }
}

template <class To, class From>
void convert_range(const void* x, void* y, int64_t begin, int64_t end) {
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  for (int64_t i = begin; i < end; i++) {
    From v;
    std::memcpy(&v, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To r = convert<To>(v);
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), &r, sizeof(To));
  }
}

using Loop = void (*)(const void* x, void* y, int64_t begin, int64_t end);

template <class From>
Loop loop_from(DType to) {
  switch (to) {
    case DType::f32: return &convert_range<float, From>;
    case DType::i64: return &convert_range<int64_t, From>;
    case DType::i32: return &convert_range<int32_t, From>;
    default: return nullptr;
  }
}

Loop find_loop(DType from, DType to) {
  switch (from) {
    case DType::f32: return loop_from<float>(to);
    case DType::i64: return loop_from<int64_t>(to);
    case DType::i32: return loop_from<int32_t>(to);
    default: return nullptr;
  }
}

}  // namespace

bool cast_supported(DType from, DType to) { return find_loop(from, to) != nullptr; }

Result<void> cast(const Context& ctx, const CastParams& p, const CastArgs& a, std::string_view where) {
  const Loop loop = find_loop(p.from, p.to);
  if (loop == nullptr) {
    return unsupported(std::string(where), fmt::format("casting {} to {} is not supported (float32, int64 and int32)",
                                                       dtype_name(p.from), dtype_name(p.to)));
  }
  if (a.x == a.y && p.from == p.to) return {};
  if (p.count <= kElementsPerChunk) {
    loop(a.x, a.y, 0, p.count);
  } else {
    ctx.pool->parallel_for(p.count, kElementsPerChunk,
                           [&](int64_t begin, int64_t end, int) { loop(a.x, a.y, begin, end); });
  }
  return {};
}

}  // namespace quern::ops
