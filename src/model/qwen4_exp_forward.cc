// SPDX-License-Identifier: Apache-2.0
// The text model, top down: run() is the whole, the functions behind it are its parts in the order of the paper. Tokens
// go through in chunks, which bounds the intermediates.
#include "model/qwen4_exp_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/brain.h"
#include "base/clock.h"
#include "ops/activation.h"
#include "ops/block_index/block_index.h"
#include "ops/centred_rms_norm/centred_rms_norm.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "ops/gated_norm/gated_norm.h"
#include "ops/gather/gather.h"
#include "ops/hyper_mix/hyper_mix.h"
#include "ops/linear/linear.h"
#include "ops/moe_matmul/moe_matmul.h"
#include "ops/moe_route/moe_route.h"
#include "ops/ngram_embed/ngram_embed.h"
#include "ops/ngram_ids/ngram_ids.h"
#include "ops/partial_rope/partial_rope.h"
#include "ops/ple_gate/ple_gate.h"
#include "ops/short_conv/short_conv.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace quern::model {
namespace {

using Config = Qwen4ExpConfig;

// A multiple of the 64 tokens that the delta rule takes at once, and enough that most experts meet several tokens.
constexpr int64_t kChunkTokens = 512;

// Rows without gaps in the type of the model.
struct Matrix {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t width = 0;

  ops::RowsIn in() const { return {data, width}; }
  ops::RowsOut out() const { return {data, width}; }
  // Each row as `heads` rows of `size` elements that start `stride` elements apart.
  ops::RowLayout heads(int64_t heads, int64_t stride) const { return {heads, stride, width}; }
};

// Gives back at its end what was taken from the arena, where there is one.
class Scope {
 public:
  explicit Scope(cpu::Arena* arena) {
    if (arena != nullptr) scope_.emplace(*arena);
  }

 private:
  std::optional<cpu::Arena::Scope> scope_;
};

// A result of a step, for observers. Without a type it has the model's.
struct Shown {
  Shown(const Matrix& m, std::string_view name = {}, std::optional<DType> element = {})  // NOLINT: implicit by intent
      : values(m), part(name), type(element) {}

  Matrix values;
  std::string_view part;
  std::optional<DType> type;
};

// A room, and the kernel that it selects for a call: what the call passes decides that here too.
struct Kernel {
  std::string_view room;
  std::string_view variant;
};

// Runs steps, or lists them: the same code does both, so a list cannot name what is not run.
class Steps {
 public:
  explicit Steps(std::vector<Qwen4ExpStep>& list) : list_(&list) {}
  explicit Steps(const Qwen4ExpPass& pass) : pass_(&pass) {}

  bool listing() const { return list_ != nullptr; }
  void start() { next_ = 0; }
  void set_layer(int32_t layer) {
    if (listing()) prefix_ = fmt::format("layers.{}.", layer);
  }
  void leave_layers() { prefix_.clear(); }

  // f(where) calls one room, which computes `results`.
  template <class F>
  Result<void> step(std::string_view name, const Kernel& kernel, std::initializer_list<Shown> results, F&& f) {
    if (listing()) {
      list_->push_back({prefix_ + std::string(name), kernel.room, kernel.variant, kernel.variant});
      return {};
    }
    QUERN_CHECK(next_ < pass_->costs.size(), "the steps were listed for this configuration");
    Qwen4ExpStepCost& cost = pass_->costs[next_];
    const std::string& where = pass_->model.steps[next_++].name;
    const uint64_t copied = pass_->context.counters->bytes_copied;
    cost.variant = kernel.variant;
    const int64_t start = pass_->profile ? now_ns() : 0;
    QUERN_TRY_VOID(f(std::string_view(where)));
    if (pass_->profile) cost.ns += now_ns() - start;
    cost.bytes_copied += pass_->context.counters->bytes_copied - copied;
    for (const Shown& result : results) QUERN_TRY_VOID(show(result));
    return {};
  }

  bool observed() const { return pass_ != nullptr && pass_->observer; }
  // To the observer, where there is one, as a result of the latest step.
  Result<void> show(const Shown& result) {
    if (!observed()) return {};
    const Matrix& m = result.values;
    const DType type = result.type.value_or(pass_->model.weights->type());
    return pass_->observer({pass_->model.steps[next_ - 1].name, result.part, type, m.rows, m.width, m.data});
  }

