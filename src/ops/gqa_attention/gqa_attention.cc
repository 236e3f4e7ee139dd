// SPDX-License-Identifier: Apache-2.0
// The attention entry: checks, choice of variants, and the cut into independent tiles. No arithmetic on scores.
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

#define QUERN_KIND_tile AttentionBlockFunction
#define QUERN_KIND_rows AttentionBlockFunction
#define QUERN_KIND_store AttentionStoreFunction
#define QUERN_KIND_merge AttentionMergeFunction
#define QUERN_KIND_rotate AttentionRotateFunction
#define QUERN_KERNEL(isa, symbol, kind, type) QUERN_ISA_LINE_##isa(QUERN_KIND_##kind symbol;)
#include "ops/gqa_attention/kernels.inc"
#undef QUERN_KERNEL
#undef QUERN_KIND_tile
#undef QUERN_KIND_rows
#undef QUERN_KIND_store
#undef QUERN_KIND_merge
#undef QUERN_KIND_rotate

namespace {

enum class Kind : uint8_t { tile, rows, store, merge, rotate };

// A line of kernels.inc; the pointer of its kind is set.
struct Line {
  constexpr Line(cpu::Isa i, Kind k, DType t, std::string_view s, AttentionBlockFunction* f)
      : isa(i), kind(k), type(t), symbol(s), block(f) {}
  constexpr Line(cpu::Isa i, Kind k, DType t, std::string_view s, AttentionStoreFunction* f)
      : isa(i), kind(k), type(t), symbol(s), store(f) {}
  constexpr Line(cpu::Isa i, Kind k, DType t, std::string_view s, AttentionMergeFunction* f)
      : isa(i), kind(k), type(t), symbol(s), merge(f) {}
  constexpr Line(cpu::Isa i, Kind k, DType t, std::string_view s, AttentionRotateFunction* f)
      : isa(i), kind(k), type(t), symbol(s), rotate(f) {}
  cpu::Isa isa;
  Kind kind;
  DType type;
  std::string_view symbol;
  AttentionBlockFunction* block = nullptr;
  AttentionStoreFunction* store = nullptr;
  AttentionMergeFunction* merge = nullptr;
  AttentionRotateFunction* rotate = nullptr;
};

#define QUERN_KERNEL(isa, symbol, kind, type) \
  QUERN_ISA_LINE_##isa({cpu::Isa::isa, Kind::kind, DType::type, #symbol, &symbol}, )
constexpr Line kLines[] = {
#include "ops/gqa_attention/kernels.inc"
};
#undef QUERN_KERNEL

#define QUERN_KERNEL(isa, symbol, kind, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #kind " " #type}, )
constexpr VariantInfo kVariants[] = {
#include "ops/gqa_attention/kernels.inc"
};
#undef QUERN_KERNEL

// The first line of a kind and type whose instruction set may be used; the last one of each is scalar.
const Line& select_line(Kind kind, DType type, const cpu::Features& features) {
  const auto* line = std::find_if(std::begin(kLines), std::end(kLines), [&](const Line& l) {
    return l.kind == kind && l.type == type && features.has(l.isa);
  });
  QUERN_CHECK(line != std::end(kLines), "a scalar kernel of every kind and type");
  return *line;
}

bool is_cache_type(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 || type == DType::i8;
}

// Rows of a query tile: 8 times the 12 rows of the widest register tile. The tile, its result, its scores and a block
// of keys and values take 272 KiB at D = 128.
constexpr int64_t kTileRows = 96;
// Keys of a block. Rows on the diagonal skip what they do not see panel by panel, so that long blocks waste nothing.
constexpr int64_t kBlockKeys = kAttentionMaxKeys;
static_assert(kKvBlockRows % kBlockKeys == 0);
// Every row goes through its context in the same splits, each summed apart and joined in order. The cut depends on
// nothing but the model's heads, so that a row's bits depend neither on the threads nor on what else is in the call. Up
// to so many rows (and always for a single token) the splits are tasks, so that there is work for all threads; more
// rows take one split after the other. Few heads are cut finer, so that a context of a few hundred keys already gives
// each thread something.
constexpr int64_t kSplitRows = 16;
constexpr int64_t kMostSplitKeys = 512;
constexpr int64_t kSplitKeysAHead = kMostSplitKeys / 8;
int64_t split_keys_of(int64_t kv_heads) {
  return std::min(round_up(kv_heads * kSplitKeysAHead, kBlockKeys), kMostSplitKeys);
}
// Elements that are moved or merged faster by the calling thread than handed out.
constexpr int64_t kInlineElements = 16384;
constexpr int64_t kTokensPerChunk = 16;

constexpr int64_t kLineBytes = 64;
constexpr int64_t kFloatsPerLine = kLineBytes / static_cast<int64_t>(sizeof(float));

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
    if (!is_cache_type(s.cache.dtype)) {
      return unsupported(std::string(where),
                         fmt::format("a cache of type {} is not supported (float32, float16, bfloat16 or int8)",
                                     dtype_name(s.cache.dtype)));
    }
    if (s.cache.dtype != a.sequences[0].cache.dtype) {
      return refuse(fmt::format("caches of type {} and {} in one call are not allowed",
                                dtype_name(a.sequences[0].cache.dtype), dtype_name(s.cache.dtype)));
    }
    if (s.cache.dtype == DType::i8 && (s.cache.key_scales == nullptr || s.cache.value_scales == nullptr)) {
      return refuse("an int8 cache without scales is not allowed");
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
    if (a.bias.data != nullptr && s.valid > a.bias.keys) {
      return refuse(fmt::format("a bias for {} keys is not allowed ({} rows are valid)", a.bias.keys, s.valid));
    }
  }
  return {};
}

