// SPDX-License-Identifier: Apache-2.0
// com.microsoft::MatMulNBits, version 1: which forms are taken, and the operator on them. Every form that is not
// implemented is refused at load, by name.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "ops/matmul_nbits/kernels.h"
#include "ops/matmul_nbits/matmul_nbits.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

enum Input { kA, kB, kScales, kZeroPoints, kGroupIndex, kBias, kInputs };

struct Form {
  int64_t k = 0, n = 0;
};

bool one_of(int64_t value, std::initializer_list<int64_t> values) {
  for (int64_t v : values) {
    if (v == value) return true;
  }
  return false;
}

Result<Form> read_form(const NodeView& node) {
  AttributeReader attributes(node);
  Form form;
  QUERN_TRY(form.k, attributes.require_int("K"));
  QUERN_TRY(form.n, attributes.require_int("N"));
  QUERN_TRY(const int64_t block_size, attributes.require_int("block_size"));
  QUERN_TRY(const int64_t bits, attributes.int_or("bits", 4));
  QUERN_TRY(const int64_t accuracy_level, attributes.int_or("accuracy_level", 0));
  QUERN_TRY_VOID(attributes.only_int("weight_prepacked", 0));
  QUERN_TRY_VOID(attributes.finish());
  if (form.k < 1 || form.n < 1) {
    return bad_model(node.where(), fmt::format("K = {} and N = {} must be at least 1", form.k, form.n));
  }
  if (!one_of(bits, {2, 4, 8})) return bad_model(node.where(), fmt::format("bits = {} is not 2, 4 or 8", bits));
  if (bits != 4) return unsupported(node.where(), fmt::format("bits = {} is not supported (only 4)", bits));
  if (!one_of(block_size, {16, 32, 64, 128, 256})) {
    return bad_model(node.where(), fmt::format("block_size = {} is not 16, 32, 64, 128 or 256", block_size));
  }
  if (block_size != kNBitsBlock) {
    return unsupported(node.where(),
                       fmt::format("block_size = {} is not supported (only {})", block_size, kNBitsBlock));
  }
  if (accuracy_level < 0 || accuracy_level > 4) {
    return bad_model(node.where(), fmt::format("accuracy_level = {} is not within 0 to 4", accuracy_level));
  }
  if (accuracy_level != 4) {
    return unsupported(node.where(), fmt::format("accuracy_level = {} is not supported (only 4)", accuracy_level));
  }
  return form;
}

// The bytes of a constant whose shape is `shape`, or the flat form of it.
Result<std::span<const std::byte>> constant_bytes(const NodeView& node, Input i, std::string_view name,
                                                  const Shape& shape, bool may_be_flat) {
  const NodeInput& input = node.input(i);
  if (!input.constant) {
    return unsupported(node.where(), fmt::format("input {} ({}) is computed at run time, only a constant is supported",
                                                 static_cast<int>(i), name));
  }
  const auto elements = shape.checked_elements();
  const auto bytes = elements ? storage_bytes(input.dtype, *elements) : std::nullopt;
  const Shape& seen = input.value.shape;
  const bool flat = may_be_flat && elements && seen == Shape{*elements};
  if (!bytes || !(seen == shape || flat)) {
    return bad_model(node.where(),
                     fmt::format("input {} ({}) has shape {}, expected {}{}", static_cast<int>(i), name,
                                 seen.to_string(), shape.to_string(), may_be_flat ? " or its flat form" : ""));
  }
  return std::span<const std::byte>(input.value.as<const std::byte>(), *bytes);
}

Result<void> check_inputs(const NodeView& node) {
  QUERN_TRY_VOID(check_arity(node, kScales + 1, kInputs, 1, 1));
  QUERN_TRY_VOID(check_dtype(node, kA, DType::f32));
  QUERN_TRY_VOID(check_dtype(node, kB, DType::u8));
  QUERN_TRY_VOID(check_dtype(node, kScales, DType::f32));
  // Floating-point zero points are another formula: (q - z) * s without the integer path.
  QUERN_TRY_VOID(check_dtype(node, kZeroPoints, DType::u8));
  if (node.has_input(kGroupIndex)) {
    return unsupported(node.where(), fmt::format("input {} (g_idx) is not supported", static_cast<int>(kGroupIndex)));
  }
  if (node.has_input(kBias)) {
    return unsupported(node.where(), fmt::format("input {} (bias) is not supported", static_cast<int>(kBias)));
  }
  return {};
}