 private:
  std::vector<Qwen4ExpStep>* list_ = nullptr;
  const Qwen4ExpPass* pass_ = nullptr;
  size_t next_ = 0;
  std::string prefix_;
};

class Forward {
 public:
  // For a list: weights, past and memory are absent, and no step runs. Kernels are those for so many tokens.
  Forward(const Config& config, DType type, const cpu::Features& features, int64_t tokens,
          std::vector<Qwen4ExpStep>& list)
      : c_(config), type_(type), ctx_{nullptr, nullptr, features, nullptr}, steps_(list), tokens_(tokens) {}
  explicit Forward(const Qwen4ExpPass& pass)
      : c_(pass.model.config), pass_(&pass), type_(pass.model.weights->type()), ctx_(pass.context), steps_(pass) {}

  Result<void> run() {
    const auto end = static_cast<int64_t>(pass_->ids.size());
    while (pass_->past.tokens() < end) {
      past_ = pass_->past.tokens();
      tokens_ = std::min({kChunkTokens, end - past_, pass_->past.most_tokens()});
      QUERN_TRY_VOID(chunk());
      QUERN_TRY_VOID(pass_->past.advance_to(past_ + tokens_));
    }
    return {};
  }

  // x = repeat(embed(ids), C)
  // for each layer:  x += ngrams(x, ids);  x = residual(x, mixer);  x = residual(x, moe)
  // logits = linear(mix(x), lm_head)
  Result<void> chunk() {
    steps_.start();
    const Scope scope(ctx_.scratch);
    QUERN_TRY(Matrix x, take(c_.stream_width()));
    QUERN_TRY_VOID(embed(x));
    QUERN_TRY_VOID(rotation());
    for (int32_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      steps_.set_layer(layer);
      layer_ = layer;
      if (c_.ple_index(layer)) QUERN_TRY_VOID(ngrams(x));
      QUERN_TRY_VOID(residual("attn_hyper_connection", x, &Qwen4ExpLayerWeights::mixer_streams, &Forward::mixer));
      QUERN_TRY_VOID(residual("mlp_hyper_connection", x, &Qwen4ExpLayerWeights::moe_streams, &Forward::moe));
    }
    steps_.leave_layers();
    return head(x);
  }

 private:
  using Mixer = Result<Matrix> (Forward::*)(const Matrix& u);

  // ---- the stream ----

  // Every id once for each stream, whose copies of the row lie one behind the other.
  Result<void> embed(const Matrix& x) {
    return steps_.step("embed_tokens", {"gather", ops::kGatherVariant}, {x},
                       [&](std::string_view where) { return gather_rows(x, where); });
  }
  Result<void> gather_rows(const Matrix& x, std::string_view where) {
    const Scope scope(ctx_.scratch);
    const int64_t rows = tokens_ * c_.hc_count, row = c_.hidden_size;
    QUERN_TRY(int32_t * ids, take_array<int32_t>(rows));
    for (int64_t i = 0; i < rows; ++i) ids[i] = pass_->ids[static_cast<size_t>(past_ + i / c_.hc_count)];
    void* brains = x.data;
    if (type_ != DType::bf16) {
      QUERN_TRY(brains, take_array<uint16_t>(rows * row));
    }
    ops::GatherParams params;
    params.extent = c_.vocab_size;
    params.count = rows;
    params.slice_bytes = static_cast<size_t>(row) * sizeof(uint16_t);
    params.index_dtype = DType::i32;
    QUERN_TRY_VOID(ops::gather(ctx_, params, {pass_->model.weights->embed_tokens(), ids, brains, nullptr}, where));
    if (type_ != DType::bf16) copy_brain(brains, type_, x.data, rows * row);
    ctx_.counters->bytes_copied += static_cast<uint64_t>(rows * row * bytes_of_element());
    return {};
  }