// Of the rows of a tile during the online softmax.
struct State {
  float *m, *l, *o;
};

// What a worker needs for a tile.
struct Workspace {
  float *q, *block;
  const float** bias;
  int32_t *lo, *hi;
  State total;
  State part;  // of one split; only with more than one
};

class Attention {
 public:
  Attention(const Context& ctx, const AttentionParams& params, const AttentionArgs& args)
      : ctx_(ctx),
        p_(params),
        a_(args),
        type_(args.sequences[0].cache.dtype),
        tile_(select_line(Kind::tile, type_, ctx.features).block),
        few_rows_(select_line(Kind::rows, type_, ctx.features).block),
        store_(type_ == DType::f32 ? nullptr : select_line(Kind::store, type_, ctx.features).store),
        merge_(select_line(Kind::merge, DType::f32, ctx.features).merge),
        rotate_(select_line(Kind::rotate, DType::f32, ctx.features).rotate),
        group_(params.query_heads / params.kv_heads),
        tile_tokens_(std::clamp<int64_t>(kTileRows / group_, 1, params.tokens)),
        tiles_(ceil_div(params.tokens, tile_tokens_)),
        rows_(tile_tokens_ * group_),
        o_stride_(round_up<int64_t>(params.head_size, kAttentionColumnPad)),
        split_keys_(split_keys_of(params.kv_heads)) {
    int64_t keys = 0;
    for (const AttentionSequence& s : a_.sequences) keys = std::max(keys, s.valid);
    splits_ = std::max<int64_t>(1, ceil_div(keys, split_keys_));
    split_tasks_ = p_.tokens == 1 || p_.tokens * group_ <= kSplitRows ? splits_ : 1;
  }

