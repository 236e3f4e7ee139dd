// SPDX-License-Identifier: Apache-2.0
// The entry: checks, appending, the cut of each token's keys into pieces that threads share, and the merge of their
// results with the gate. No arithmetic on scores (the variants do that).
#include "ops/sparse_attention/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/checked.h"
#include "ops/activation.h"
#include "ops/element.h"
#include "ops/sparse_attention/kernels.h"

namespace quern::ops {

#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(SparseTileFunction symbol;)
#include "ops/sparse_attention/kernels.inc"
#undef QUERN_KERNEL

namespace {

constexpr TypedVariant<SparseTileFunction> kLines[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/sparse_attention/kernels.inc"
#undef QUERN_KERNEL
};

const TypedVariant<SparseTileFunction>& variant_for(DType type, const cpu::Features& features) {
  return select_typed(std::span<const TypedVariant<SparseTileFunction>>(kLines), type, features);
}

constexpr VariantInfo kVariants[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #type}, )
#include "ops/sparse_attention/kernels.inc"
#undef QUERN_KERNEL
};

constexpr int32_t kMostHeadSize = 512;
// Keys of a piece: two thousand chosen tokens on two KV heads make eight pieces, so that one token occupies several
// threads. The cut depends on nothing but the number of keys.
constexpr int64_t kPieceKeys = 512;
// Tokens whose partial results are kept at once, and the floats they may take.
constexpr int64_t kBatchTokens = 16;
constexpr int64_t kBatchFloats = int64_t{4} << 20;
constexpr int64_t kFloatsPerLine = 16;

int64_t lines(int64_t floats) { return round_up(floats, kFloatsPerLine); }

Result<void> check_params(const SparseAttentionParams& p, const SparseAttentionArgs& a, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (a.cache.dtype != p.type) {
    return refuse(fmt::format("a cache of type {} for rows of type {} is not allowed", dtype_name(a.cache.dtype),
                              dtype_name(p.type)));
  }
  if (a.cache.block_stride != 0) return refuse("a cache whose rows lie in blocks is not allowed");
  if (p.kv_heads < 1 || p.query_heads < 1 || p.query_heads % p.kv_heads != 0) {
    return refuse(fmt::format("{} query heads over {} KV heads are not allowed (a multiple of at least one)",
                              p.query_heads, p.kv_heads));
  }
  if (p.head_size < 8 || p.head_size % 8 != 0 || p.head_size > kMostHeadSize) {
    return refuse(fmt::format("head size {} is not allowed (a multiple of 8 up to {})", p.head_size, kMostHeadSize));
  }
  if (p.tokens < 1) return refuse(fmt::format("{} new tokens are not allowed (at least 1)", p.tokens));
  if (p.ratio < 1) return refuse(fmt::format("blocks of {} tokens are not allowed (at least 1)", p.ratio));
  const auto end = checked_add(p.past, p.tokens);
  if (p.past < 0 || !end || *end > a.cache.capacity) {
    return refuse(fmt::format("{} past rows and {} new ones do not fit into a cache of {} rows", p.past, p.tokens,
                              a.cache.capacity));
  }
  return {};
}

Result<void> check_selection(const SparseAttentionParams& p, const BlockSelection& s, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  for (int64_t t = 0; t < p.tokens; t++) {
    const int32_t count = s.counts[t];
    if (count == kAllBlocks) continue;
    const int64_t seen = p.past + t + 1;
    const int64_t complete = seen / p.ratio;
    if (count < 0 || count > complete || count > s.stride || (count == 0 && seen % p.ratio == 0)) {
      return refuse(fmt::format("{} chosen blocks of {} for the token at position {} are not allowed", count, complete,
                                seen - 1));
    }
    const int32_t* blocks = s.blocks + t * s.stride;
    for (int32_t i = 0; i < count; i++) {
      const int64_t least = i == 0 ? 0 : int64_t{blocks[i - 1]} + 1;
      if (blocks[i] < least || blocks[i] >= complete) {
        return refuse(fmt::format("block {} as choice {} of the token at position {} is not allowed ({} to {})",
                                  blocks[i], i, seen - 1, least, complete - 1));
      }
    }
  }
  return {};
}

template <class E>
class SparseAttention {
 public:
  SparseAttention(const Context& ctx, const SparseAttentionParams& params, const SparseAttentionArgs& args)
      : ctx_(ctx),
        p_(params),
        a_(args),
        tile_(variant_for(params.type, ctx.features).run),
        group_(params.query_heads / params.kv_heads) {
    int64_t most = 0;
    for (int64_t t = 0; t < p_.tokens; t++) most = std::max(most, keys_of(t));
    pieces_ = ceil_div(most, kPieceKeys);
    batch_ = std::clamp<int64_t>(kBatchFloats / (p_.kv_heads * pieces_ * state_floats()), 1,
                                 std::min(kBatchTokens, p_.tokens));
  }

