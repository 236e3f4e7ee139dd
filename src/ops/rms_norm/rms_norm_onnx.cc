// SPDX-License-Identifier: Apache-2.0
// SimplifiedLayerNormalization and com.microsoft SkipSimplifiedLayerNormalization on the rms_norm entry: attributes,
// shape rules, broadcast forms of gamma and skip. Does not own the arithmetic.
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "ops/registry.h"
#include "ops/rms_norm/rms_norm.h"

namespace quern::ops {
namespace {

// Small constants are copied: in a file they may be unaligned, and theirs are too small to count.
std::vector<float> copy_constant(const NodeInput& input) {
  if (!input.present || !input.constant) return {};
  std::vector<float> copy(static_cast<size_t>(input.value.elements()));
  if (!copy.empty()) std::memcpy(copy.data(), input.value.data, copy.size() * sizeof(float));
  return copy;
}

const float* payload(const std::vector<float>& constant, const Tensor& tensor) {
  return constant.empty() ? tensor.as<const float>() : constant.data();
}

Result<float> read_epsilon(const NodeView& node, AttributeReader& attributes, float absent) {
  QUERN_TRY(const float epsilon, attributes.float_or("epsilon", absent));
  if (!(epsilon >= 0)) {
    return bad_model(node.where(), fmt::format("attribute epsilon = {} is not allowed (0 or more)", epsilon));
  }
  return epsilon;
}

Result<void> check_all_float(const NodeView& node, int inputs) {
  for (int i = 0; i < inputs; i++) QUERN_TRY_VOID(check_dtype(node, i, DType::f32));
  return {};
}

// Means and inverse roots are by-products for training that no decoder graph asks for.
Result<void> refuse_output(const NodeView& node, int i, std::string_view name) {
  if (!node.has_output(i)) return {};
  return unsupported(node.where(), fmt::format("output {} ({}) is not supported", i, name));
}

class SimplifiedLayerNorm final : public Operator {
 public:
  SimplifiedLayerNorm(std::string where, int64_t axis, float epsilon, std::vector<float> gamma,
                      std::string_view variant)
      : where_(std::move(where)), axis_(axis), epsilon_(epsilon), gamma_(std::move(gamma)), variant_(variant) {}

  DType output_dtype(int) const override { return DType::f32; }
  std::string_view variant() const override { return variant_; }
  bool accepts_rows(int input) const override { return input == 0 && axis_ == -1; }
  bool accepts_unaligned(int input) const override { return input == 1 && !gamma_.empty(); }
  bool may_share(int input, int output) const override { return input == 0 && output == 0; }
  bool row_wise() const override { return axis_ == -1; }
  bool last_dimension() const { return axis_ == -1; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& x = args.in[0].shape;
    const Shape& gamma = args.in[1].shape;
    if (axis_ < -x.rank() || axis_ >= x.rank()) {
      return bad_request(where_, fmt::format("axis {} is outside of the input's shape {}", axis_, x.to_string()));
    }
    const int axis = first_axis(x);
    const int more = gamma.rank() - (x.rank() - axis);
    bool fits = true;
    for (int i = 0; i < gamma.rank(); i++) {
      const int64_t wanted = i < more ? 1 : x[axis + i - more];
      fits = fits && (gamma[i] == 1 || gamma[i] == wanted);
    }
    if (!fits) {
      return bad_request(where_,
                         fmt::format("scale of shape {} does not broadcast to dimensions {} and up of the input's "
                                     "shape {}",
                                     gamma.to_string(), axis, x.to_string()));
    }
    for (int i = axis; i < x.rank(); i++) {
      if (x[i] == 0)
        return bad_request(where_, fmt::format("input of shape {} has nothing to normalise", x.to_string()));
    }
    args.out[0] = x;
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    return run(ctx, in[0], in[1], out[0], nullptr, nullptr);
  }
  // y = norm(x), or norm(x + skip) for a `skip` of x's shape; the sum goes to `residual` where that is not null.
  Result<void> run(const Context& ctx, const Tensor& x, const Tensor& gamma, const Tensor& y, const float* skip,
                   float* residual) const {
    if (x.shape.checked_elements() == 0) return {};
    const int axis = first_axis(x.shape);
    RmsNormParams params;
    params.n = 1;
    for (int i = axis; i < x.shape.rank(); i++) params.n *= x.shape[i];
    params.rows = x.elements() / params.n;
    params.epsilon = epsilon_;
    RmsNormArgs args;
    args.x = x.as<const float>();
    args.x_layout = x.contiguous ? RowLayout{1, 0, params.n} : x.layout;
    args.gamma = payload(gamma_, gamma);
    args.skip = skip;
    params.skip_rows = params.rows;
    args.y = y.as<float>();
    args.residual = residual;
    const cpu::Arena::Scope scope(*ctx.scratch);
    if (gamma.elements() != params.n) {
      QUERN_TRY(float* expanded, ctx.scratch->take<float>(static_cast<size_t>(params.n)));
      expand_gamma(x.shape, axis, gamma.shape, args.gamma, {expanded, static_cast<size_t>(params.n)});
      args.gamma = expanded;
    }
    return rms_norm(ctx, params, args, where_);
  }