  // x += f(mix(x)), f between the two halves of a hyper-connection.
  Result<void> residual(const char* name, const Matrix& x, HyperConnectionWeights Qwen4ExpLayerWeights::*streams,
                        Mixer f) {
    const Scope scope(ctx_.scratch);
    const HyperConnectionWeights w = listing() ? HyperConnectionWeights() : layer().*streams;
    QUERN_TRY(const Mixed mixed, mix(name, x, w));
    QUERN_TRY(const Matrix inject, linear(site(name, ".block_inject_weight"), mixed.normed, w.inject, c_.hc_count));
    QUERN_TRY(const Matrix y, (this->*f)(mixed.u));
    return steps_.step(site(name, ".scatter"), {"hyper_mix", ops::hyper_scatter_variant(type_, ctx_.features)}, {x},
                       [&](std::string_view where) {
                         return ops::hyper_scatter(ctx_, hyper_params(tokens_), {x.out(), y.in(), inject.in()}, where);
                       });
  }

  struct Mixed {
    Matrix u, normed;
  };
  Result<Mixed> mix(const char* name, const Matrix& x, const HyperConnectionWeights& w) {
    Mixed out;
    QUERN_TRY(out.normed, norm(site(name, ".hc_norm"), x, w.norm, c_.hidden_size));
    QUERN_TRY(const Matrix gate, linear(site(name, ".input_mix_weight_down"), out.normed, w.down, c_.hc_lowrank));
    QUERN_TRY_VOID(
        steps_.step(site(name, ".gate"), {"hyper_mix", ops::hyper_gate_variant(type_, ctx_.features)}, {gate},
                    [&](std::string_view where) {
                      return ops::hyper_gate(ctx_, {type_, gate.rows, gate.width, c_.hc_count}, gate.out(), where);
                    }));
    QUERN_TRY(const Matrix logits, linear(site(name, ".input_mix_weight_up"), gate, w.up, c_.stream_width()));
    QUERN_TRY(out.u, take(x.rows, c_.hidden_size));
    QUERN_TRY_VOID(steps_.step(
        site(name, ".mix"), {"hyper_mix", ops::hyper_mix_variant(type_, ctx_.features)}, {out.u},
        [&](std::string_view where) {
          return ops::hyper_mix(ctx_, hyper_params(x.rows), {out.normed.in(), logits.in(), out.u.out()}, where);
        }));
    return out;
  }

  // Logits of the wanted rows of this chunk.
  Result<void> head(const Matrix& x) {
    int64_t first = 0, rows = 0;
    if (!listing()) {
      first = std::max(pass_->first_row, past_);
      rows = std::max<int64_t>(0, std::min(pass_->first_row + pass_->rows, past_ + tokens_) - first);
      if (rows == 0) return {};
    }
    const Matrix wanted{listing() ? nullptr : at(type_, x.data, (first - past_) * x.width), rows, x.width};
    const HyperConnectionWeights w = listing() ? HyperConnectionWeights() : pass_->model.weights->final_streams();
    QUERN_TRY(const Mixed mixed, mix("hyper_connection_mixer", wanted, w));
    const void* weight = listing() ? nullptr : pass_->model.weights->lm_head();
    float* out = listing() ? nullptr : pass_->logits.data() + (first - pass_->first_row) * c_.vocab_size;
    if (type_ == DType::f32) return linear_into("lm_head", mixed.u, weight, {out, rows, c_.vocab_size});
    QUERN_TRY(const Matrix logits, take(rows, c_.vocab_size));
    QUERN_TRY_VOID(linear_into("lm_head", mixed.u, weight, logits));
    if (!listing()) copy_brain(logits.data, DType::f32, out, rows * c_.vocab_size);
    return {};
  }

  // ---- mixers ----

  Result<Matrix> mixer(const Matrix& u) {
    const bool linear_layer = c_.layer_types[static_cast<size_t>(layer_)] == Config::LayerKind::linear_attention;
    return linear_layer ? linear_attention(u) : sparse_attention(u);
  }

