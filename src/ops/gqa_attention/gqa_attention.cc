// SPDX-License-Identifier: Apache-2.0
// The attention entry: checks, choice of variants, and the cut into independent tiles. No arithmetic on scores but the
// merge of partial results.
#include "ops/gqa_attention/gqa_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/checked.h"
#include "ops/gqa_attention/kernels.h"
#include "ops/kernel_list.h"

namespace quern::ops {

#define QUERN_KIND_block AttentionBlockFunction
#define QUERN_KIND_rotate AttentionRotateFunction
#define QUERN_KERNEL(isa, symbol, kind) QUERN_ISA_LINE_##isa(QUERN_KIND_##kind symbol;)
#include "ops/gqa_attention/kernels.inc"
#undef QUERN_KERNEL
#undef QUERN_KIND_block
#undef QUERN_KIND_rotate

namespace {

// Lines of the other kind expand to nothing.
#define QUERN_LIST(isa, symbol) QUERN_ISA_LINE_##isa({cpu::Isa::isa, &symbol, #symbol}, )
#define QUERN_KERNEL(isa, symbol, kind) QUERN_LIST_##kind(isa, symbol)
#define QUERN_LIST_rotate(isa, symbol)
#define QUERN_LIST_block(isa, symbol) QUERN_LIST(isa, symbol)
constexpr Variant<AttentionBlockFunction> kBlockVariants[] = {
#include "ops/gqa_attention/kernels.inc"
};
#undef QUERN_LIST_rotate
#undef QUERN_LIST_block
#define QUERN_LIST_rotate(isa, symbol) QUERN_LIST(isa, symbol)
#define QUERN_LIST_block(isa, symbol)
constexpr Variant<AttentionRotateFunction> kRotateVariants[] = {
#include "ops/gqa_attention/kernels.inc"
};
#undef QUERN_LIST_rotate
#undef QUERN_LIST_block
#undef QUERN_KERNEL
#undef QUERN_LIST

#define QUERN_KERNEL(isa, symbol, kind) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol}, )
constexpr VariantInfo kVariants[] = {
#include "ops/gqa_attention/kernels.inc"
};
#undef QUERN_KERNEL

// Rows of a query tile: 8 times the 12 rows of the widest register tile. The tile, its result, its scores and a block
// of keys and values take 220 KiB at D = 128.
constexpr int64_t kTileRows = 96;
// Keys of a block: short for many rows, where blocks on the diagonal are half wasted; long for few, where the cost of
// a step is spread over them.
constexpr int64_t kTileKeys = 64;
constexpr int64_t kRowKeys = kAttentionMaxKeys;
// Up to so many rows (and always for a single token) the context of a tile is split, so that there is work for all
// threads. The cut depends on nothing but the shape: the bits do not depend on the thread count.
constexpr int64_t kSplitRows = 16;
constexpr int64_t kSplitKeys = 512;
// Elements that are moved or merged faster by the calling thread than handed out.
constexpr int64_t kInlineElements = 16384;
constexpr int64_t kTokensPerChunk = 16;

constexpr int64_t kFloatsPerLine = 16;

const float* float_at(const void* base, int64_t element) {
  return reinterpret_cast<const float*>(static_cast<const char*>(base) + element * static_cast<int64_t>(sizeof(float)));
}

Result<void> check(const AttentionParams& p, const AttentionArgs& a, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  if (p.kv_heads < 1 || p.query_heads < 1 || p.query_heads % p.kv_heads != 0) {
    return refuse(fmt::format("{} query heads over {} KV heads are not allowed (a multiple of at least one)",
                              p.query_heads, p.kv_heads));
  }
  if (p.head_size < 8 || p.head_size % 8 != 0 || p.head_size > kMaxHeadSize) {
    return refuse(fmt::format("head size {} is not allowed (a multiple of 8 up to {})", p.head_size, kMaxHeadSize));
  }
  if (p.rotary < 0 || p.rotary % 16 != 0 || p.rotary > p.head_size) {
    return refuse(fmt::format("{} rotated elements are not allowed (a multiple of 16 up to the head size {})", p.rotary,
                              p.head_size));
  }
  if (p.tokens < 1) return refuse(fmt::format("{} new tokens are not allowed (at least 1)", p.tokens));
  if (p.window < 0) return refuse(fmt::format("a window of {} keys is not allowed (0 for none)", p.window));
  for (const AttentionSequence& s : a.sequences) {
    if (s.cache.dtype != DType::f32) {
      return unsupported(std::string(where), fmt::format("a cache of type {} is not supported (only {})",
                                                         dtype_name(s.cache.dtype), dtype_name(DType::f32)));
    }
    const auto end = checked_add(s.past, p.tokens);
    if (s.past < 0 || !end || *end > s.cache.capacity) {
      return refuse(fmt::format("{} past rows and {} new ones do not fit into a cache of {} rows", s.past, p.tokens,
                                s.cache.capacity));
    }
    if (s.valid < 1 || s.valid > *end) {
      return refuse(fmt::format("{} valid rows are not allowed (1 to {})", s.valid, *end));
    }
    if (p.rotary > 0 && *end > a.table_rows) {
      return refuse(fmt::format("position {} is beyond the {} rows of the rotation tables", *end - 1, a.table_rows));
    }
  }
  return {};
}

// State of a tile during the online softmax, and what else a worker needs.
struct Workspace {
  float *q, *block;
  int32_t *lo, *hi;
  float *m, *l, *o;
};

class Attention {
 public:
  Attention(const Context& ctx, const AttentionParams& params, const AttentionArgs& args)
      : ctx_(ctx),
        p_(params),
        a_(args),
        block_(select<AttentionBlockFunction>(kBlockVariants, ctx.features).run),
        rotate_(select<AttentionRotateFunction>(kRotateVariants, ctx.features).run),
        group_(params.query_heads / params.kv_heads),
        tile_tokens_(std::clamp<int64_t>(kTileRows / group_, 1, params.tokens)),
        tiles_(ceil_div(params.tokens, tile_tokens_)),
        rows_(tile_tokens_ * group_),
        o_stride_(round_up<int64_t>(params.head_size, kAttentionColumnPad)) {
    if (p_.tokens > 1 && p_.tokens * group_ > kSplitRows) return;
    int64_t keys = 0;
    for (const AttentionSequence& s : a_.sequences) keys = std::max(keys, s.valid);
    splits_ = std::max<int64_t>(1, ceil_div(keys, kSplitKeys));
  }