Result<PackMatMulNBitsArgs> packing_args(const NodeView& node, const Form& form) {
  const int64_t blocks = ceil_div<int64_t>(form.k, kNBitsBlock);
  PackMatMulNBitsArgs args;
  args.k = form.k;
  args.n = form.n;
  QUERN_TRY(args.codes, constant_bytes(node, kB, "B", Shape{form.n, blocks, kNBitsBlock / 2}, false));
  QUERN_TRY(args.scales, constant_bytes(node, kScales, "scales", Shape{form.n, blocks}, true));
  if (node.has_input(kZeroPoints)) {
    const Shape shape{form.n, ceil_div<int64_t>(blocks, 2)};
    QUERN_TRY(args.zero_points, constant_bytes(node, kZeroPoints, "zero_points", shape, true));
  }
  return args;
}

struct Prepared {
  std::shared_ptr<const PackedWeights> weights;
  bool first_owner = true;
};

// Nodes with the same codes, scales and zero points share one preparation. A node that agrees in less packs for itself.
Result<Prepared> prepare(const PrepareContext& ctx, const PackMatMulNBitsArgs& args) {
  const std::pair<const void*, const void*> key{args.codes.data(), args.scales.data()};
  bool keep = ctx.shared != nullptr;
  if (keep) {
    const auto found = ctx.shared->find(key);
    if (found != ctx.shared->end()) {
      auto weights = std::static_pointer_cast<const PackedWeights>(found->second);
      if (weights->k() == args.k && weights->n() == args.n && !weights->has_zero_points() && args.zero_points.empty()) {
        return Prepared{std::move(weights), false};
      }
    }
    // The key does not name the zero points.
    keep = found == ctx.shared->end() && args.zero_points.empty();
  }
  QUERN_TRY(PackedWeights packed, pack_matmul_nbits(*ctx.pool, args));
  auto weights = std::make_shared<const PackedWeights>(std::move(packed));
  if (ctx.preparations != nullptr) ++*ctx.preparations;
  if (keep) ctx.shared->emplace(key, weights);
  return Prepared{std::move(weights), true};
}

class MatMulNBitsOperator final : public Operator {
 public:
  MatMulNBitsOperator(std::string where, Prepared prepared, size_t serialized_bytes, std::string_view variant)
      : where_(std::move(where)),
        weights_(std::move(prepared.weights)),
        prepared_bytes_(prepared.first_owner ? weights_->bytes() : 0),
        serialized_bytes_(prepared.first_owner ? serialized_bytes : 0),
        variant_(variant) {}

  DType output_dtype(int /*j*/) const override { return DType::f32; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& a = args.in[kA].shape;
    if (a.rank() < 1 || a.back() != weights_->k()) {
      return bad_request(where_, fmt::format("input 0 (A) has shape {}, expected a last dimension of {}", a.to_string(),
                                             weights_->k()));
    }
    Shape y = a;
    y[y.rank() - 1] = weights_->n();
    if (!fits(a) || !fits(y)) {
      return bad_request(where_, fmt::format("input 0 (A) has shape {}, which is too large", a.to_string()));
    }
    args.out[0] = y;
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const Tensor& a = in[kA];
    const Tensor& y = out[0];
    MatMulNBitsArgs args;
    args.x = {a.as<const float>(), static_cast<size_t>(a.elements())};
    args.weights = weights_.get();
    args.y = {y.as<float>(), static_cast<size_t>(y.elements())};
    return matmul_nbits(ctx, {a.shape.rows(), where_}, args);
  }

  std::string_view variant() const override { return variant_; }
  bool row_wise() const override { return true; }
  size_t prepared_bytes() const override { return prepared_bytes_; }
  size_t serialized_bytes() const override { return serialized_bytes_; }

 private:
  // Whether no product of extents overflows, not even one that an extent of zero would cancel.
  static bool fits(const Shape& shape) {
    std::optional<int64_t> bytes = static_cast<int64_t>(sizeof(float));
    for (const int64_t d : shape.dims()) {
      if (bytes) bytes = checked_mul(*bytes, std::max<int64_t>(d, 1));
    }
    return bytes.has_value();
  }

  std::string where_;
  std::shared_ptr<const PackedWeights> weights_;
  size_t prepared_bytes_, serialized_bytes_;
  std::string_view variant_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_matmul_nbits(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY(const Form form, read_form(node));
  QUERN_TRY_VOID(check_inputs(node));
  QUERN_TRY(PackMatMulNBitsArgs args, packing_args(node, form));
  const std::string where = node.where();
  args.where = where;
  args.drop_source = ctx.drop_source;
  QUERN_TRY(Prepared prepared, prepare(ctx, args));
  const size_t serialized = args.codes.size() + args.scales.size() + args.zero_points.size();
  return std::unique_ptr<Operator>(std::make_unique<MatMulNBitsOperator>(where, std::move(prepared), serialized,
                                                                         matmul_nbits_variant(ctx.features)));
}

}  // namespace quern::ops