  Result<Matrix> linear_attention(const Matrix& u) {
    const LinearAttentionWeights w = listing() ? LinearAttentionWeights() : *layer().linear;
    const int64_t mixed = c_.linear_conv_width(), value = c_.linear_value_width(), heads = c_.linear_num_value_heads;
    QUERN_TRY(const Matrix qkv, linear("linear_attn.in_proj_qkv", u, w.qkv, mixed));
    QUERN_TRY(const Matrix z, linear("linear_attn.in_proj_z", u, w.z, value));
    QUERN_TRY(const Matrix b, linear("linear_attn.in_proj_b", u, w.b, heads));
    QUERN_TRY(const Matrix a, linear("linear_attn.in_proj_a", u, w.a, heads));
    QUERN_TRY(const Matrix conv, take(mixed));
    QUERN_TRY_VOID(
        steps_.step("linear_attn.conv1d", {"short_conv", ops::kShortConvVariant}, {conv}, [&](std::string_view where) {
          return ops::short_conv(ctx_, {type_, tokens_, mixed, c_.linear_conv_kernel_dim, 1},
                                 {qkv.in(), w.conv, pass_->past.conv_state(layer_), conv.out()}, where);
        }));
    if (steps_.observed()) {
      const int64_t past = ops::short_conv_past(c_.linear_conv_kernel_dim, 1);
      QUERN_TRY_VOID(steps_.show({{pass_->past.conv_state(layer_), past, mixed}, "state"}));
    }
    QUERN_TRY(const Matrix o, take(value));
    const auto form = tokens_ == 1 ? ops::DeltaForm::recurrent : ops::DeltaForm::chunked;
    const Kernel delta_rule{"gated_delta_rule", ops::gated_delta_rule_variant(form, ctx_.features)};
    QUERN_TRY_VOID(steps_.step("linear_attn.delta_rule", delta_rule, {o}, [&](std::string_view where) {
      return ops::gated_delta_rule(
          ctx_,
          {type_, form, tokens_, c_.linear_num_key_heads, c_.linear_num_value_heads, c_.linear_key_head_dim,
           c_.linear_value_head_dim},
          {conv.in(), b.in(), a.in(), w.a_log, w.dt_bias, pass_->past.recurrent_state(layer_), o.out()}, where);
    }));
    if (steps_.observed()) {
      const int64_t rows = heads * c_.linear_key_head_dim;
      QUERN_TRY_VOID(
          steps_.show({{pass_->past.recurrent_state(layer_), rows, c_.linear_value_head_dim}, "state", DType::f32}));
    }
    QUERN_TRY_VOID(
        steps_.step("linear_attn.norm", {"gated_norm", ops::kGatedNormVariant}, {o}, [&](std::string_view where) {
          const int64_t size = c_.linear_value_head_dim;
          const ops::RowLayout layout = o.heads(heads, size);
          return ops::gated_norm(ctx_, {type_, tokens_ * heads, size, c_.rms_norm_eps, c_.output_gate_type},
                                 {o.data, layout, z.data, layout, w.norm, o.data, layout}, where);
        }));
    return linear("linear_attn.out_proj", o, w.out, c_.hidden_size);
  }

  Result<Matrix> sparse_attention(const Matrix& u) {
    const SparseAttentionWeights w = listing() ? SparseAttentionWeights() : *layer().sparse;
    const int64_t size = c_.head_dim, heads = c_.num_attention_heads, kv_heads = c_.num_key_value_heads;
    QUERN_TRY(const Matrix qg, linear("self_attn.q_proj", u, w.q, 2 * c_.query_width()));
    QUERN_TRY(const Matrix k, linear("self_attn.k_proj", u, w.k, c_.key_width()));
    QUERN_TRY(const Matrix v, linear("self_attn.v_proj", u, w.v, c_.key_width()));
    // Of each head the first half is the query.
    const ops::RowLayout queries = qg.heads(heads, 2 * size), keys = k.heads(kv_heads, size);
    QUERN_TRY_VOID(norm_heads("self_attn.q_norm", qg, queries, heads, w.q_norm));
    QUERN_TRY_VOID(norm_heads("self_attn.k_norm", k, keys, kv_heads, w.k_norm));
    QUERN_TRY_VOID(rotate("self_attn.q_rope", qg, queries, c_.num_attention_heads));
    QUERN_TRY_VOID(rotate("self_attn.k_rope", k, keys, c_.num_key_value_heads));
    QUERN_TRY(const ops::BlockSelection selection, index(u, w));
    QUERN_TRY(const Matrix out, take(c_.query_width()));
    QUERN_TRY_VOID(steps_.step(
        "self_attn.attention", {"sparse_attention", ops::sparse_attention_variant(type_, ctx_.features)}, {out},
        [&](std::string_view where) {
          ops::SparseAttentionArgs args;
          args.q = {qg.data, qg.width, 2 * size};
          args.gate = {at(type_, qg.data, size), qg.width, 2 * size};
          args.k = {k.data, k.width, size};
          args.v = {v.data, v.width, size};
          args.cache = pass_->past.keys_values(layer_);
          args.selection = selection;
          args.out = out.out();
          return ops::sparse_attention(ctx_,
                                       {type_, c_.num_attention_heads, c_.num_key_value_heads, c_.head_dim, tokens_,
                                        past_, c_.indexer_compress_ratio, 1 / std::sqrt(static_cast<float>(size))},
                                       args, where);
        }));
    if (steps_.observed()) QUERN_TRY_VOID(show_cache());
    return linear("self_attn.o_proj", out, w.out, c_.hidden_size);
  }

