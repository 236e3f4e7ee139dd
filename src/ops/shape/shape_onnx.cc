// SPDX-License-Identifier: Apache-2.0
// Owns ONNX Shape: the extents of a tensor as int64, from `start` to `end` (negative ones count from the rank, both are
// clamped into [0, rank]). Class exact. The payload is never looked at, and the result is known before anything runs.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/registry.h"

namespace quern::ops {
namespace {

class ShapeOf final : public Operator {
 public:
  ShapeOf(int64_t start, int64_t end) : start_(start), end_(end) {}

  DType output_dtype(int) const override { return DType::i64; }
  std::string_view variant() const override { return "shape_of"; }
  bool folds_shapes() const override { return true; }
  bool accepts_rows(int) const override { return true; }
  bool accepts_unaligned(int) const override { return true; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const auto dims = wanted(args.in[0].shape);
    args.out[0] = Shape{static_cast<int64_t>(dims.size())};
    IntValues& values = args.out_values[0];
    values.known = true;
    values.count = static_cast<int>(dims.size());
    std::copy(dims.begin(), dims.end(), values.v.begin());
    return {};
  }

  Result<void> run(const Context&, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const auto dims = wanted(in[0].shape);
    std::copy(dims.begin(), dims.end(), out[0].as<int64_t>());
    return {};
  }

 private:
  std::span<const int64_t> wanted(const Shape& shape) const {
    const int64_t rank = shape.rank();
    const auto place = [&](int64_t i) { return std::clamp(i < 0 ? i + rank : i, int64_t{0}, rank); };
    const int64_t begin = place(start_), end = std::max(begin, place(end_));
    return shape.dims().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  int64_t start_, end_;
};

static_assert(kMaxRank <= IntValues::kMax);

}  // namespace

Result<std::unique_ptr<Operator>> make_shape(const NodeView& node, const PrepareContext&) {
  QUERN_TRY_VOID(check_arity(node, 1, 1, 1, 1));
  AttributeReader attributes(node);
  int64_t start = 0, end = std::numeric_limits<int64_t>::max();
  if (node.opset >= 15) {
    QUERN_TRY(start, attributes.int_or("start", start));
    QUERN_TRY(end, attributes.int_or("end", end));
  }
  QUERN_TRY_VOID(attributes.finish());
  return std::unique_ptr<Operator>(std::make_unique<ShapeOf>(start, end));
}

}  // namespace quern::ops