  Result<void> run() {
    const int64_t heads = static_cast<int64_t>(a_.sequences.size()) * p_.kv_heads;
    cpu::Arena::Scope scope(*ctx_.scratch);
    QUERN_TRY(scratch_, ctx_.scratch->take<float>(static_cast<size_t>(worker_floats() * ctx_.pool->threads())));
    if (splits_ > 1) {
      QUERN_TRY(partial_, ctx_.scratch->take<float>(static_cast<size_t>(heads * splits_ * partial_floats())));
    }
    append();
    // Tiles of a head follow each other, so that its keys and values are read from the nearest cache; those that see
    // the most keys come first, so that the last ones to be taken are short.
    ctx_.pool->parallel_for(heads * tiles_ * splits_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; i++) {
        compute(i / (tiles_ * splits_), tiles_ - 1 - i / splits_ % tiles_, i % splits_, worker);
      }
    });
    if (splits_ == 1) return {};
    const auto merge_heads = [&](int64_t begin, int64_t end, int) {
      for (int64_t head = begin; head < end; head++) merge(head);
    };
    if (heads * splits_ * partial_floats() < kInlineElements) {
      merge_heads(0, heads, 0);
    } else {
      ctx_.pool->parallel_for(heads, 1, merge_heads);
    }
    return {};
  }

 private:
  static int64_t lines(int64_t floats) { return round_up(floats, kFloatsPerLine); }
  int64_t worker_floats() const {
    return lines(attention_block_scratch_floats(rows_, p_.head_size)) + lines(rows_ * p_.head_size) +
           lines(rows_ * o_stride_) + 4 * lines(rows_);
  }
  int64_t partial_floats() const { return lines(rows_ * o_stride_) + 2 * lines(rows_); }

  Workspace workspace(int worker) const {
    Workspace w{};
    float* at = scratch_ + worker * worker_floats();
    const auto take = [&](int64_t floats) {
      float* taken = at;
      at += lines(floats);
      return taken;
    };
    w.block = take(attention_block_scratch_floats(rows_, p_.head_size));
    w.q = take(rows_ * p_.head_size);
    w.lo = reinterpret_cast<int32_t*>(take(rows_));
    w.hi = reinterpret_cast<int32_t*>(take(rows_));
    set_state(w, at);
    return w;
  }
  void set_state(Workspace& w, float* at) const {
    w.m = at;
    w.l = at + lines(rows_);
    w.o = at + 2 * lines(rows_);
  }