  // All keys and values up to the last token, head by head.
  Result<void> show_cache() {
    const ops::KvView& cache = pass_->past.keys_values(layer_);
    for (int32_t head = 0; head < c_.num_key_value_heads; ++head) {
      const auto rows = [&](void* base) {
        return Matrix{at(type_, base, head * cache.head_stride), past_ + tokens_, c_.head_dim};
      };
      QUERN_TRY_VOID(steps_.show({rows(cache.keys), fmt::format("keys.{}", head)}));
      QUERN_TRY_VOID(steps_.show({rows(cache.values), fmt::format("values.{}", head)}));
    }
    return {};
  }

  // The blocks that each token attends to.
  Result<ops::BlockSelection> index(const Matrix& u, const SparseAttentionWeights& w) {
    const int32_t size = c_.indexer_head_dim, budget = c_.indexer_budget / c_.indexer_compress_ratio;
    QUERN_TRY(const Matrix z,
              linear("self_attn.indexer.index_qk_proj", u, w.index_qk, (int64_t{c_.indexer_n_heads} + 1) * size));
    ops::BlockSelection selection;
    const int64_t complete = (past_ + tokens_) / c_.indexer_compress_ratio;
    selection.stride = std::max<int64_t>(1, std::min<int64_t>(budget, complete));
    QUERN_TRY(selection.blocks, take_array<int32_t>(tokens_ * selection.stride));
    QUERN_TRY(selection.counts, take_array<int32_t>(tokens_));
    const Shown blocks({selection.blocks, tokens_, selection.stride}, "blocks", DType::i32);
    const Shown counts({selection.counts, tokens_, 1}, "counts", DType::i32);
    QUERN_TRY_VOID(steps_.step("self_attn.indexer", {"block_index", ops::block_index_variant(type_, ctx_.features)},
                               {blocks, counts}, [&](std::string_view where) {
                                 return ops::block_index(
                                     ctx_,
                                     {type_, c_.indexer_n_heads, size, c_.indexer_compress_ratio, budget, tokens_,
                                      past_, c_.rms_norm_eps},
                                     {z.in(), w.index_q_norm, w.index_k_norm, pass_->model.frequencies,
                                      pass_->past.block_keys(layer_), selection},
                                     where);
                               }));
    if (steps_.observed()) {
      const ops::BlockIndexState state = pass_->past.block_keys(layer_);
      QUERN_TRY_VOID(steps_.show({{state.keys, complete, size}, "keys"}));
      QUERN_TRY_VOID(steps_.show({{state.open, (past_ + tokens_) % c_.indexer_compress_ratio, size}, "open"}));
    }
    return selection;
  }

  // ---- mixture of experts ----

