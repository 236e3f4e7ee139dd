// SPDX-License-Identifier: Apache-2.0
// The entry: checks, the keys of the blocks that the call completes, and for each query the scores and the choice. No
// dot products (the variants do those).
#include "ops/block_index/block_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "base/checked.h"
#include "ops/block_index/kernels.h"
#include "ops/centred_rms_norm/centred_rms_norm.h"
#include "ops/element.h"
#include "ops/partial_rope/partial_rope.h"

namespace quern::ops {

#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(BlockScoreFunction symbol;)
#include "ops/block_index/kernels.inc"
#undef QUERN_KERNEL

namespace {

constexpr TypedVariant<BlockScoreFunction> kLines[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/block_index/kernels.inc"
#undef QUERN_KERNEL
};

const TypedVariant<BlockScoreFunction>& variant_for(DType type, const cpu::Features& features) {
  return select_typed(std::span<const TypedVariant<BlockScoreFunction>>(kLines), type, features);
}

constexpr VariantInfo kVariants[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #type}, )
#include "ops/block_index/kernels.inc"
#undef QUERN_KERNEL
};

// Blocks that one piece of work scores: 256 KiB of bfloat16 keys at 128 elements.
constexpr int64_t kPieceBlocks = 1024;
// Scores that are kept at once, in floats; more queries are taken in batches.
constexpr int64_t kBatchScores = int64_t{4} << 20;

Result<void> check(const BlockIndexParams& p, const BlockIndexArgs& a, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.heads < 1 || p.head_size < 8 || p.head_size % 8 != 0) {
    return refuse(fmt::format("{} index heads of {} elements are not allowed (at least 1, of a multiple of 8)", p.heads,
                              p.head_size));
  }
  if (static_cast<int64_t>(a.frequencies.size()) > p.head_size / 2) {
    return refuse(fmt::format("{} frequencies for heads of {} elements are not allowed (at most half as many)",
                              a.frequencies.size(), p.head_size));
  }
  if (p.ratio < 1 || p.budget < 1) {
    return refuse(fmt::format("{} blocks of {} tokens are not allowed (at least 1 each)", p.budget, p.ratio));
  }
  if (!(p.epsilon >= 0)) return refuse(fmt::format("epsilon {} is not allowed (0 or more)", p.epsilon));
  if (p.tokens > 1 && a.z.stride < (int64_t{p.heads} + 1) * p.head_size) {
    return refuse(fmt::format("rows of {} heads of {} elements at a distance of {} are not allowed", p.heads + 1,
                              p.head_size, a.z.stride));
  }
  const auto end = checked_add(p.past, p.tokens);
  if (p.tokens < 1 || p.past < 0 || !end) {
    return refuse(fmt::format("{} new tokens behind {} are not allowed (at least 1)", p.tokens, p.past));
  }
  const int64_t blocks = *end / p.ratio;
  if (blocks > a.state.capacity) {
    return refuse(fmt::format("{} blocks do not fit into a state of {}", blocks, a.state.capacity));
  }
  if (a.selection.stride < std::min<int64_t>(p.budget, blocks)) {
    return refuse(fmt::format("room for {} chosen blocks of {} is not allowed", a.selection.stride,
                              std::min<int64_t>(p.budget, blocks)));
  }
  return {};
}

template <class E>
class BlockIndex {
 public:
  BlockIndex(const Context& ctx, const BlockIndexParams& params, const BlockIndexArgs& args, std::string_view where)
      : ctx_(ctx),
        p_(params),
        a_(args),
        where_(where),
        score_(variant_for(params.type, ctx.features).run),
        end_(params.past + params.tokens),
        blocks_(end_ / params.ratio),
        // The first new token that sees more complete blocks than the budget.
        first_(std::clamp<int64_t>((int64_t{params.budget} + 1) * params.ratio - 1 - params.past, 0, params.tokens)),
        batch_(std::clamp<int64_t>(kBatchScores / std::max<int64_t>(1, blocks_), 1,
                                   std::max<int64_t>(1, params.tokens - first_))) {}

