// SPDX-License-Identifier: Apache-2.0
// com.microsoft::MatMulNBits, version 1: which forms are taken, and the operator on them. Every form that is not
// implemented is refused at load, by name.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/half.h"
#include "ops/matmul_nbits/matmul_nbits.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

enum Input { kA, kB, kScales, kZeroPoints, kGroupIndex, kBias, kInputs };

// accuracy_level 4 asks for int8 activations; 0 (any), 1, 2 and 3 (float32, float16, bfloat16) are all computed in
// float32, as ONNX Runtime does on CPUs.
constexpr int64_t kInt8Level = 4;

bool one_of(int64_t value, std::initializer_list<int64_t> values) {
  for (int64_t v : values) {
    if (v == value) return true;
  }
  return false;
}

struct Attributes {
  NBitsForm form;
  NBitsActivations activations = NBitsActivations::f32;
};

Result<Attributes> read_attributes(const NodeView& node) {
  AttributeReader attributes(node);
  Attributes read;
  NBitsForm& form = read.form;
  QUERN_TRY(form.k, attributes.require_int("K"));
  QUERN_TRY(form.n, attributes.require_int("N"));
  QUERN_TRY(form.block, attributes.require_int("block_size"));
  QUERN_TRY(form.bits, attributes.int_or("bits", 4));
  QUERN_TRY(const int64_t level, attributes.int_or("accuracy_level", 0));
  QUERN_TRY_VOID(attributes.only_int("weight_prepacked", 0));
  QUERN_TRY_VOID(attributes.finish());
  if (form.k < 1 || form.n < 1) {
    return bad_model(node.where(), fmt::format("K = {} and N = {} must be at least 1", form.k, form.n));
  }
  if (!one_of(form.bits, {2, 4, 8})) {
    return bad_model(node.where(), fmt::format("bits = {} is not 2, 4 or 8", form.bits));
  }
  if (form.bits == 2) return unsupported(node.where(), "bits = 2 is not supported (only 4 and 8)");
  if (!one_of(form.block, {16, 32, 64, 128, 256})) {
    return bad_model(node.where(), fmt::format("block_size = {} is not 16, 32, 64, 128 or 256", form.block));
  }
  if (level < 0 || level > kInt8Level) {
    return bad_model(node.where(), fmt::format("accuracy_level = {} is not within 0 to 4", level));
  }
  // Rows of activations lie in whole blocks: their size must exist too.
  if (!checked_add(form.k, form.block)) {
    return bad_model(node.where(), fmt::format("K = {} is too large", form.k));
  }
  if (level == kInt8Level) read.activations = NBitsActivations::s8;
  return read;
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
  const DType a = node.input(kA).dtype;
  if (a != DType::f32 && a != DType::f16) {
    return unsupported(node.where(),
                       fmt::format("input 0 (A) is {}, only float32 and float16 are supported", dtype_name(a)));
  }
  QUERN_TRY_VOID(check_dtype(node, kB, DType::u8));
  QUERN_TRY_VOID(check_dtype(node, kScales, a));
  if (node.has_input(kZeroPoints) && node.input(kZeroPoints).dtype != a) {
    QUERN_TRY_VOID(check_dtype(node, kZeroPoints, DType::u8));
  }
  QUERN_TRY_VOID(check_dtype(node, kBias, a));
  if (node.has_input(kGroupIndex)) {
    return unsupported(node.where(), fmt::format("input {} (g_idx) is not supported", static_cast<int>(kGroupIndex)));
  }
  return {};
}

// Reads the constants and completes the form by the kind of zero points.
Result<PackMatMulNBitsArgs> packing_args(const NodeView& node, const NBitsForm& form) {
  const int64_t blocks = ceil_div(form.k, form.block);
  PackMatMulNBitsArgs args;
  args.form = form;
  args.float_type = node.input(kA).dtype == DType::f16 ? NBitsFloat::f16 : NBitsFloat::f32;
  QUERN_TRY(args.codes, constant_bytes(node, kB, "B", Shape{form.n, blocks, form.block * form.bits / 8}, false));
  QUERN_TRY(args.scales, constant_bytes(node, kScales, "scales", Shape{form.n, blocks}, true));
  if (!node.has_input(kZeroPoints)) return args;
  const bool integer = node.input(kZeroPoints).dtype == DType::u8;
  args.form.zeros = integer ? NBitsZeros::u8 : NBitsZeros::f32;
  const Shape shape{form.n, integer && form.bits == 4 ? ceil_div<int64_t>(blocks, 2) : blocks};
  QUERN_TRY(args.zero_points, constant_bytes(node, kZeroPoints, "zero_points", shape, true));
  return args;
}

Result<std::vector<float>> read_bias(const NodeView& node, int64_t n) {
  std::vector<float> bias;
  if (!node.has_input(kBias)) return bias;
  QUERN_TRY(const std::span<const std::byte> bytes, constant_bytes(node, kBias, "bias", Shape{n}, false));
  bias.resize(static_cast<size_t>(n));
  if (node.input(kBias).dtype == DType::f32) {
    std::memcpy(bias.data(), bytes.data(), bytes.size());
    return bias;
  }
  for (size_t i = 0; i < bias.size(); i++) {
    uint16_t half;
    std::memcpy(&half, bytes.data() + i * sizeof half, sizeof half);
    bias[i] = half_to_float(half);
  }
  return bias;
}