  Result<Matrix> moe(const Matrix& u) {
    const MoeWeights* w = listing() ? nullptr : &layer().moe;
    const int32_t chosen = c_.num_experts_per_tok;
    QUERN_TRY(const Matrix scores, linear("mlp.gate", u, w ? w->router : nullptr, c_.num_experts));
    QUERN_TRY(int32_t * experts, take_array<int32_t>(tokens_ * chosen));
    QUERN_TRY(float* shares, take_array<float>(tokens_ * chosen));
    const Shown choices({experts, tokens_, chosen}, "experts", DType::i32);
    const Shown weights({shares, tokens_, chosen}, "weights", DType::f32);
    QUERN_TRY_VOID(
        steps_.step("mlp.route", {"moe_route", ops::kMoeRouteVariant}, {choices, weights}, [&](std::string_view where) {
          return ops::moe_route(ctx_, {type_, tokens_, c_.num_experts, chosen, c_.norm_topk_prob},
                                {scores.in(), experts, shares}, where);
        }));
    QUERN_TRY(const Matrix y, take(c_.hidden_size));
    QUERN_TRY_VOID(steps_.step(
        "mlp.experts", {"moe_matmul", ops::moe_matmul_variant(type_, ctx_.features)}, {y}, [&](std::string_view where) {
          const auto all = static_cast<size_t>(tokens_ * chosen);
          return ops::moe_matmul(
              ctx_,
              {type_, tokens_, c_.hidden_size, c_.moe_intermediate_size, c_.shared_expert_intermediate_size, chosen},
              {u.in(), w->experts, w->shared, w->shared_gate, {experts, all}, {shares, all}, y.out()}, where);
        }));
    return y;
  }

  // ---- hashed n-grams ----

  Result<void> ngrams(const Matrix& x) {
    const Scope scope(ctx_.scratch);
    const NgramWeights* w = listing() ? nullptr : &*layer().ngrams;
    const int64_t width = c_.stream_width();
    QUERN_TRY(const Matrix e, ngram_rows(w));
    QUERN_TRY(const Matrix key, linear("ple.key_proj", e, w ? w->key : nullptr, width));
    QUERN_TRY(const Matrix value, linear("ple.value_proj", e, w ? w->value : nullptr, c_.hidden_size));
    QUERN_TRY(const Matrix key_normed, norm("ple.norm_key", key, w ? w->norm_key : nullptr, c_.hidden_size));
    QUERN_TRY(const Matrix query_normed, norm("ple.norm_query", x, w ? w->norm_query : nullptr, c_.hidden_size));
    const ops::PleParams params{type_, tokens_, c_.hidden_size, c_.hc_count};
    QUERN_TRY(const Matrix gated, take(width));
    QUERN_TRY_VOID(steps_.step("ple.gate", {"ple_gate", ops::kPleGateVariant}, {gated}, [&](std::string_view where) {
      return ops::ple_gate(ctx_, params, {key_normed.in(), query_normed.in(), value.in(), gated.out()}, where);
    }));
    QUERN_TRY(const Matrix normed, norm("ple.norm_conv", gated, w ? w->norm_conv : nullptr, c_.hidden_size));
    QUERN_TRY(const Matrix conv, take(width));
    QUERN_TRY_VOID(
        steps_.step("ple.conv1d", {"short_conv", ops::kShortConvVariant}, {conv}, [&](std::string_view where) {
          return ops::short_conv(ctx_, {type_, tokens_, width, c_.ple_conv_kernel_size, c_.ngram_size},
                                 {normed.in(), w->conv, pass_->past.ngram_conv_state(layer_), conv.out()}, where);
        }));
    if (steps_.observed()) {
      const int64_t past = ops::short_conv_past(c_.ple_conv_kernel_size, c_.ngram_size);
      QUERN_TRY_VOID(steps_.show({{pass_->past.ngram_conv_state(layer_), past, width}, "state"}));
    }
    return steps_.step("ple.add", {"ple_gate", ops::kPleAddVariant}, {x}, [&](std::string_view where) {
      return ops::ple_add(ctx_, params, {x.out(), gated.in(), conv.in()}, where);
    });
  }