  float* key_row(const AttentionSequence& s, int64_t head, int64_t row) const {
    return static_cast<float*>(s.cache.keys) + head * s.cache.head_stride + row * s.cache.row_stride;
  }
  float* value_row(const AttentionSequence& s, int64_t head, int64_t row) const {
    return static_cast<float*>(s.cache.values) + head * s.cache.head_stride + row * s.cache.row_stride;
  }

  AttentionRotateArgs rotation(int64_t position) const {
    AttentionRotateArgs r{};
    r.d = p_.head_size;
    r.rotary = p_.rotary;
    r.interleaved = p_.interleaved;
    if (p_.rotary > 0) {
      r.cos = float_at(a_.cos, position * (p_.rotary / 2));
      r.sin = float_at(a_.sin, position * (p_.rotary / 2));
    }
    return r;
  }

  void append() {
    const int64_t count = static_cast<int64_t>(a_.sequences.size()) * p_.tokens;
    const auto append_tokens = [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) append_token(i / p_.tokens, i % p_.tokens);
    };
    const int64_t elements = count * p_.kv_heads * p_.head_size;
    if (elements < kInlineElements) {
      append_tokens(0, count, 0);
    } else {
      ctx_.pool->parallel_for(count, kTokensPerChunk, append_tokens);
    }
    if (ctx_.counters != nullptr)
      ctx_.counters->cache_bytes_appended += 2 * sizeof(float) * static_cast<uint64_t>(elements);
  }

  void append_token(int64_t b, int64_t token) {
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(b)];
    const int64_t row = s.past + token;
    AttentionRotateArgs r = rotation(row);
    r.x = float_at(a_.k, a_.k_rows.offset(b * p_.tokens + token));
    r.x_stride = p_.head_size;
    r.y = key_row(s, 0, row);
    r.y_stride = s.cache.head_stride;
    r.heads = p_.kv_heads;
    r.scale = 1;
    rotate_(r);
    const int64_t v = a_.v_rows.offset(b * p_.tokens + token);
    for (int64_t head = 0; head < p_.kv_heads; head++) {
      std::memcpy(value_row(s, head, row), float_at(a_.v, v + head * p_.head_size),
                  static_cast<size_t>(p_.head_size) * sizeof(float));
    }
  }

  // Keys that new token `token` sees: [first, end).
  struct Range {
    int64_t first, end;
  };
  Range seen(const AttentionSequence& s, int64_t token) const {
    const int64_t n = std::min(s.past + token + 1, s.valid);
    return {p_.window > 0 ? std::max<int64_t>(0, n - p_.window) : 0, n};
  }

  void load_queries(int64_t b, int64_t kv_head, int64_t first, int64_t end, float* q) const {
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(b)];
    for (int64_t token = first; token < end; token++) {
      AttentionRotateArgs r = rotation(s.past + token);
      r.x = float_at(a_.q, a_.q_rows.offset(b * p_.tokens + token) + kv_head * group_ * p_.head_size);
      r.x_stride = p_.head_size;
      r.y = q + (token - first) * group_ * p_.head_size;
      r.y_stride = p_.head_size;
      r.heads = group_;
      r.scale = p_.scale;
      rotate_(r);
    }
  }

  // One tile: the query heads of one KV head for some tokens, against one split of the context. `head` is b * Nk + g.
  void compute(int64_t head, int64_t tile, int64_t split, int worker) {
    const int64_t b = head / p_.kv_heads;
    const int64_t kv_head = head % p_.kv_heads;
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(b)];
    const int64_t first = tile * tile_tokens_;
    const int64_t end = std::min(first + tile_tokens_, p_.tokens);
    const int64_t rows = (end - first) * group_;
    Workspace w = workspace(worker);
    if (splits_ > 1) set_state(w, partial_ + (head * splits_ + split) * partial_floats());
    std::fill_n(w.m, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(w.l, rows, 0.0f);
    std::fill_n(w.o, rows * o_stride_, 0.0f);

    // Both ends grow with the token.
    Range keys{seen(s, first).first, seen(s, end - 1).end};
    if (splits_ > 1) {
      keys.first = std::max(keys.first, split * kSplitKeys);
      keys.end = std::min(keys.end, (split + 1) * kSplitKeys);
      if (keys.end <= keys.first) return;
    }
    load_queries(b, kv_head, first, end, w.q);
    accumulate(s, kv_head, first, rows, keys, w);
    if (splits_ > 1) return;
    for (int64_t r = 0; r < rows; r++) {
      const float factor = 1.0f / w.l[r];
      float* out = out_row(b, first + r / group_, kv_head * group_ + r % group_);
      for (int64_t i = 0; i < p_.head_size; i++) out[i] = w.o[r * o_stride_ + i] * factor;
    }
  }

  void accumulate(const AttentionSequence& s, int64_t kv_head, int64_t first, int64_t rows, const Range& keys,
                  const Workspace& w) const {
    const int64_t step = splits_ > 1 || rows <= kSplitRows ? kRowKeys : kTileKeys;
    AttentionBlockArgs block{};
    block.q = w.q;
    block.kv_stride = s.cache.row_stride;
    block.rows = static_cast<int32_t>(rows);
    block.d = p_.head_size;
    block.lo = w.lo;
    block.hi = w.hi;
    block.softcap = p_.softcap;
    block.m = w.m;
    block.l = w.l;
    block.o = w.o;
    block.o_stride = o_stride_;
    block.scratch = w.block;
    // Blocks start at multiples of `step` whatever the window is.
    for (int64_t at = keys.first / step * step; at < keys.end; at += step) {
      const int64_t count = std::min(step, keys.end - at);
      for (int64_t r = 0; r < rows; r++) {
        const Range range = seen(s, first + r / group_);
        w.lo[r] = static_cast<int32_t>(std::clamp<int64_t>(range.first - at, 0, count));
        w.hi[r] = static_cast<int32_t>(std::clamp<int64_t>(range.end - at, 0, count));
      }
      block.k = key_row(s, kv_head, at);
      block.v = value_row(s, kv_head, at);
      block.keys = static_cast<int32_t>(count);
      block_(block);
    }
  }

  // Partial results of the splits of one KV head, in the order of the context. Only for a single tile.
  void merge(int64_t head) {
    const int64_t b = head / p_.kv_heads;
    for (int64_t r = 0; r < p_.tokens * group_; r++) {
      const auto state = [&](int64_t split) {
        Workspace w{};
        set_state(w, partial_ + (head * splits_ + split) * partial_floats());
        return w;
      };
      float top = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < splits_; i++) top = std::max(top, state(i).m[r]);
      if (std::isinf(top) && top < 0) top = 0;
      float sum = 0;
      float* out = out_row(b, r / group_, head % p_.kv_heads * group_ + r % group_);
      std::fill_n(out, p_.head_size, 0.0f);
      for (int64_t i = 0; i < splits_; i++) {
        const Workspace w = state(i);
        const float weight = std::exp(w.m[r] - top);
        sum += weight * w.l[r];
        for (int64_t j = 0; j < p_.head_size; j++) out[j] += weight * w.o[r * o_stride_ + j];
      }
      const float factor = 1.0f / sum;
      for (int64_t j = 0; j < p_.head_size; j++) out[j] *= factor;
    }
  }

  float* out_row(int64_t b, int64_t token, int64_t query_head) const {
    return a_.out + ((b * p_.tokens + token) * p_.query_heads + query_head) * p_.head_size;
  }

  const Context& ctx_;
  const AttentionParams& p_;
  const AttentionArgs& a_;
  AttentionBlockFunction* block_;
  AttentionRotateFunction* rotate_;
  int32_t group_;        // query heads of a KV head
  int64_t tile_tokens_;  // tokens of a tile
  int64_t tiles_;
  int64_t rows_;  // of the largest tile
  int64_t o_stride_;
  int64_t splits_ = 1;  // more than one only with a single tile
  float* scratch_ = nullptr;
  float* partial_ = nullptr;
};

}  // namespace

std::span<const VariantInfo> gqa_attention_variants() { return kVariants; }

int64_t attention_block_scratch_floats(int64_t rows, int64_t d) {
  return rows * kAttentionMaxKeys + kAttentionMaxKeys * (d + round_up<int64_t>(d, kAttentionColumnPad)) + rows;
}

Result<void> attention(const Context& ctx, const AttentionParams& params, const AttentionArgs& args,
                       std::string_view where) {
  QUERN_TRY_VOID(check(params, args, where));
  if (args.sequences.empty()) return {};
  return Attention(ctx, params, args).run();
}

}  // namespace quern::ops
