// SPDX-License-Identifier: Apache-2.0
// ONNX Gather on the gather entry: element types of whole bytes, indices int64 or int32. Does not own the copying.
#include <fmt/format.h>

#include "ops/gather/gather.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

// Of a table from this size on, rows are read through the file: a page touched in a map brings up to 2 MiB of
// neighbours into resident memory, and a copy of 4 KiB through the file takes a microsecond.
constexpr size_t kLargeTable = size_t{16} << 20;

struct Extents {
  int64_t outer = 1, extent = 0, inner = 1;
};

// `axis` lies inside of the data's rank.
Extents split_at(const Shape& data, int64_t axis) {
  const int at = static_cast<int>(axis < 0 ? axis + data.rank() : axis);
  return {extents_product(data, 0, at), data[at], extents_product(data, at + 1, data.rank())};
}

class Gather final : public Operator {
 public:
  // `copy` reads the data where it is not empty.
  Gather(std::string where, DType dtype, DType index_dtype, int64_t axis, CopyBytes copy)
      : where_(std::move(where)), dtype_(dtype), index_dtype_(index_dtype), axis_(axis), copy_(std::move(copy)) {}

  DType output_dtype(int) const override { return dtype_; }
  std::string_view variant() const override { return kGatherVariant; }
  // Holds for the integer tensors whose contents are tracked; others are never known.
  bool folds_known_values() const override { return true; }
  bool accepts_unaligned(int) const override { return true; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& data = args.in[0].shape;
    QUERN_TRY(args.out[0], gather_shape(data, args.in[1].shape, axis_, where_));
    const auto elements = args.out[0].checked_elements();
    if (!elements || !storage_bytes(dtype_, *elements)) {
      return bad_request(where_, fmt::format("result shape {} is too large", args.out[0].to_string()));
    }
    if (args.in_values.size() < 2 || !args.in_values[0].known || !args.in_values[1].known) return {};
    return fold(split_at(data, axis_), args);
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const Extents e = split_at(in[0].shape, axis_);
    GatherParams params;
    params.outer = e.outer;
    params.extent = e.extent;
    params.count = in[1].elements();
    params.slice_bytes = static_cast<size_t>(e.inner) * static_cast<size_t>(bits_of(dtype_) / 8);
    params.index_dtype = index_dtype_;
    return gather(ctx, params, {in[0].data, in[1].data, out[0].data, copy_ ? &copy_ : nullptr}, where_);
  }

 private:
  Result<void> fold(const Extents& e, const ResolveArgs& args) const {
    const auto data = args.in_values[0].span();
    IntValues folded;
    const auto elements = args.out[0].checked_elements();
    if (!elements || *elements > IntValues::kMax) return {};
    for (int64_t o = 0; o < e.outer; o++) {
      for (int64_t index : args.in_values[1].span()) {
        if (index < -e.extent || index >= e.extent) {
          return bad_request(where_, fmt::format("index {} is outside of [{}, {}]", index, -e.extent, e.extent - 1));
        }
        const int64_t slice = o * e.extent + (index < 0 ? index + e.extent : index);
        if (*elements == 0) continue;
        for (int64_t i = 0; i < e.inner; i++) {
          folded.v[static_cast<size_t>(folded.count++)] = data[static_cast<size_t>(slice * e.inner + i)];
        }
      }
    }
    folded.known = true;
    args.out_values[0] = folded;
    return {};
  }

  std::string where_;
  DType dtype_, index_dtype_;
  int64_t axis_;
  CopyBytes copy_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_gather(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY_VOID(check_arity(node, 2, 2, 1, 1));
  AttributeReader attributes(node);
  QUERN_TRY(const int64_t axis, attributes.int_or("axis", 0));
  QUERN_TRY_VOID(attributes.finish());
  const NodeInput& data = node.input(0);
  const NodeInput& indices = node.input(1);
  if (bits_of(data.dtype) < 8) {
    return unsupported(node.where(), fmt::format("data of type {} is not supported (types of whole bytes only)",
                                                 dtype_name(data.dtype)));
  }
  if (indices.dtype != DType::i64 && indices.dtype != DType::i32) {
    return unsupported(node.where(),
                       fmt::format("indices of type {} are not supported (int64 or int32)", dtype_name(indices.dtype)));
  }
  if (data.constant && (axis < -data.value.shape.rank() || axis >= data.value.shape.rank())) {
    return bad_model(node.where(),
                     fmt::format("axis {} is outside of the data's shape {}", axis, data.value.shape.to_string()));
  }
  CopyBytes copy;
  if (data.constant && storage_bytes(data.dtype, data.value.elements()).value_or(0) >= kLargeTable) {
    copy = ctx.copy_source;
  }
  return std::unique_ptr<Operator>(
      std::make_unique<Gather>(node.where(), data.dtype, indices.dtype, axis, std::move(copy)));
}

}  // namespace quern::ops