  // The concatenated rows of the table that the tokens hash to.
  Result<Matrix> ngram_rows(const NgramWeights* w) {
    const int64_t heads = c_.ngram_heads();
    QUERN_TRY(int64_t * rows, take_array<int64_t>(tokens_ * heads));
    const auto all = static_cast<size_t>(tokens_ * heads);
    const Shown shown({rows, tokens_, heads}, {}, DType::i64);
    QUERN_TRY_VOID(
        steps_.step("ple.ngram_ids", {"ngram_ids", ops::kNgramIdsVariant}, {shown}, [&](std::string_view where) {
          // An n-gram reaches back ngram_size - 1 tokens.
          const int64_t begin = std::max<int64_t>(0, past_ - (c_.ngram_size - 1));
          const auto ids = pass_->ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(past_ + tokens_ - begin));
          return ops::ngram_ids(ctx_, {c_.ngram_size, c_.heads_per_ngram, c_.vocab_size, c_.eos_token_ids.front()},
                                {w->hash.multipliers, w->hash.sizes, w->hash.offsets, ids, past_ - begin, {rows, all}},
                                where);
        }));
    QUERN_TRY(const Matrix e, take(c_.ple_embed_dim));
    QUERN_TRY_VOID(
        steps_.step("ple.ngram_embedding", {"ngram_embed", ops::kNgramEmbedVariant}, {e}, [&](std::string_view where) {
          return look_up(*w, {rows, all}, e, where);
        }));
    return e;
  }

  // Rows of the table, which is bfloat16, in the type of the model.
  Result<void> look_up(const NgramWeights& w, std::span<const int64_t> rows, const Matrix& e, std::string_view where) {
    const ops::NgramEmbedParams params{DType::bf16, tokens_, c_.ngram_heads(), c_.ngram_head_dim()};
    if (type_ == DType::bf16) return ops::ngram_embed(ctx_, params, {w.table, rows, e.data}, where);
    QUERN_TRY(uint16_t * brains, take_array<uint16_t>(tokens_ * e.width));
    QUERN_TRY_VOID(ops::ngram_embed(ctx_, params, {w.table, rows, brains}, where));
    copy_brain(brains, DType::f32, e.data, tokens_ * e.width);
    return {};
  }

  // ---- parts of parts ----

  Result<Matrix> linear(std::string_view name, const Matrix& x, const void* weight, int64_t outputs) {
    QUERN_TRY(const Matrix y, take(x.rows, outputs));
    QUERN_TRY_VOID(linear_into(name, x, weight, y));
    return y;
  }
  Result<void> linear_into(std::string_view name, const Matrix& x, const void* weight, const Matrix& y) {
    constexpr DType kWeights = DType::bf16;  // as in the file, whatever is computed in
    const Kernel kernel{"linear", ops::linear_variant(kWeights, ctx_.features)};
    return steps_.step(name, kernel, {y}, [&](std::string_view where) {
      return ops::linear(ctx_, {type_, kWeights, x.rows, y.width, x.width}, {x.in(), weight, y.out()}, where);
    });
  }

  Kernel norm_kernel() const { return {"centred_rms_norm", ops::centred_rms_norm_variant(type_, ctx_.features)}; }
  // Centred norm of rows in groups.
  Result<Matrix> norm(std::string_view name, const Matrix& x, const void* weight, int64_t group) {
    QUERN_TRY(const Matrix y, take(x.rows, x.width));
    QUERN_TRY_VOID(steps_.step(name, norm_kernel(), {y}, [&](std::string_view where) {
      return ops::centred_rms_norm(ctx_, {type_, x.rows, x.width, group, c_.rms_norm_eps},
                                   {x.data, {1, 0, x.width}, weight, y.data, {1, 0, y.width}}, where);
    }));
    return y;
  }
  Result<void> norm_heads(std::string_view name, const Matrix& x, const ops::RowLayout& layout, int64_t heads,
                          const void* weight) {
    return steps_.step(name, norm_kernel(), {x}, [&](std::string_view where) {
      return ops::centred_rms_norm(ctx_, {type_, tokens_ * heads, c_.head_dim, c_.head_dim, c_.rms_norm_eps},
                                   {x.data, layout, weight, x.data, layout}, where);
    });
  }
  Result<void> rotate(std::string_view name, const Matrix& x, const ops::RowLayout& layout, int32_t heads) {
    return steps_.step(name, {"partial_rope", ops::kPartialRopeVariant}, {x}, [&](std::string_view where) {
      return ops::partial_rope(ctx_, {type_, tokens_, heads, c_.head_dim, c_.rotary_dim},
                               {x.data, layout, cos_, sin_, x.data, layout}, where);
    });
  }

