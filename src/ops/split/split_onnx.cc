// SPDX-License-Identifier: Apache-2.0
// ONNX Split: sizes from input 1, from num_outputs, or equal parts; pieces are views where their layout allows.
// Does not own the decision to use a view.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "ops/registry.h"
#include "ops/split/split.h"

namespace quern::ops {
namespace {

enum class Sizes : uint8_t { input, ceil_parts, equal_parts };

class Split final : public Operator {
 public:
  // Split sizes are small integer contents, so more outputs than that cannot be asked for by input 1 either.
  static constexpr int kMaxOutputs = IntValues::kMax;

  Split(std::string where, DType dtype, int64_t axis, Sizes sizes, int outputs)
      : where_(std::move(where)), dtype_(dtype), axis_(axis), sizes_(sizes), outputs_(outputs) {}

  DType output_dtype(int) const override { return dtype_; }
  std::string_view variant() const override { return "split_copy"; }
  uint32_t shape_inputs() const override { return sizes_ == Sizes::input ? 1u << 1 : 0; }
  bool makes_views() const override { return true; }
  bool accepts_unaligned(int input) const override { return input == 1; }  // known when shapes are resolved

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& shape = args.in[0].shape;
    const int rank = shape.rank();
    if (axis_ < -rank || axis_ >= rank) {
      return bad_request(where_, fmt::format("axis {} is outside of the input's shape {}", axis_, shape.to_string()));
    }
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    std::array<int64_t, kMaxOutputs> sizes{};
    const std::span<int64_t> wanted(sizes.data(), static_cast<size_t>(outputs_));
    QUERN_TRY_VOID(find_sizes(args, shape[axis], wanted));

    const bool one_run =
        std::all_of(shape.dims().begin(), shape.dims().begin() + axis, [](int64_t d) { return d <= 1; });
    int64_t start = 0;
    for (int j = 0; j < outputs_; j++) {
      const auto at = static_cast<size_t>(j);
      args.out[at] = shape;
      args.out[at][axis] = wanted[at];
      if (!args.views.empty()) {
        View& view = args.views[at];
        if (one_run || args.out[at].checked_elements() == 0) {
          view = {.of = 0, .offset = start * extents_product(shape, axis + 1, rank), .layout = {}, .contiguous = true};
        } else if (axis == rank - 1) {
          view = {.of = 0, .offset = start, .layout = {1, 0, shape[axis]}, .contiguous = false};
        }
        if (args.out[at].checked_elements() == 0) view.offset = 0;
      }
      start += wanted[at];
    }
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const Tensor& x = in[0];
    const int rank = x.shape.rank();
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const auto* begin = x.as<const std::byte>();
    const size_t bytes = storage_bytes(dtype_, x.shape.checked_elements().value_or(0)).value_or(0);
    SplitPiece piece{extents_product(x.shape, 0, axis), x.shape[axis], extents_product(x.shape, axis + 1, rank), 0, 0};
    for (const Tensor& y : out) {
      piece.size = y.shape[axis];
      const auto* data = y.as<const std::byte>();
      const bool is_view = !std::less<>()(data, begin) && std::less<>()(data, begin + bytes);
      if (!is_view && y.shape.checked_elements() != 0) split_copy(ctx, x, piece, y.data);
      piece.offset += piece.size * piece.inner;
    }
    return {};
  }

 private:
  Result<void> find_sizes(const ResolveArgs& args, int64_t extent, std::span<int64_t> sizes) const {
    if (sizes_ != Sizes::input) return split_evenly(extent, sizes_ == Sizes::equal_parts, sizes, where_);
    const Shape& shape = args.in[1].shape;
    if (shape.rank() != 1 || shape[0] != outputs_ || !args.in_values[1].known) {
      return bad_request(
          where_, fmt::format("the split sizes are a tensor of shape {}, expected [{}]", shape.to_string(), outputs_));
    }
    const auto given = args.in_values[1].span();
    QUERN_TRY_VOID(check_split_sizes(extent, given, where_));
    std::copy(given.begin(), given.end(), sizes.begin());
    return {};
  }

  std::string where_;
  DType dtype_;
  int64_t axis_;
  Sizes sizes_;
  int outputs_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_split(const NodeView& node, const PrepareContext&) {
  const int outputs = static_cast<int>(node.outputs.size());
  if (outputs < 1 || outputs > Split::kMaxOutputs) {
    return unsupported(node.where(),
                       fmt::format("{} outputs are not supported (1 to {})", outputs, Split::kMaxOutputs));
  }
  QUERN_TRY_VOID(check_arity(node, 1, 2, outputs, outputs));
  AttributeReader attributes(node);
  QUERN_TRY(const int64_t axis, attributes.int_or("axis", 0));
  int64_t parts = 0;  // stands for absent: no split has zero outputs
  if (node.opset >= 18) {
    QUERN_TRY(parts, attributes.int_or("num_outputs", 0));
  }
  QUERN_TRY_VOID(attributes.finish());
  const NodeInput& x = node.input(0);
  if (bits_of(x.dtype) < 8) {
    return unsupported(node.where(), fmt::format("input 0 of type {} is not supported (types of whole bytes only)",
                                                 dtype_name(x.dtype)));
  }
  QUERN_TRY_VOID(check_dtype(node, 1, DType::i64));
  if (node.has_input(1) && parts != 0) {
    return bad_model(node.where(),
                     "sizes are given by both input 1 and the attribute num_outputs, expected one of them");
  }
  if (parts != 0 && parts != outputs) {
    return bad_model(node.where(),
                     fmt::format("attribute num_outputs is {} but the node has {} outputs", parts, outputs));
  }
  const Sizes sizes = node.has_input(1) ? Sizes::input : parts != 0 ? Sizes::ceil_parts : Sizes::equal_parts;
  return std::unique_ptr<Operator>(std::make_unique<Split>(node.where(), x.dtype, axis, sizes, outputs));
}

}  // namespace quern::ops