 private:
  int first_axis(const Shape& x) const { return static_cast<int>(axis_ < 0 ? axis_ + x.rank() : axis_); }

  static void expand_gamma(const Shape& x, int axis, const Shape& gamma, const float* from, std::span<float> to) {
    const int more = gamma.rank() - (x.rank() - axis);
    for (int64_t j = 0; j < static_cast<int64_t>(to.size()); j++) {
      int64_t rest = j, at = 0, stride = 1;
      for (int i = x.rank(); i-- > axis;) {
        const int g = i - axis + more;
        if (g >= 0 && gamma[g] != 1) at += rest % x[i] * stride;
        if (g >= 0) stride *= gamma[g];
        rest /= x[i];
      }
      to[static_cast<size_t>(j)] = from[at];
    }
  }

  std::string where_;
  int64_t axis_;
  float epsilon_;
  std::vector<float> gamma_;
  std::string_view variant_;
};

// An Add and the SimplifiedLayerNorm that reads it.
class AddNorm final : public Operator {
 public:
  AddNorm(std::unique_ptr<Operator> add, std::unique_ptr<Operator> norm)
      : add_(std::move(add)), norm_(std::move(norm)), layer_norm_(static_cast<const SimplifiedLayerNorm&>(*norm_)) {}

  DType output_dtype(int) const override { return DType::f32; }
  std::string_view variant() const override { return norm_->variant(); }
  bool accepts_unaligned(int input) const override { return input == 2 && norm_->accepts_unaligned(1); }
  // Either output may take the storage of either addend; they never get the same one.
  bool may_share(int input, int) const override { return input <= 1; }

  Result<void> resolve(const ResolveArgs& args) const override {
    QUERN_TRY_VOID(add_->resolve({args.in.first(2), {}, args.out.subspan(1, 1), {}, {}}));
    const Tensor in[] = {tensor(args.out[1], nullptr), args.in[2]};
    return norm_->resolve({in, {}, args.out.first(1), {}, {}});
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    if (in[0].shape == in[1].shape) {
      return layer_norm_.run(ctx, in[0], in[2], out[0], in[1].as<const float>(), out[1].as<float>());
    }
    // One addend repeats: the sum is made first.
    Tensor z = tensor(out[0].shape, out[1].data);
    const cpu::Arena::Scope scope(*ctx.scratch);
    if (!out[1].present) {
      QUERN_TRY(z.data, ctx.scratch->take<float>(static_cast<size_t>(z.elements())));
    }
    QUERN_TRY_VOID(add_->run(ctx, in.first(2), {&z, 1}));
    return layer_norm_.run(ctx, z, in[2], out[0], nullptr, nullptr);
  }

 private:
  static Tensor tensor(const Shape& shape, void* data) {
    Tensor t;
    t.shape = shape;
    t.data = data;
    return t;
  }

  std::unique_ptr<Operator> add_, norm_;
  const SimplifiedLayerNorm& layer_norm_;
};

class SkipSimplifiedLayerNorm final : public Operator {
 public:
  SkipSimplifiedLayerNorm(const NodeView& node, float epsilon, std::string_view variant)
      : where_(node.where()),
        epsilon_(epsilon),
        has_bias_(node.has_input(3)),
        has_residual_(node.has_output(3)),
        gamma_(copy_constant(node.input(2))),
        bias_(has_bias_ ? copy_constant(node.input(3)) : std::vector<float>()),
        variant_(variant) {}

  DType output_dtype(int) const override { return DType::f32; }
  std::string_view variant() const override { return variant_; }
  bool accepts_rows(int input) const override { return input == 0; }
  bool accepts_unaligned(int input) const override {
    return (input == 2 && !gamma_.empty()) || (input == 3 && !bias_.empty());
  }
  // Either output may take the storage of either addend; they never get the same one.
  bool may_share(int input, int output) const override { return input <= 1 && (output == 0 || output == 3); }

