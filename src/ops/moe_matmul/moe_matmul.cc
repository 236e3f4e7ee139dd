// SPDX-License-Identifier: Apache-2.0
// The mixture's entry: checks, tokens grouped by expert, and the cut of both products into independent ranges of rows.
// No sums over rows of weights (the tiles of ops/linear do those).
#include "ops/moe_matmul/moe_matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/checked.h"
#include "ops/activation.h"
#include "ops/element.h"
#include "ops/linear/linear.h"

namespace quern::ops {
namespace {

// Rows of weights that one piece of work reads, a multiple of kLinearStep: at a hidden size of 2560 they are 160 KiB of
// bfloat16, large enough for long streams and small enough that one token's experts make some hundred pieces.
constexpr int64_t kRows = 32;
// Tokens that a kernel call is given: their results stay in the first-level cache.
constexpr int64_t kTokens = 32;

Result<void> check(const MoeMatmulParams& p, const MoeMatmulArgs& a, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.hidden < 1 || p.width < 1 || p.shared_width < 1) {
    return refuse(fmt::format("experts of {} and {} rows on {} elements are not allowed (at least 1 each)", p.width,
                              p.shared_width, p.hidden));
  }
  const auto slots = checked_mul<int64_t>(p.tokens, p.chosen);
  if (p.tokens < 0 || p.chosen < 1 || !slots || a.chosen_experts.size() != static_cast<size_t>(*slots) ||
      a.chosen_weights.size() != static_cast<size_t>(*slots)) {
    return refuse(fmt::format("{} experts and {} weights for {} tokens with {} each are not allowed",
                              a.chosen_experts.size(), a.chosen_weights.size(), p.tokens, p.chosen));
  }
  if (p.tokens > 1 && (a.x.stride < p.hidden || a.out.stride < p.hidden)) {
    return refuse(fmt::format("rows of {} elements at distances of {} and {} are not allowed", p.hidden, a.x.stride,
                              a.out.stride));
  }
  for (const int32_t e : a.chosen_experts) {
    if (e < 0 || e >= static_cast<int64_t>(a.experts.size())) {
      return refuse(fmt::format("expert {} is outside of the {} there are", e, a.experts.size()));
    }
  }
  return {};
}

// The sorted choices [begin, end) of one expert, and its rows of x in the form that tiles read.
struct Group {
  const ExpertWeights* weights;
  int64_t begin, end;
  const float* x;
};

template <class E>
class Mixture {
 public:
  Mixture(const Context& ctx, const MoeMatmulParams& params, const MoeMatmulArgs& args)
      : ctx_(ctx),
        p_(params),
        a_(args),
        tile_(linear_tile(params.type, ctx.features)),
        slots_(params.tokens * params.chosen),
        x_floats_(linear_row_floats(params.hidden)),
        activation_floats_(linear_row_floats(params.width)),
        shared_floats_(linear_row_floats(params.shared_width)) {}