  Result<void> run() {
    cpu::Arena::Scope scope(*ctx_.scratch);
    const int64_t query = int64_t{p_.heads} * p_.head_size;
    const auto queries = static_cast<size_t>((p_.tokens - first_) * query);
    QUERN_TRY(void* const narrow, ctx_.scratch->take(queries * static_cast<size_t>(bits_of(p_.type) / 8)));
    QUERN_TRY(queries_, ctx_.scratch->take<float>(queries));
    if (first_ < p_.tokens) {
      QUERN_TRY(scores_, ctx_.scratch->take<float>(static_cast<size_t>(batch_ * blocks_)));
      QUERN_TRY(sorted_, ctx_.scratch->take<float>(static_cast<size_t>(ctx_.pool->threads() * blocks_)));
    }
    const auto rotated = static_cast<size_t>(std::max(p_.tokens - first_, blocks_ - p_.past / p_.ratio));
    QUERN_TRY(positions_, ctx_.scratch->take<int64_t>(rotated));
    QUERN_TRY(cos_, ctx_.scratch->take<float>(rotated * a_.frequencies.size()));
    QUERN_TRY(sin_, ctx_.scratch->take<float>(rotated * a_.frequencies.size()));
    QUERN_TRY_VOID(complete_blocks());
    std::fill_n(a_.selection.counts, first_, kAllBlocks);
    QUERN_TRY_VOID(make_queries(narrow));
    for (int64_t at = first_; at < p_.tokens; at += batch_) choose(at, std::min(batch_, p_.tokens - at));
    return {};
  }

 private:
  const void* raw_key(int64_t token) const {
    return element_at(p_.type, a_.z.data, token * a_.z.stride + int64_t{p_.heads} * p_.head_size);
  }
  // The raw key at a position, of this call or left open by an earlier one.
  const void* raw_key_at(int64_t position) const {
    if (position >= p_.past) return raw_key(position - p_.past);
    return element_at(p_.type, a_.state.open, position % p_.ratio * p_.head_size);
  }

  Result<void> norm(const void* x, const RowLayout& layout, const void* weight, int64_t rows, void* y) {
    return centred_rms_norm(ctx_, {p_.type, rows, p_.head_size, p_.head_size, p_.epsilon},
                            {x, layout, weight, y, {1, 0, p_.head_size}}, where_);
  }

  // Heads of `count` rows without gaps, row i at position first + i * step.
  Result<void> rotate(void* rows, int64_t count, int32_t heads, int64_t first, int64_t step) {
    for (int64_t i = 0; i < count; i++) positions_[i] = first + i * step;
    fill_rope_table({p_.type, {positions_, static_cast<size_t>(count)}, a_.frequencies, cos_, sin_});
    const RowLayout layout{1, 0, p_.head_size};
    return partial_rope(ctx_, {p_.type, count, heads, p_.head_size, static_cast<int32_t>(2 * a_.frequencies.size())},
                        {rows, layout, cos_, sin_, rows, layout}, where_);
  }

  Result<void> complete_blocks() {
    const int64_t first = p_.past / p_.ratio;
    void* const keys = element_at(p_.type, a_.state.keys, first * p_.head_size);
    for_rows(ctx_, blocks_ - first, int64_t{p_.ratio} * p_.head_size, [&](int64_t begin, int64_t end, int) {
      for (int64_t b = begin; b < end; b++) pool((first + b) * p_.ratio, element_at(p_.type, keys, b * p_.head_size));
    });
    QUERN_TRY_VOID(norm(keys, {1, 0, p_.head_size}, a_.k_weight, blocks_ - first, keys));
    QUERN_TRY_VOID(rotate(keys, blocks_ - first, 1, first * p_.ratio, p_.ratio));
    // What stays open: where a block was completed, all of it is of this call.
    const auto bytes = static_cast<size_t>(p_.head_size) * static_cast<size_t>(bits_of(p_.type) / 8);
    for (int64_t at = std::max(p_.past, blocks_ * p_.ratio); at < end_; at++) {
      std::memcpy(element_at(p_.type, a_.state.open, at % p_.ratio * p_.head_size), raw_key(at - p_.past), bytes);
    }
    return {};
  }