// What one node multiplies with.
struct Matrix {
  std::shared_ptr<const PackedWeights> weights;
  std::vector<float> bias;                          // empty: none
  size_t prepared_bytes = 0, serialized_bytes = 0;  // 0 where another node owns the weights
};

// Nodes with the same codes, scales and zero points share one preparation.
Result<Matrix> prepare(const PrepareContext& ctx, const PackMatMulNBitsArgs& args) {
  const SharedKey key{args.codes.data(), args.scales.data(), args.zero_points.data()};
  Matrix matrix;
  const auto same_form = [&](const NBitsForm& packed) {
    NBitsForm form = args.form;
    form.bf16_scales = packed.bf16_scales;
    return form == packed;
  };
  if (ctx.shared != nullptr) {
    const auto found = ctx.shared->find(key);
    if (found != ctx.shared->end()) {
      auto weights = std::static_pointer_cast<const PackedWeights>(found->second);
      if (same_form(weights->form())) {
        matrix.weights = std::move(weights);
        return matrix;
      }
    }
  }
  QUERN_TRY(PackedWeights packed, pack_matmul_nbits(*ctx.pool, args));
  if (ctx.preparations != nullptr) ++*ctx.preparations;
  matrix.weights = std::make_shared<const PackedWeights>(std::move(packed));
  matrix.prepared_bytes = matrix.weights->bytes();
  matrix.serialized_bytes = args.codes.size() + args.scales.size() + args.zero_points.size();
  if (ctx.shared != nullptr) ctx.shared->emplace(key, matrix.weights);
  return matrix;
}

// float16 on both sides, a pass of rows at a time, each product in a section of its own. Takes the rows in float32 and
// prepared, and the results of one product in float32, at most 16 MiB or 4 rows.
Result<void> run_f16(const Context& ctx, const MatMulNBitsParams& params, const uint16_t* a,
                     std::span<const NBitsProduct> products, std::span<const Tensor> y) {
  const NBitsRowsForm form = nbits_rows_form(products[0].weights->form(), params.activations);
  int64_t columns = 0;
  for (const NBitsProduct& p : products) columns = std::max(columns, p.weights->n());
  // A vocabulary of results in float32 would be the largest thing around.
  constexpr int64_t kResultElements = 4 << 20;
  const int64_t fitting = std::max<int64_t>(kResultElements / columns / kNBitsTileRows, 1) * kNBitsTileRows;
  const int64_t pass = std::min({params.rows, matmul_nbits_pass_rows(form), fitting});
  const auto bytes = nbits_rows_bytes(pass, form);
  QUERN_CHECK(bytes.has_value(), "a pass of checked rows has a size");
  cpu::Arena::Scope scope(*ctx.scratch);
  QUERN_TRY(float* x32, ctx.scratch->take<float>(static_cast<size_t>(pass * form.k)));
  QUERN_TRY(float* y32, ctx.scratch->take<float>(static_cast<size_t>(pass * columns)));
  QUERN_TRY(uint8_t * storage, ctx.scratch->take<uint8_t>(*bytes));
  constexpr int64_t kChunk = 16 << 10;  // elements
  for (int64_t first = 0; first < params.rows; first += pass) {
    const int64_t rows = std::min(pass, params.rows - first);
    ctx.pool->parallel_for(rows * form.k, kChunk, [&](int64_t begin, int64_t end, int /*worker*/) {
      for (int64_t i = begin; i < end; i++) x32[i] = half_to_float(a[first * form.k + i]);
    });
    QUERN_TRY(const NBitsRows prepared,
              prepare_nbits_rows(ctx, {rows, form, params.where},
                                 {{x32, static_cast<size_t>(rows * form.k)}, {storage, *bytes}}));
    for (size_t j = 0; j < products.size(); j++) {
      NBitsProduct one = products[j];
      const int64_t count = rows * one.weights->n();
      one.y = {y32, static_cast<size_t>(count)};
      QUERN_TRY_VOID(matmul_prepared(ctx, {prepared, {&one, 1}, params.where}));
      uint16_t* out = y[j].as<uint16_t>() + first * one.weights->n();
      ctx.pool->parallel_for(count, kChunk, [&](int64_t begin, int64_t end, int /*worker*/) {
        for (int64_t i = begin; i < end; i++) out[i] = float_to_half(y32[i]);
      });
    }
  }
  return {};
}

// One node, or several that read the same rows: output j is the product with matrix j.
class MatMulNBitsOperator final : public Operator {
 public:
  MatMulNBitsOperator(std::string where, DType dtype, NBitsActivations activations, std::string_view variant,
                      Matrix matrix)
      : where_(std::move(where)), dtype_(dtype), activations_(activations), variant_(variant) {
    matrices_.push_back(std::move(matrix));
  }