  Result<void> run() {
    cpu::Arena::Scope scope(*ctx_.scratch);
    QUERN_TRY(workers_, ctx_.scratch->take<float>(static_cast<size_t>(ctx_.pool->threads() * worker_floats())));
    QUERN_TRY(states_, ctx_.scratch->take<float>(static_cast<size_t>(batch_ * p_.kv_heads * pieces_ * state_floats())));
    append();
    for (int64_t first = 0; first < p_.tokens; first += batch_) {
      const int64_t heads = std::min(batch_, p_.tokens - first) * p_.kv_heads;
      ctx_.pool->parallel_for(heads * pieces_, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; i++) attend(first, i / pieces_, i % pieces_, worker);
      });
      for_rows(ctx_, heads, pieces_ * group_ * p_.head_size, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) merge(first, i);
      });
    }
    return {};
  }

 private:
  // Results of one piece: m, l, o of all query heads of a KV head.
  struct State {
    float *m, *l, *o;
  };
  int64_t state_floats() const { return 2 * lines(group_) + lines(group_ * p_.head_size); }
  State state(int64_t head, int64_t piece) const {
    float* at = states_ + (head * pieces_ + piece) * state_floats();
    return {at, at + lines(group_), at + 2 * lines(group_)};
  }
  int64_t worker_floats() const { return lines(group_ * p_.head_size) + lines(group_ * kSparseRowScratch); }

  int64_t seen(int64_t token) const { return p_.past + token + 1; }
  int64_t keys_of(int64_t token) const {
    const int64_t n = seen(token), count = a_.selection.counts[token];
    return count == kAllBlocks ? n : count * p_.ratio + n % p_.ratio;
  }
  // Rows [first, first + count) of what a token attends to, in order.
  void list_keys(int64_t token, int64_t first, int64_t count, int64_t* index) const {
    const int64_t n = seen(token), chosen = a_.selection.counts[token];
    const int32_t* blocks = a_.selection.blocks + token * a_.selection.stride;
    for (int64_t i = first; i < first + count; i++, index++) {
      if (chosen == kAllBlocks) {
        *index = i;
      } else if (i < chosen * p_.ratio) {
        *index = blocks[i / p_.ratio] * int64_t{p_.ratio} + i % p_.ratio;
      } else {
        *index = n - n % p_.ratio + (i - chosen * p_.ratio);
      }
    }
  }

  const void* head_row(const HeadRowsIn& rows, int64_t token, int64_t head) const {
    return element_at(p_.type, rows.data, token * rows.stride + head * rows.head_stride);
  }
  void* cache_row(void* base, int64_t head, int64_t row) const {
    return element_at(p_.type, base, a_.cache.offset(head, row));
  }

  void append() {
    const auto bytes = static_cast<size_t>(p_.head_size) * static_cast<size_t>(bits_of(p_.type) / 8);
    for_rows(ctx_, p_.tokens, 2 * int64_t{p_.kv_heads} * p_.head_size, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; t++) {
        for (int64_t g = 0; g < p_.kv_heads; g++) {
          std::memcpy(cache_row(a_.cache.keys, g, p_.past + t), head_row(a_.k, t, g), bytes);
          std::memcpy(cache_row(a_.cache.values, g, p_.past + t), head_row(a_.v, t, g), bytes);
        }
      }
    });
    if (ctx_.counters == nullptr) return;
    ctx_.counters->cache_bytes_appended += 2 * static_cast<uint64_t>(p_.tokens * p_.kv_heads) * bytes;
  }

  // `head` is (token - first) * Nk + g.
  void attend(int64_t first, int64_t head, int64_t piece, int worker) {
    const int64_t token = first + head / p_.kv_heads, g = head % p_.kv_heads;
    const State s = state(head, piece);
    std::fill_n(s.m, group_, -std::numeric_limits<float>::infinity());
    std::fill_n(s.l, group_, 0.0f);
    std::fill_n(s.o, group_ * p_.head_size, 0.0f);
    const int64_t end = std::min(keys_of(token), (piece + 1) * kPieceKeys);
    if (piece * kPieceKeys >= end) return;

    float* q = workers_ + worker * worker_floats();
    for (int64_t r = 0; r < group_; r++) {
      const void* row = head_row(a_.q, token, g * group_ + r);
      for (int64_t i = 0; i < p_.head_size; i++) q[r * p_.head_size + i] = E::load(row, i);
    }
    std::array<int64_t, kSparseTileKeys> index;
    SparseTileArgs tile{};
    tile.q = q;
    tile.k = cache_row(a_.cache.keys, g, 0);
    tile.v = cache_row(a_.cache.values, g, 0);
    tile.kv_stride = a_.cache.row_stride;
    tile.index = index.data();
    tile.rows = group_;
    tile.d = p_.head_size;
    tile.scale = p_.scale;
    tile.m = s.m;
    tile.l = s.l;
    tile.o = s.o;
    tile.scratch = q + lines(group_ * p_.head_size);
    for (int64_t at = piece * kPieceKeys; at < end; at += kSparseTileKeys) {
      tile.keys = static_cast<int32_t>(std::min<int64_t>(kSparseTileKeys, end - at));
      list_keys(token, at, tile.keys, index.data());
      tile_(tile);
    }
  }

  // The pieces of one KV head of a token, in the order of the keys, into out.
  void merge(int64_t first, int64_t head) {
    const int64_t token = first + head / p_.kv_heads, g = head % p_.kv_heads;
    const int64_t pieces = ceil_div(keys_of(token), kPieceKeys);
    std::array<float, kMostHeadSize> o;
    for (int64_t r = 0; r < group_; r++) {
      float top = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < pieces; i++) top = std::max(top, state(head, i).m[r]);
      const float base = std::isinf(top) && top < 0 ? 0.0f : top;
      std::fill_n(o.data(), p_.head_size, 0.0f);
      float sum = 0;
      for (int64_t i = 0; i < pieces; i++) {
        const State s = state(head, i);
        const float weight = std::exp(s.m[r] - base);
        sum += weight * s.l[r];
        for (int64_t j = 0; j < p_.head_size; j++) o[static_cast<size_t>(j)] += weight * s.o[r * p_.head_size + j];
      }
      const int64_t query_head = g * group_ + r;
      const void* gate = head_row(a_.gate, token, query_head);
      void* out = element_at(p_.type, a_.out.data, token * a_.out.stride + query_head * p_.head_size);
      for (int64_t j = 0; j < p_.head_size; j++) {
        const float value = sum == 0 ? 0.0f : o[static_cast<size_t>(j)] / sum;
        E::store(out, j, E::round(value) * E::round(sigmoid(E::load(gate, j))));
      }
    }
  }

  const Context& ctx_;
  const SparseAttentionParams& p_;
  const SparseAttentionArgs& a_;
  SparseTileFunction* tile_;
  int32_t group_;   // query heads of a KV head
  int64_t pieces_;  // of the token with the most keys
  int64_t batch_;   // tokens whose partial results are kept at once
  float* workers_ = nullptr;
  float* states_ = nullptr;
};

}  // namespace

std::span<const VariantInfo> sparse_attention_variants() { return kVariants; }

std::string_view sparse_attention_variant(DType type, const cpu::Features& features) {
  return variant_for(type, features).symbol;
}

Result<void> sparse_attention(const Context& ctx, const SparseAttentionParams& params, const SparseAttentionArgs& args,
                              std::string_view where) {
  QUERN_TRY_VOID(check_params(params, args, where));
  QUERN_TRY_VOID(check_selection(params, args.selection, where));
  if (params.type == DType::f32) return SparseAttention<FloatElement>(ctx, params, args).run();
  return SparseAttention<BrainElement>(ctx, params, args).run();
}

}  // namespace quern::ops