  Result<void> run() {
    const int64_t heads = static_cast<int64_t>(a_.sequences.size()) * p_.kv_heads;
    cpu::Arena::Scope scope(*ctx_.scratch);
    QUERN_TRY(scratch_, ctx_.scratch->take<float>(static_cast<size_t>(worker_floats() * ctx_.pool->threads())));
    if (split_tasks_ > 1) {
      QUERN_TRY(partial_, ctx_.scratch->take<float>(static_cast<size_t>(heads * splits_ * state_floats())));
    }
    append();
    // Tiles of a head follow each other, so that its keys and values are read from the nearest cache; those that see
    // the most keys come first, so that the last ones to be taken are short.
    ctx_.pool->parallel_for(heads * tiles_ * split_tasks_, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; i++) {
        if (split_tasks_ > 1) {
          compute_split(i / splits_, i % splits_, worker);
        } else {
          compute_tile(i / tiles_, tiles_ - 1 - i % tiles_, worker);
        }
      }
    });
    if (split_tasks_ == 1) return {};
    const auto join_heads = [&](int64_t begin, int64_t end, int) {
      for (int64_t head = begin; head < end; head++) join(head);
    };
    if (heads * splits_ * state_floats() < kInlineElements) {
      join_heads(0, heads, 0);
    } else {
      ctx_.pool->parallel_for(heads, 1, join_heads);
    }
    return {};
  }

 private:
  static_assert(sizeof(const float*) == 2 * sizeof(float));
  static int64_t lines(int64_t floats) { return round_up(floats, kFloatsPerLine); }
  int64_t worker_floats() const {
    return lines(attention_block_scratch_floats(rows_, p_.head_size)) + lines(rows_ * p_.head_size) + 2 * lines(rows_) +
           lines(2 * rows_) + (splits_ > 1 ? 2 : 1) * state_floats();
  }
  int64_t state_floats() const { return lines(rows_ * o_stride_) + 2 * lines(rows_); }

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
    w.bias = reinterpret_cast<const float**>(take(2 * rows_));
    w.lo = reinterpret_cast<int32_t*>(take(rows_));
    w.hi = reinterpret_cast<int32_t*>(take(rows_));
    w.total = state(at);
    if (splits_ > 1) w.part = state(at + state_floats());
    return w;
  }
  State state(float* at) const { return {at, at + lines(rows_), at + 2 * lines(rows_)}; }

  char* row_of(void* base, const AttentionSequence& s, int64_t head, int64_t row) const {
    return static_cast<char*>(base) + s.cache.offset(head, row) * (bits_of(type_) / 8);
  }
  static float* scale_of(float* base, const AttentionSequence& s, int64_t head, int64_t row) {
    return base == nullptr ? nullptr : base + head * s.cache.scale_head_stride + row;
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
    const auto append_tokens = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; i++) append_token(i / p_.tokens, i % p_.tokens, workspace(worker).q);
    };
    const int64_t elements = count * p_.kv_heads * p_.head_size;
    if (elements < kInlineElements) {
      for (int64_t i = 0; i < count; i++) ask_for_rows(i / p_.tokens, i % p_.tokens);
      append_tokens(0, count, 0);
    } else {
      ctx_.pool->parallel_for(count, kTokensPerChunk, append_tokens);
    }
    if (ctx_.counters == nullptr) return;
    const int64_t scales = type_ == DType::i8 ? count * p_.kv_heads : 0;
    ctx_.counters->cache_bytes_appended +=
        2 * static_cast<uint64_t>(elements * (bits_of(type_) / 8) + scales * static_cast<int64_t>(sizeof(float)));
  }

  // The rows of the heads lie far apart: asked for together they, and on ordinary pages their addresses, are looked up
  // at once. On ordinary pages one token of 8 heads takes 3.1 instead of 5.2 us, a token of the whole model 0.99 of the
  // time.
  void ask_for_rows(int64_t b, int64_t token) const {
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(b)];
    const int64_t bytes = p_.head_size * bits_of(type_) / 8;
    for (int64_t at = 0; at < bytes; at += kLineBytes) {
      for (int64_t head = 0; head < p_.kv_heads; head++) {
        __builtin_prefetch(row_of(s.cache.keys, s, head, s.past + token) + at, 1);
        __builtin_prefetch(row_of(s.cache.values, s, head, s.past + token) + at, 1);
      }
    }
  }

  // `head_floats` has room for one head.
  void append_token(int64_t b, int64_t token, float* head_floats) {
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(b)];
    const int64_t row = s.past + token;
    AttentionRotateArgs r = rotation(row);
    r.x = float_at(a_.k, a_.k_rows.offset(b * p_.tokens + token));
    r.x_stride = p_.head_size;
    r.scale = 1;
    const float* v = float_at(a_.v, a_.v_rows.offset(b * p_.tokens + token));
    if (store_ == nullptr) {
      r.y = reinterpret_cast<float*>(row_of(s.cache.keys, s, 0, row));
      r.y_stride = s.cache.head_stride;
      r.heads = p_.kv_heads;
      rotate_(r);
      for (int64_t head = 0; head < p_.kv_heads; head++) {
        std::memcpy(row_of(s.cache.values, s, head, row), float_at(v, head * p_.head_size),
                    static_cast<size_t>(p_.head_size) * sizeof(float));
      }
      return;
    }
    AttentionStoreArgs store{};
    store.d = p_.head_size;
    store.y_stride = s.cache.head_stride;
    store.scale_stride = s.cache.scale_head_stride;
    r.y = head_floats;
    r.heads = 1;
    store.x = head_floats;
    store.heads = 1;
    for (int64_t head = 0; head < p_.kv_heads; head++) {
      rotate_(r);
      r.x = float_at(r.x, p_.head_size);
      store.y = row_of(s.cache.keys, s, head, row);
      store.scale = scale_of(s.cache.key_scales, s, head, row);
      store_(store);
    }
    store.x = v;
    store.x_stride = p_.head_size;
    store.heads = p_.kv_heads;
    store.y = row_of(s.cache.values, s, 0, row);
    store.scale = scale_of(s.cache.value_scales, s, 0, row);
    store_(store);
  }

  // Rows of one KV head of one sequence: `rows` / group tokens from `first` on.
  struct Tile {
    int64_t b, kv_head, first, rows;
  };
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

  // The query heads of one KV head for all tokens, against one split of the context. `head` is b * Nk + g.
  void compute_split(int64_t head, int64_t split, int worker) {
    const int64_t b = head / p_.kv_heads;
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(b)];
    const Workspace w = workspace(worker);
    const State part = state_of(head, split);
    const int64_t rows = p_.tokens * group_;
    clear(part, rows);
    const Range keys = within({seen(s, 0).first, seen(s, p_.tokens - 1).end}, split);
    if (keys.end <= keys.first) return;
    load_queries(b, head % p_.kv_heads, 0, p_.tokens, w.q);
    accumulate({b, head % p_.kv_heads, 0, rows}, keys, w, part);
  }

  // Joins the splits of one KV head.
  void join(int64_t head) {
    const int64_t rows = p_.tokens * group_;
    const State total = state_of(head, 0);
    for (int64_t split = 1; split < splits_; split++) add(total, state_of(head, split), rows);
    finish({head / p_.kv_heads, head % p_.kv_heads, 0, rows}, total);
  }

  // The query heads of one KV head for some tokens, against the whole context.
  void compute_tile(int64_t head, int64_t tile, int worker) {
    const int64_t first = tile * tile_tokens_;
    const int64_t end = std::min(first + tile_tokens_, p_.tokens);
    const Tile t{head / p_.kv_heads, head % p_.kv_heads, first, (end - first) * group_};
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(t.b)];
    const Workspace w = workspace(worker);
    load_queries(t.b, t.kv_head, first, end, w.q);
    // Both ends grow with the token.
    const Range keys{seen(s, first).first, seen(s, end - 1).end};
    const int64_t first_split = keys.first / split_keys_;
    for (int64_t split = first_split; split * split_keys_ < keys.end; split++) {
      const State& to = split == first_split ? w.total : w.part;
      clear(to, t.rows);
      accumulate(t, within(keys, split), w, to);
      if (split != first_split) add(w.total, w.part, t.rows);
    }
    finish(t, w.total);
  }

  State state_of(int64_t head, int64_t split) const {
    return state(partial_ + (head * splits_ + split) * state_floats());
  }
  Range within(const Range& keys, int64_t split) const {
    return {std::max(keys.first, split * split_keys_), std::min(keys.end, (split + 1) * split_keys_)};
  }
  void clear(const State& state, int64_t rows) const {
    std::fill_n(state.m, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.l, rows, 0.0f);
    std::fill_n(state.o, rows * o_stride_, 0.0f);
  }
  void add(const State& total, const State& part, int64_t rows) const {
    merge_({static_cast<int32_t>(rows), o_stride_, total.m, total.l, total.o, part.m, part.l, part.o});
  }

  // A sum of 0 is written as +0: keys that a row does not see may have turned the sign of one.
  void finish(const Tile& t, const State& state) const {
    for (int64_t r = 0; r < t.rows; r++) {
      const int64_t query_head = t.kv_head * group_ + r % group_;
      float* out = out_row(t.b, t.first + r / group_, query_head);
      const float factor = finish_of(query_head, state.m[r], state.l[r]);
      for (int64_t i = 0; i < p_.head_size; i++) out[i] = state.o[r * o_stride_ + i] * factor + 0.0f;
    }
  }

  // What sums over all keys, with maximum m and denominator l, are multiplied with. A denominator of 0 means that no
  // key counts; one that is NaN stays.
  float finish_of(int64_t query_head, float m, float l) const {
    if (a_.sink == nullptr) return l == 0 ? 0.0f : 1.0f / l;
    // The sink is one more score, whose value is 0. It may be the largest.
    const float sink = a_.sink[query_head];
    const float top = std::max(m, sink);
    if (std::isinf(top) && top < 0) return l == 0 ? 0.0f : 1.0f / l;
    const float carry = std::exp(m - top);
    return carry / (l * carry + std::exp(sink - top));
  }

  void accumulate(const Tile& tile, const Range& keys, const Workspace& w, const State& state) const {
    const AttentionSequence& s = a_.sequences[static_cast<size_t>(tile.b)];
    const int64_t rows = tile.rows;
    AttentionBlockFunction* const run_block = rows <= kAttentionFewRows ? few_rows_ : tile_;
    AttentionBlockArgs block{};
    block.q = w.q;
    block.kv_stride = s.cache.row_stride;
    block.rows = static_cast<int32_t>(rows);
    block.d = p_.head_size;
    block.lo = w.lo;
    block.hi = w.hi;
    block.softcap = p_.softcap;
    if (a_.bias.data != nullptr) block.bias = w.bias;
    block.m = state.m;
    block.l = state.l;
    block.o = state.o;
    block.o_stride = o_stride_;
    block.scratch = w.block;
    // Blocks start at multiples of their length whatever the window is.
    for (int64_t at = keys.first / kBlockKeys * kBlockKeys; at < keys.end; at += kBlockKeys) {
      const int64_t count = std::min(kBlockKeys, keys.end - at);
      for (int64_t r = 0; r < rows; r++) {
        const Range range = seen(s, tile.first + r / group_);
        w.lo[r] = static_cast<int32_t>(std::clamp<int64_t>(range.first - at, 0, count));
        w.hi[r] = static_cast<int32_t>(std::clamp<int64_t>(range.end - at, 0, count));
      }
      for (int64_t r = 0; a_.bias.data != nullptr && r < rows; r++) {
        w.bias[r] = a_.bias.data + tile.b * a_.bias.batch_stride +
                    (tile.kv_head * group_ + r % group_) * a_.bias.head_stride +
                    (tile.first + r / group_) * a_.bias.token_stride + at;
      }
      block.kv_next = s.cache.offset(tile.kv_head, at + kBlockKeys) - s.cache.offset(tile.kv_head, at);
      block.k = row_of(s.cache.keys, s, tile.kv_head, at);
      block.v = row_of(s.cache.values, s, tile.kv_head, at);
      block.k_scale = scale_of(s.cache.key_scales, s, tile.kv_head, at);
      block.v_scale = scale_of(s.cache.value_scales, s, tile.kv_head, at);
      block.keys = static_cast<int32_t>(count);
      run_block(block);
    }
  }

  float* out_row(int64_t b, int64_t token, int64_t query_head) const {
    return a_.out + ((b * p_.tokens + token) * p_.query_heads + query_head) * p_.head_size;
  }

  const Context& ctx_;
  const AttentionParams& p_;
  const AttentionArgs& a_;
  DType type_;  // of the cache
  AttentionBlockFunction* tile_;
  AttentionBlockFunction* few_rows_;
  AttentionStoreFunction* store_;  // null where rows are kept as they are
  AttentionMergeFunction* merge_;
  AttentionRotateFunction* rotate_;
  int32_t group_;        // query heads of a KV head
  int64_t tile_tokens_;  // tokens of a tile
  int64_t tiles_;
  int64_t rows_;  // of the largest tile
  int64_t o_stride_;
  int64_t split_keys_;
  int64_t splits_;           // of the longest context
  int64_t split_tasks_ = 1;  // all splits or one; more than one only with a single tile
  float* scratch_ = nullptr;
  float* partial_ = nullptr;
};

}  // namespace

std::span<const VariantInfo> gqa_attention_variants() { return kVariants; }

AttentionKernels attention_kernels(const cpu::Features& features, DType type) {
  return {select_line(Kind::rows, type, features).symbol, select_line(Kind::tile, type, features).symbol};
}

int64_t attention_block_scratch_floats(int64_t rows, int64_t d) {
  return rows * kAttentionMaxKeys + rows * d / 2 + kAttentionMaxKeys * (d + round_up<int64_t>(d, kAttentionColumnPad));
}

Result<void> attention(const Context& ctx, const AttentionParams& params, const AttentionArgs& args,
                       std::string_view where) {
  QUERN_TRY_VOID(check(params, args, where));
  if (args.sequences.empty()) return {};
  return Attention(ctx, params, args).run();
}

}  // namespace quern::ops