  DType output_dtype(int /*j*/) const override { return dtype_; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& a = args.in[kA].shape;
    if (a.rank() < 1 || a.back() != matrices_[0].weights->k()) {
      return bad_request(where_, fmt::format("input 0 (A) has shape {}, expected a last dimension of {}", a.to_string(),
                                             matrices_[0].weights->k()));
    }
    for (size_t j = 0; j < matrices_.size(); j++) {
      Shape y = a;
      y[y.rank() - 1] = matrices_[j].weights->n();
      if (!fits(a) || !fits(y)) {
        return bad_request(where_, fmt::format("input 0 (A) has shape {}, which is too large", a.to_string()));
      }
      args.out[j] = y;
    }
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const Tensor& a = in[kA];
    const MatMulNBitsParams params{a.shape.rows(), activations_, where_};
    if (params.rows == 0) return {};
    cpu::Arena::Scope scope(*ctx.scratch);
    QUERN_TRY(NBitsProduct * products, ctx.scratch->take<NBitsProduct>(matrices_.size()));
    for (size_t j = 0; j < matrices_.size(); j++) {
      std::construct_at(products + j, NBitsProduct{matrices_[j].weights.get(), matrices_[j].bias, {}});
      if (dtype_ == DType::f32) products[j].y = {out[j].as<float>(), static_cast<size_t>(out[j].elements())};
    }
    if (dtype_ == DType::f16) return run_f16(ctx, params, a.as<const uint16_t>(), {products, matrices_.size()}, out);
    return matmul_nbits(ctx, params,
                        {{a.as<const float>(), static_cast<size_t>(a.elements())}, {products, matrices_.size()}});
  }

  std::string_view variant() const override { return variant_; }
  std::string detail() const override {
    const NBitsForm& form = matrices_[0].weights->form();
    return fmt::format("{} bits, blocks of {}{}", form.bits, form.block,
                       form.bf16_scales ? ", scales exact in bfloat16 and stored so" : "");
  }
  bool accepts_unaligned(int input) const override { return input != kA; }  // all others are read while preparing
  bool row_wise() const override { return true; }
  size_t prepared_bytes() const override { return total(&Matrix::prepared_bytes); }
  size_t serialized_bytes() const override { return total(&Matrix::serialized_bytes); }

  std::span<const std::byte> reads_first(int threads) const override {
    std::vector<NBitsProduct> products;
    for (const Matrix& m : matrices_) products.push_back({m.weights.get(), m.bias, {}});
    return matmul_nbits_first_bytes(products, threads);
  }

  std::string join_key() const override {
    const NBitsRowsForm form = nbits_rows_form(matrices_[0].weights->form(), activations_);
    return fmt::format("matmul_nbits rows {} {} {} {} {}", dtype_name(dtype_), static_cast<int>(form.activations),
                       form.k, form.block, form.bits);
  }
  std::unique_ptr<Operator> join(std::vector<std::unique_ptr<Operator>> others) const override {
    auto joint = std::make_unique<MatMulNBitsOperator>(*this);
    for (const auto& other : others) {
      const auto& matrices = static_cast<const MatMulNBitsOperator&>(*other).matrices_;
      joint->matrices_.insert(joint->matrices_.end(), matrices.begin(), matrices.end());
    }
    return joint;
  }

 private:
  // Whether no product of extents overflows, not even one that an extent of zero would cancel.
  static bool fits(const Shape& shape) {
    std::optional<int64_t> bytes = static_cast<int64_t>(sizeof(float));
    for (const int64_t d : shape.dims()) {
      if (bytes) bytes = checked_mul(*bytes, std::max<int64_t>(d, 1));
    }
    return bytes.has_value();
  }

  size_t total(size_t Matrix::*what) const {
    size_t sum = 0;
    for (const Matrix& m : matrices_) sum += m.*what;
    return sum;
  }

  std::string where_;
  DType dtype_;
  NBitsActivations activations_;
  std::string_view variant_;
  std::vector<Matrix> matrices_;
};

}  // namespace

Result<std::unique_ptr<Operator>> make_matmul_nbits(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY(const Attributes attributes, read_attributes(node));
  QUERN_TRY_VOID(check_inputs(node));
  QUERN_TRY(PackMatMulNBitsArgs args, packing_args(node, attributes.form));
  const std::string where = node.where();
  args.where = where;
  args.drop_source = ctx.drop_source;
  // (q - z) is no integer then.
  const bool integers = attributes.activations == NBitsActivations::s8 && args.form.zeros != NBitsZeros::f32;
  const NBitsActivations activations = integers ? NBitsActivations::s8 : NBitsActivations::f32;
  QUERN_TRY(std::vector<float> bias, read_bias(node, args.form.n));
  QUERN_TRY(Matrix matrix, prepare(ctx, args));
  matrix.bias = std::move(bias);
  return std::unique_ptr<Operator>(std::make_unique<MatMulNBitsOperator>(
      where, node.input(kA).dtype, activations, matmul_nbits_variant(ctx.features, activations), std::move(matrix)));
}

}  // namespace quern::ops