  void pool(int64_t position, void* out) const {
    for (int64_t i = 0; i < p_.head_size; i++) {
      float sum = 0;
      for (int64_t j = 0; j < p_.ratio; j++) sum += E::load(raw_key_at(position + j), i);
      E::store(out, i, sum / static_cast<float>(p_.ratio));
    }
  }

  // Of the tokens from first_ on, as floats.
  Result<void> make_queries(void* narrow) {
    const int64_t query = int64_t{p_.heads} * p_.head_size;
    const void* z = element_at(p_.type, a_.z.data, first_ * a_.z.stride);
    QUERN_TRY_VOID(
        norm(z, {p_.heads, p_.head_size, a_.z.stride}, a_.q_weight, (p_.tokens - first_) * p_.heads, narrow));
    QUERN_TRY_VOID(rotate(narrow, p_.tokens - first_, p_.heads, p_.past + first_, 1));
    for_rows(ctx_, p_.tokens - first_, query, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin * query; i < end * query; i++) queries_[i] = E::load(narrow, i);
    });
    return {};
  }

  int64_t complete_at(int64_t token) const { return (p_.past + token + 1) / p_.ratio; }

  void choose(int64_t token, int64_t count) {
    const int64_t pieces = ceil_div(blocks_, kPieceBlocks);
    ctx_.pool->parallel_for(count * pieces, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t t = token + i / pieces, first = i % pieces * kPieceBlocks;
        const int64_t blocks = std::min(kPieceBlocks, complete_at(t) - first);
        if (blocks <= 0) continue;
        score_({queries_ + (t - first_) * p_.heads * p_.head_size,
                element_at(p_.type, static_cast<const void*>(a_.state.keys), first * p_.head_size), blocks, p_.heads,
                p_.head_size, std::sqrt(static_cast<float>(p_.head_size)), scores_ + (t - token) * blocks_ + first});
      }
    });
    ctx_.pool->parallel_for(count, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; i++) select(token + i, scores_ + i * blocks_, sorted_ + worker * blocks_);
    });
  }

  // `sorted` has room for the scores.
  void select(int64_t token, const float* scores, float* sorted) {
    const int64_t blocks = complete_at(token);
    std::copy_n(scores, blocks, sorted);
    std::nth_element(sorted, sorted + p_.budget - 1, sorted + blocks, std::greater<>());
    const float last = sorted[p_.budget - 1];
    int64_t equals = p_.budget - std::count_if(scores, scores + blocks, [&](float s) { return s > last; });
    int32_t* chosen = a_.selection.blocks + token * a_.selection.stride;
    for (int64_t b = 0; b < blocks; b++) {
      if (scores[b] > last || (scores[b] == last && equals-- > 0)) *chosen++ = static_cast<int32_t>(b);
    }
    a_.selection.counts[token] = p_.budget;
  }

  const Context& ctx_;
  const BlockIndexParams& p_;
  const BlockIndexArgs& a_;
  std::string_view where_;
  BlockScoreFunction* score_;
  int64_t end_;     // tokens of the sequence after this call
  int64_t blocks_;  // complete ones then
  int64_t first_;
  int64_t batch_;                 // queries whose scores are kept at once
  int64_t* positions_ = nullptr;  // of what is rotated at once
  float* cos_ = nullptr;
  float* sin_ = nullptr;
  float* queries_ = nullptr;
  float* scores_ = nullptr;  // [batch_][blocks_]
  float* sorted_ = nullptr;  // [worker][blocks_]
};

}  // namespace

std::span<const VariantInfo> block_index_variants() { return kVariants; }

std::string_view block_index_variant(DType type, const cpu::Features& features) {
  return variant_for(type, features).symbol;
}

Result<void> block_index(const Context& ctx, const BlockIndexParams& params, const BlockIndexArgs& args,
                         std::string_view where) {
  QUERN_TRY_VOID(check(params, args, where));
  if (params.type == DType::f32) return BlockIndex<FloatElement>(ctx, params, args, where).run();
  return BlockIndex<BrainElement>(ctx, params, args, where).run();
}

}  // namespace quern::ops