  Result<void> run() {
    cpu::Arena::Scope scope(*ctx_.scratch);
    QUERN_TRY_VOID(take_memory());
    group_tokens();
    prepare_rows();

    // The shared expert has the most tokens of a prompt and goes first, so that the pieces taken last are short.
    const int64_t shared_pieces = ceil_div(p_.shared_width, kRows);
    const int64_t pieces = ceil_div(p_.width, kRows);
    const Group shared{&a_.shared, 0, p_.tokens, rows_};
    ctx_.pool->parallel_for(1 + shared_pieces + pieces * groups_count_, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        if (i < shared_pieces) {
          activate(shared, p_.shared_width, i * kRows, shared_activations_);
        } else if (i == shared_pieces) {
          compute_shared_gates();
        } else {
          const Group& g = groups_[(i - shared_pieces - 1) / pieces];
          activate(g, p_.width, (i - shared_pieces - 1) % pieces * kRows, activations_ + g.begin * activation_floats_);
        }
      }
    });
    ctx_.pool->parallel_for(ceil_div(p_.hidden, kRows), 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; i++) combine(i * kRows, terms_ + worker * slots_ * kRows);
    });
    if (ctx_.counters != nullptr) {
      const int64_t elements = 3 * p_.hidden * (groups_count_ * p_.width + p_.shared_width) + p_.hidden;
      ctx_.counters->weight_bytes_read += static_cast<uint64_t>(elements * (bits_of(p_.type) / 8));
    }
    return {};
  }

 private:
  template <class T>
  Result<void> take(T*& at, int64_t count) {
    QUERN_TRY(at, ctx_.scratch->take<T>(static_cast<size_t>(count)));
    return {};
  }

  Result<void> take_memory() {
    const auto experts = static_cast<int64_t>(a_.experts.size());
    QUERN_TRY_VOID(take(starts_, experts + 1));
    QUERN_TRY_VOID(take(groups_, std::min(experts, slots_)));
    QUERN_TRY_VOID(take(order_, slots_));
    QUERN_TRY_VOID(take(rows_, p_.tokens * x_floats_));
    QUERN_TRY_VOID(take(activations_, slots_ * activation_floats_));
    QUERN_TRY_VOID(take(shared_activations_, p_.tokens * shared_floats_));
    QUERN_TRY_VOID(take(shared_gates_, p_.tokens));
    QUERN_TRY_VOID(take(terms_, ctx_.pool->threads() * slots_ * kRows));
    QUERN_TRY_VOID(take(gathered_, slots_ * x_floats_));
    return {};
  }

  // order_: the slots (token * K + rank) by expert, those of an expert in their own order.
  void group_tokens() {
    const auto experts = static_cast<int64_t>(a_.experts.size());
    std::fill_n(starts_, experts + 1, int64_t{0});
    for (const int32_t e : a_.chosen_experts) starts_[e + 1]++;
    for (int64_t e = 0; e < experts; e++) {
      starts_[e + 1] += starts_[e];
      if (starts_[e + 1] == starts_[e]) continue;
      groups_[groups_count_++] = {&a_.experts[static_cast<size_t>(e)], starts_[e], starts_[e + 1],
                                  gathered_ + starts_[e] * x_floats_};
    }
    for (int64_t slot = 0; slot < slots_; slot++)
      order_[starts_[a_.chosen_experts[static_cast<size_t>(slot)]]++] = slot;
  }

  // The rows of x, and the padding of the rows of activations.
  void prepare_rows() {
    for_rows(ctx_, p_.tokens, p_.hidden, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; t++) {
        prepare_linear_row(p_.type, p_.type, element_at(p_.type, a_.x.data, t * a_.x.stride), p_.hidden,
                           rows_ + t * x_floats_);
        pad(shared_activations_ + t * shared_floats_, p_.shared_width, shared_floats_);
      }
    });
    for_rows(ctx_, slots_, p_.hidden, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        pad(activations_ + i * activation_floats_, p_.width, activation_floats_);
        std::copy_n(rows_ + order_[i] / p_.chosen * x_floats_, x_floats_, gathered_ + i * x_floats_);
      }
    });
  }
  void pad(float* row, int64_t from, int64_t end) const {
    for (int64_t i = from; i < end; i++) row[linear_place(p_.type, i)] = 0;
  }

  // Calls f(first, tokens, y) with y[t * kRows + j] = rows [row, row + rows) of w times row first + t of x.
  template <class F>
  void multiply(const void* w, int64_t row, int64_t rows, int64_t depth, const float* x, int64_t count, F f) {
    std::array<float, kTokens * kRows> y;
    const int64_t floats = linear_row_floats(depth);
    for (int64_t t = 0; t < count; t += kTokens) {
      const int64_t tokens = std::min(kTokens, count - t);
      tile_({x + t * floats, floats, element_at(p_.type, w, row * depth), y.data(), kRows, tokens, rows, depth});
      f(t, tokens, y.data());
    }
  }

  // Columns [row, row + kRows) of the activations of a group.
  void activate(const Group& g, int64_t width, int64_t row, float* out) {
    const int64_t rows = std::min(kRows, width - row), floats = linear_row_floats(width);
    const auto place = [&](int64_t t, int64_t j) -> float& { return out[t * floats + linear_place(p_.type, row + j)]; };
    multiply(g.weights->gate, row, rows, p_.hidden, g.x, g.end - g.begin,
             [&](int64_t first, int64_t tokens, const float* gate) {
               for (int64_t t = 0; t < tokens; t++) {
                 for (int64_t j = 0; j < rows; j++) {
                   place(first + t, j) = E::round(silu(E::round(gate[t * kRows + j])));
                 }
               }
             });
    multiply(g.weights->up, row, rows, p_.hidden, g.x, g.end - g.begin,
             [&](int64_t first, int64_t tokens, const float* up) {
               for (int64_t t = 0; t < tokens; t++) {
                 for (int64_t j = 0; j < rows; j++) {
                   float& a = place(first + t, j);
                   a = E::round(a * E::round(up[t * kRows + j]));
                 }
               }
             });
  }

  void compute_shared_gates() {
    multiply(a_.shared_gate, 0, 1, p_.hidden, rows_, p_.tokens, [&](int64_t first, int64_t tokens, const float* y) {
      for (int64_t t = 0; t < tokens; t++) shared_gates_[first + t] = E::round(sigmoid(E::round(y[t * kRows])));
    });
  }

  // Columns [row, row + kRows) of out. `terms` has room for one such piece of every slot.
  void combine(int64_t row, float* terms) {
    const int64_t rows = std::min(kRows, p_.hidden - row);
    for (int64_t i = 0; i < groups_count_; i++) {
      const Group& g = groups_[i];
      multiply(g.weights->down, row, rows, p_.width, activations_ + g.begin * activation_floats_, g.end - g.begin,
               [&](int64_t first, int64_t tokens, const float* y) {
                 for (int64_t t = 0; t < tokens; t++) {
                   const int64_t slot = order_[g.begin + first + t];
                   const float weight = a_.chosen_weights[static_cast<size_t>(slot)];
                   for (int64_t j = 0; j < rows; j++) {
                     terms[slot * kRows + j] = E::round(E::round(y[t * kRows + j]) * weight);
                   }
                 }
               });
    }
    multiply(a_.shared.down, row, rows, p_.shared_width, shared_activations_, p_.tokens,
             [&](int64_t first, int64_t tokens, const float* y) {
               for (int64_t t = first; t < first + tokens; t++) {
                 void* out = element_at(p_.type, a_.out.data, t * a_.out.stride + row);
                 for (int64_t j = 0; j < rows; j++) {
                   float routed = 0;
                   for (int64_t k = 0; k < p_.chosen; k++) routed += terms[(t * p_.chosen + k) * kRows + j];
                   const float shared = E::round(shared_gates_[t] * E::round(y[(t - first) * kRows + j]));
                   E::store(out, j, E::round(routed) + shared);
                 }
               }
             });
  }

  const Context& ctx_;
  const MoeMatmulParams& p_;
  const MoeMatmulArgs& a_;
  LinearTile* tile_;
  int64_t slots_;              // choices of all tokens
  int64_t x_floats_;           // of a prepared row of x
  int64_t activation_floats_;  // of one of a routed expert's activations
  int64_t shared_floats_;      // of one of the shared expert's
  int64_t* starts_ = nullptr;
  int64_t* order_ = nullptr;
  Group* groups_ = nullptr;  // the experts that have tokens
  int64_t groups_count_ = 0;
  float* rows_ = nullptr;                // x of each token
  float* gathered_ = nullptr;            // x of each sorted slot
  float* activations_ = nullptr;         // of each sorted slot
  float* shared_activations_ = nullptr;  // of each token
  float* shared_gates_ = nullptr;
  float* terms_ = nullptr;  // [worker][slot][kRows]
};

}  // namespace

std::string_view moe_matmul_variant(DType type, const cpu::Features& features) {
  return linear_variant(type, features);
}

Result<void> moe_matmul(const Context& ctx, const MoeMatmulParams& params, const MoeMatmulArgs& args,
                        std::string_view where) {
  QUERN_TRY_VOID(check(params, args, where));
  if (params.tokens == 0) return {};
  if (params.type == DType::f32) return Mixture<FloatElement>(ctx, params, args).run();
  return Mixture<BrainElement>(ctx, params, args).run();
}

}  // namespace quern::ops
