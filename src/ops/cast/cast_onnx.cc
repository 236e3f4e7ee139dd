// SPDX-License-Identifier: Apache-2.0
// ONNX Cast on the cast entry. Does not own the conversion.
#include <fmt/format.h>

#include <optional>

#include "ops/cast/cast.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

// Attribute `to` holds an element type in ONNX numbering; the ones below are those that Cast can produce here.
std::optional<DType> from_onnx(int64_t type) {
  switch (type) {
    case 1: return DType::f32;
    case 6: return DType::i32;
    case 7: return DType::i64;
    default: return std::nullopt;
  }
}

class Cast final : public Operator {
 public:
  Cast(std::string where, DType from, DType to) : where_(std::move(where)), from_(from), to_(to) {}

  DType output_dtype(int) const override { return to_; }
  std::string_view variant() const override { return "cast_scalar"; }
  bool folds_known_values() const override { return from_ != DType::f32 && to_ != DType::f32; }
  bool accepts_unaligned(int) const override { return true; }
  bool may_share(int, int) const override { return bits_of(from_) == bits_of(to_); }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& shape = args.in[0].shape;
    const auto elements = shape.checked_elements();
    if (!elements || !storage_bytes(to_, *elements)) {
      return bad_request(where_, fmt::format("shape {} is too large", shape.to_string()));
    }
    args.out[0] = shape;
    if (!folds_known_values() || args.in_values.empty() || !args.in_values[0].known) return {};
    IntValues folded = args.in_values[0];
    if (to_ == DType::i32) {
      for (int64_t& v : folded.v) v = static_cast<int32_t>(v);
    }
    args.out_values[0] = folded;
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    return cast(ctx, {in[0].elements(), from_, to_}, {in[0].data, out[0].data}, where_);
  }

 private:
  std::string where_;
  DType from_, to_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_cast(const NodeView& node, const PrepareContext&) {
  QUERN_TRY_VOID(check_arity(node, 1, 1, 1, 1));
  AttributeReader attributes(node);
  QUERN_TRY(const int64_t type, attributes.require_int("to"));
  // Both concern 8-bit floats alone, which no pair here involves.
  if (node.opset >= 19) QUERN_TRY_VOID(attributes.only_int("saturate", 1));
  if (node.opset >= 24) QUERN_TRY_VOID(attributes.only_string("round_mode", "up"));
  QUERN_TRY_VOID(attributes.finish());
  const DType from = node.input(0).dtype;
  const auto to = from_onnx(type);
  if (!to || !cast_supported(from, *to)) {
    return unsupported(node.where(), fmt::format("casting {} to ONNX element type {} is not supported (float32 = 1, "
                                                 "int32 = 6 and int64 = 7)",
                                                 dtype_name(from), type));
  }
  return std::unique_ptr<Operator>(std::make_unique<Cast>(node.where(), from, *to));
}

}  // namespace quern::ops