  // Angles of the chunk's positions, for all layers.
  Result<void> rotation() {
    const int64_t half = c_.rotary_dim / 2;
    QUERN_TRY(int64_t * positions, take_array<int64_t>(tokens_));
    QUERN_TRY(cos_, take_array<float>(tokens_ * half));
    QUERN_TRY(sin_, take_array<float>(tokens_ * half));
    if (listing()) return {};
    for (int64_t t = 0; t < tokens_; ++t) positions[t] = past_ + t;
    ops::fill_rope_table({type_, {positions, static_cast<size_t>(tokens_)}, pass_->model.frequencies, cos_, sin_});
    return {};
  }

  // ---- memory ----

  bool listing() const { return steps_.listing(); }
  const Qwen4ExpLayerWeights& layer() const { return pass_->model.weights->layer(layer_); }
  int64_t bytes_of_element() const { return bits_of(type_) / 8; }
  ops::HyperMixParams hyper_params(int64_t rows) const { return {type_, rows, c_.hidden_size, c_.hc_count}; }

  template <class T>
  Result<T*> take_array(int64_t count) {
    if (listing()) return static_cast<T*>(nullptr);
    return ctx_.scratch->take<T>(static_cast<size_t>(count));
  }
  Result<Matrix> take(int64_t rows, int64_t width) {
    QUERN_TRY(std::byte * data, take_array<std::byte>(rows * width * bytes_of_element()));
    return Matrix{data, rows, width};
  }
  Result<Matrix> take(int64_t width) { return take(tokens_, width); }

  static const void* at(DType type, const void* base, int64_t element) {
    return static_cast<const std::byte*>(base) + element * (bits_of(type) / 8);
  }
  static void* at(DType type, void* base, int64_t element) {
    return static_cast<std::byte*>(base) + element * (bits_of(type) / 8);
  }
  // Elements of a bfloat16 row, widened where the target has float32.
  static void copy_brain(const void* from, DType to_type, void* to, int64_t count) {
    if (to_type == DType::bf16) {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(uint16_t));
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      uint16_t brain;
      std::memcpy(&brain, static_cast<const std::byte*>(from) + i * static_cast<int64_t>(sizeof(brain)), sizeof(brain));
      static_cast<float*>(to)[i] = brain_to_float(brain);
    }
  }

  // "<name><part>" where names are kept; the listing alone looks at it.
  std::string_view site(const char* name, const char* part) {
    if (!listing()) return {};
    site_ = fmt::format("{}{}", name, part);
    return site_;
  }

  const Config& c_;
  const Qwen4ExpPass* pass_ = nullptr;
  const DType type_ = DType::f32;
  const ops::Context ctx_{};
  Steps steps_;
  std::string site_;
  int64_t past_ = 0;    // tokens before the chunk
  int64_t tokens_ = 0;  // of the chunk
  int32_t layer_ = 0;
  float* cos_ = nullptr;  // [tokens][rotary_dim / 2]
  float* sin_ = nullptr;
};

}  // namespace

std::vector<Qwen4ExpStep> list_qwen4_exp_steps(const Qwen4ExpConfig& config, DType type,
                                               const cpu::Features& features) {
  const auto list = [&](int64_t tokens) {
    std::vector<Qwen4ExpStep> steps;
    const Result<void> listed = Forward(config, type, features, tokens, steps).chunk();
    QUERN_CHECK(listed.ok(), "listing takes nothing that can fail");
    return steps;
  };
  std::vector<Qwen4ExpStep> steps = list(kChunkTokens);
  const std::vector<Qwen4ExpStep> single = list(1);
  QUERN_CHECK(single.size() == steps.size(), "the same steps for any number of tokens");
  for (size_t i = 0; i < steps.size(); ++i) steps[i].token_variant = single[i].variant;
  return steps;
}

Result<void> run_qwen4_exp(const Qwen4ExpPass& pass) { return Forward(pass).run(); }

}  // namespace quern::model