  Result<void> resolve(const ResolveArgs& args) const override {
    const Shape& x = args.in[0].shape;
    const Shape& skip = args.in[1].shape;
    if (x.rank() != 2 && x.rank() != 3) {
      return bad_request(where_,
                         fmt::format("input of shape {} has rank {}, expected 2 or 3", x.to_string(), x.rank()));
    }
    const int64_t n = x.back();
    if (n == 0) return bad_request(where_, fmt::format("input of shape {} has nothing to normalise", x.to_string()));
    const bool repeats = x.rank() == 3 && (skip == Shape{x[1], n} || skip == Shape{1, x[1], n});
    if (!(skip == x) && !repeats) {
      return bad_request(where_,
                         fmt::format("skip of shape {} is neither the input's shape {} nor repeated over its batch",
                                     skip.to_string(), x.to_string()));
    }
    QUERN_TRY_VOID(check_vector("gamma", args.in[2].shape, n));
    if (has_bias_) QUERN_TRY_VOID(check_vector("bias", args.in[3].shape, n));
    args.out[0] = x;
    if (has_residual_) args.out[3] = x;
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    const Tensor& x = in[0];
    if (x.shape.checked_elements() == 0) return {};
    RmsNormParams params;
    params.rows = x.shape.rows();
    params.n = x.shape.back();
    params.epsilon = epsilon_;
    params.skip_rows = in[1].shape.rows();
    RmsNormArgs args;
    args.x = x.as<const float>();
    args.x_layout = x.rows();
    args.gamma = payload(gamma_, in[2]);
    args.skip = in[1].as<const float>();
    args.bias = has_bias_ ? payload(bias_, in[3]) : nullptr;
    args.y = out[0].as<float>();
    args.residual = has_residual_ ? out[3].as<float>() : nullptr;
    return rms_norm(ctx, params, args, where_);
  }

 private:
  Result<void> check_vector(std::string_view name, const Shape& shape, int64_t n) const {
    if (shape == Shape{n}) return {};
    return bad_request(where_, fmt::format("{} has shape {}, expected [{}]", name, shape.to_string(), n));
  }

  std::string where_;
  float epsilon_;
  bool has_bias_, has_residual_;
  std::vector<float> gamma_, bias_;
  std::string_view variant_;
};

}  // namespace

std::unique_ptr<Operator> make_add_norm(std::unique_ptr<Operator>& add, std::unique_ptr<Operator>& norm) {
  const auto* known = dynamic_cast<const SimplifiedLayerNorm*>(norm.get());
  if (known == nullptr || !known->last_dimension()) return nullptr;
  return std::make_unique<AddNorm>(std::move(add), std::move(norm));
}

Result<std::unique_ptr<Operator>> make_simplified_layer_norm(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY_VOID(refuse_output(node, 1, "inv_std_var"));
  QUERN_TRY_VOID(check_arity(node, 2, 2, 1, 1));
  AttributeReader attributes(node);
  QUERN_TRY(const int64_t axis, attributes.int_or("axis", -1));
  QUERN_TRY(const float epsilon, read_epsilon(node, attributes, 1e-5f));
  QUERN_TRY_VOID(attributes.only_int("stash_type", 1));
  QUERN_TRY_VOID(attributes.finish());
  QUERN_TRY_VOID(check_all_float(node, 2));
  return std::unique_ptr<Operator>(std::make_unique<SimplifiedLayerNorm>(
      node.where(), axis, epsilon, copy_constant(node.input(1)), rms_norm_variant(ctx.features)));
}

Result<std::unique_ptr<Operator>> make_skip_simplified_layer_norm(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY_VOID(refuse_output(node, 1, "mean"));
  QUERN_TRY_VOID(refuse_output(node, 2, "inv_std_var"));
  QUERN_TRY_VOID(check_arity(node, 3, 4, 1, 4));
  AttributeReader attributes(node);
  QUERN_TRY(const float epsilon, read_epsilon(node, attributes, 1e-12f));
  QUERN_TRY_VOID(attributes.finish());
  QUERN_TRY_VOID(check_all_float(node, 4));
  return std::unique_ptr<Operator>(
      std::make_unique<SkipSimplifiedLayerNorm>(node, epsilon, rms_norm_variant(ctx.features)));
}

}  // namespace quern::ops
