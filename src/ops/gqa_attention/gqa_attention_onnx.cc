// SPDX-License-Identifier: Apache-2.0
// com.microsoft GroupQueryAttention on the attention entry: attributes, shapes, lengths, and the past and present
// tensors as a cache, or a cache object bound in their place. Does not own any arithmetic.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/checked.h"
#include "ops/gqa_attention/gqa_attention.h"
#include "ops/gqa_attention/kernels.h"
#include "ops/registry.h"

namespace quern::ops {
namespace {

enum Input {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kSeqlens,
  kTotal,
  kCos,
  kSin,
  kPositions,  // not supported
  kBias,
  kSink,
  kInputs
};
enum Output { kOut, kPresentKey, kPresentValue, kOutputs };

constexpr std::array<std::string_view, 16> kInputNames = {"query",
                                                          "key",
                                                          "value",
                                                          "past_key",
                                                          "past_value",
                                                          "seqlens_k",
                                                          "total_sequence_length",
                                                          "cos_cache",
                                                          "sin_cache",
                                                          "position_ids",
                                                          "attention_bias",
                                                          "head_sink",
                                                          "k_scale",
                                                          "v_scale",
                                                          "q_norm_weight",
                                                          "k_norm_weight"};

// Head counts above this are not plausible, and below it their products with a head size fit 32 bits.
constexpr int64_t kMaxHeads = 65536;

struct Attributes {
  int32_t query_heads = 0, kv_heads = 0;
  float scale = 0;  // 0: 1 / sqrt(D)
  float softcap = 0;
  int64_t window = 0;
  bool rotary = false, interleaved = false;
};

// What the node connects.
struct Wiring {
  bool packed = false;  // query, key and value in input 0
  bool past = false;
  bool bias = false;
  bool sink = false;
};

// Extents of one call.
struct Geometry {
  int64_t batch = 0, tokens = 0, total = 0;
  int64_t head_size = 0, rotary = 0, table_rows = 0;
  int64_t past_rows = 0;     // extent of the past tensors
  int64_t present_rows = 0;  // extent of the present tensors
  Shape present;
};

class GroupQueryAttention final : public Operator {
 public:
  GroupQueryAttention(std::string where, const Attributes& attributes, const Wiring& wiring,
                      const cpu::Features& features)
      : where_(std::move(where)), attributes_(attributes), wiring_(wiring), features_(features) {}

  DType output_dtype(int) const override { return DType::f32; }
  // Past tensors are float32; a cache in their place says what its rows are.
  std::string_view variant() const override { return variant_of({}); }
  std::string detail() const override { return detail_of({}); }
  std::string_view variant_of(std::span<const Tensor> in) const override { return kernels(in).few_rows; }
  std::string detail_of(std::span<const Tensor> in) const override {
    return fmt::format("more than {} query rows of a KV head by {}", kAttentionFewRows, kernels(in).tile);
  }
  uint32_t shape_inputs() const override { return 1U << kTotal; }
  bool accepts_rows(int input) const override { return input <= kValue; }
  bool accepts_unaligned(int input) const override { return input >= kSeqlens && input <= kSin; }
  bool may_omit(int output) const override { return output == kPresentKey || output == kPresentValue; }

  Result<void> resolve(const ResolveArgs& args) const override {
    const IntValues& total = args.in_values[kTotal];
    if (!total.known) return refuse("total_sequence_length must be known before shapes are");
    QUERN_TRY_VOID(check_one_element(args.in[kTotal].shape));
    QUERN_TRY(const Geometry g, geometry(args.in, total.v[0]));
    args.out[kOut] = {g.batch, g.tokens, attributes_.query_heads * g.head_size};
    for (size_t i = kPresentKey; i < args.out.size(); i++) args.out[i] = g.present;
    return {};
  }

  Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const override {
    QUERN_TRY_VOID(check_one_element(in[kTotal].shape));
    if (in[kTotal].data == nullptr) return refuse("total_sequence_length has no content");
    QUERN_TRY(const Geometry g, geometry(in, int_at(in[kTotal], 0)));
    QUERN_TRY_VOID(check_lengths(g, in[kSeqlens]));
    if (g.batch == 0) return {};

    cpu::Arena::Scope scope(*ctx.scratch);
    QUERN_TRY(auto* const sequences, ctx.scratch->take<AttentionSequence>(static_cast<size_t>(g.batch)));
    QUERN_TRY(const bool in_place, bind_cache(ctx, g, in, out, sequences));
    for (int64_t b = 0; b < g.batch; b++) {
      AttentionSequence& s = sequences[b];
      s.valid = int_at(in[kSeqlens], b) + int64_t{1};
      s.past = past_of(g, s.valid);
      // A prompt's rows end with the call; lengths beyond them name rows that nobody wrote.
      s.valid = std::min(s.valid, s.past + g.tokens);
    }

    AttentionParams params;
    params.query_heads = attributes_.query_heads;
    params.kv_heads = attributes_.kv_heads;
    params.head_size = static_cast<int32_t>(g.head_size);
    params.tokens = g.tokens;
    params.scale = attributes_.scale != 0 ? attributes_.scale
                                          : static_cast<float>(1.0 / std::sqrt(static_cast<double>(g.head_size)));
    params.softcap = attributes_.softcap;
    params.window = attributes_.window;
    params.rotary = static_cast<int32_t>(g.rotary);
    params.interleaved = attributes_.interleaved;
    AttentionArgs args;
    args.sequences = {sequences, static_cast<size_t>(g.batch)};
    args.q = in[kQuery].data;
    args.q_rows = in[kQuery].rows();
    if (wiring_.packed) {
      const int64_t k = attributes_.query_heads * g.head_size;
      const int64_t v = k + attributes_.kv_heads * g.head_size;
      args.k = in[kQuery].as<const char>() + k * static_cast<int64_t>(sizeof(float));
      args.v = in[kQuery].as<const char>() + v * static_cast<int64_t>(sizeof(float));
      args.k_rows = args.v_rows = args.q_rows;
    } else {
      args.k = in[kKey].data;
      args.k_rows = in[kKey].rows();
      args.v = in[kValue].data;
      args.v_rows = in[kValue].rows();
    }
    if (g.rotary > 0) {
      args.cos = in[kCos].data;
      args.sin = in[kSin].data;
      args.table_rows = g.table_rows;
    }
    if (wiring_.sink) args.sink = in[kSink].as<const float>();
    if (wiring_.bias) args.bias = bias_of(g, in[kBias]);
    args.out = out[kOut].as<float>();
    if (!in_place) move_past(ctx, g, in, args.sequences);
    return attention(ctx, params, args, where_);
  }

 private:
  AttentionKernels kernels(std::span<const Tensor> in) const {
    const KvView* cache = in.size() > kPastKey ? in[kPastKey].cache : nullptr;
    return attention_kernels(features_, cache == nullptr ? DType::f32 : cache->dtype);
  }

  Error refuse(std::string what) const { return bad_request(where_, std::move(what)); }

  static int32_t int_at(const Tensor& t, int64_t i) {
    int32_t x;
    std::memcpy(&x, t.as<const char>() + i * static_cast<int64_t>(sizeof(x)), sizeof(x));
    return x;
  }

  Result<void> check_one_element(const Shape& total) const {
    if (total.rank() == 0 || (total.rank() == 1 && total[0] == 1)) return {};
    return refuse(fmt::format("total_sequence_length has shape {}, expected [] or [1]", total.to_string()));
  }

  // Checks all shapes against each other and `total`. Reads no payload.
  Result<Geometry> geometry(std::span<const Tensor> in, int64_t total) const {
    Geometry g;
    g.total = total;
    if (total < 1) return refuse(fmt::format("total_sequence_length is {}, must be at least 1", total));
    QUERN_TRY_VOID(check_new_tokens(in, &g));
    QUERN_TRY_VOID(check_past(in, &g));
    if (attributes_.rotary) QUERN_TRY_VOID(check_tables(in, &g));
    QUERN_TRY_VOID(check_addends(g, in));
    const auto lengths = in[kSeqlens].shape.checked_elements();
    if (lengths != g.batch) {
      return refuse(fmt::format("seqlens_k has shape {}, expected one element for each of {} sequences",
                                in[kSeqlens].shape.to_string(), g.batch));
    }
    g.present_rows = std::max(total, g.past_rows);
    g.present = {g.batch, attributes_.kv_heads, g.present_rows, g.head_size};
    const auto elements = g.present.checked_elements();
    if (!elements || !storage_bytes(DType::f32, *elements)) {
      return refuse(fmt::format("present shape {} is too large", g.present.to_string()));
    }
    return g;
  }

  Result<void> check_new_tokens(std::span<const Tensor> in, Geometry* g) const {
    const Shape& q = in[kQuery].shape;
    const int64_t heads = attributes_.query_heads + (wiring_.packed ? 2 * attributes_.kv_heads : 0);
    if (q.rank() != 3) return refuse(fmt::format("query has shape {}, expected rank 3", q.to_string()));
    if (q[2] == 0 || q[2] % heads != 0) {
      return refuse(
          fmt::format("query has shape {}, whose last extent must be a multiple of {} heads", q.to_string(), heads));
    }
    g->batch = q[0];
    g->tokens = q[1];
    g->head_size = q[2] / heads;
    if (g->tokens == 0) return refuse(fmt::format("query has shape {}, at least one token is needed", q.to_string()));
    const int64_t unit = attributes_.rotary ? 16 : 8;
    if (g->head_size % unit != 0 || g->head_size > kMaxHeadSize) {
      return refuse(fmt::format("query of shape {} has head size {}, must be a multiple of {} up to {}", q.to_string(),
                                g->head_size, unit, kMaxHeadSize));
    }
    if (wiring_.packed) return {};
    const Shape expected{g->batch, g->tokens, attributes_.kv_heads * g->head_size};
    for (int i : {kKey, kValue}) {
      const Shape& shape = in[static_cast<size_t>(i)].shape;
      if (!(shape == expected)) {
        return refuse(fmt::format("{} has shape {}, expected {}", kInputNames[static_cast<size_t>(i)],
                                  shape.to_string(), expected.to_string()));
      }
    }
    return {};
  }

  Result<void> check_past(std::span<const Tensor> in, Geometry* g) const {
    if (!wiring_.past) return {};
    const Shape& keys = in[kPastKey].shape;
    if (keys.rank() != 4 || keys[0] != g->batch || keys[1] != attributes_.kv_heads || keys[3] != g->head_size) {
      return refuse(fmt::format("past_key has shape {}, expected [{}, {}, rows, {}]", keys.to_string(), g->batch,
                                attributes_.kv_heads, g->head_size));
    }
    if (!(in[kPastValue].shape == keys)) {
      return refuse(
          fmt::format("past_value has shape {}, past_key has {}", in[kPastValue].shape.to_string(), keys.to_string()));
    }
    g->past_rows = keys[2];
    return check_bound_cache(*g, in);
  }

  // A cache object in the place of the past tensors holds one sequence, and both halves of it.
  Result<void> check_bound_cache(const Geometry& g, std::span<const Tensor> in) const {
    const KvView* cache = in[kPastKey].cache;
    if (cache != in[kPastValue].cache) return refuse("past_key and past_value are not bound to the same cache");
    if (cache == nullptr) return {};
    if (g.batch != 1) return refuse(fmt::format("{} sequences over one cache are not allowed (1)", g.batch));
    if (cache->capacity != g.past_rows || g.total > cache->capacity) {
      return refuse(fmt::format("a cache of {} rows is bound to past_key of {} rows, total_sequence_length is {}",
                                cache->capacity, g.past_rows, g.total));
    }
    return {};
  }

  Result<void> check_addends(const Geometry& g, std::span<const Tensor> in) const {
    if (wiring_.sink && !(in[kSink].shape == Shape{attributes_.query_heads})) {
      return refuse(
          fmt::format("head_sink has shape {}, expected [{}]", in[kSink].shape.to_string(), attributes_.query_heads));
    }
    if (!wiring_.bias) return {};
    const Shape& bias = in[kBias].shape;
    if (bias.rank() == 4 && (bias[0] == 1 || bias[0] == g.batch) &&
        (bias[1] == 1 || bias[1] == attributes_.query_heads) && bias[2] == g.tokens && bias[3] == g.total) {
      return {};
    }
    return refuse(fmt::format("attention_bias has shape {}, expected [{} or 1, {} or 1, {}, {}]", bias.to_string(),
                              g.batch, attributes_.query_heads, g.tokens, g.total));
  }

  static AttentionBias bias_of(const Geometry& g, const Tensor& t) {
    AttentionBias bias;
    bias.data = t.as<const float>();
    bias.keys = g.total;
    bias.token_stride = g.total;
    bias.head_stride = t.shape[1] == 1 ? 0 : g.tokens * g.total;
    bias.batch_stride = t.shape[0] == 1 ? 0 : t.shape[1] * g.tokens * g.total;
    return bias;
  }

  Result<void> check_tables(std::span<const Tensor> in, Geometry* g) const {
    const Shape& cos = in[kCos].shape;
    if (cos.rank() != 2 || !(in[kSin].shape == cos)) {
      return refuse(fmt::format("cos_cache has shape {} and sin_cache {}, expected the same rank-2 shape",
                                cos.to_string(), in[kSin].shape.to_string()));
    }
    if (cos[1] == 0 || cos[1] % 8 != 0 || cos[1] > g->head_size / 2) {
      return refuse(fmt::format("cos_cache has shape {}, whose width must be a multiple of 8 up to {}", cos.to_string(),
                                g->head_size / 2));
    }
    if (cos[0] < g->total) {
      return refuse(fmt::format("cos_cache has {} rows, total_sequence_length {} needs as many", cos[0], g->total));
    }
    g->rotary = 2 * cos[1];
    g->table_rows = cos[0];
    return {};
  }

  // The lengths that attention and the cache rely on. `valid` counts this call's tokens.
  int64_t past_of(const Geometry& g, int64_t valid) const { return g.tokens == g.total ? 0 : valid - g.tokens; }

  Result<void> check_lengths(const Geometry& g, const Tensor& lengths) const {
    int64_t limit = attributes_.rotary ? std::min(g.present_rows, g.table_rows) : g.present_rows;
    if (wiring_.bias) limit = std::min(limit, g.total);
    for (int64_t b = 0; b < g.batch; b++) {
      const int64_t length = int_at(lengths, b);
      if (length < 0 || length >= limit) {
        return refuse(fmt::format("seqlens_k[{}] is {}, must be 0 to {}", b, length, limit - 1));
      }
      const int64_t past = past_of(g, length + 1);
      if (past < 0) {
        return refuse(fmt::format("seqlens_k[{}] is {}, which is less than {} new tokens need", b, length, g.tokens));
      }
      if (past > g.past_rows) {
        return refuse(fmt::format("seqlens_k[{}] is {}, which needs {} past rows of {}", b, length, past, g.past_rows));
      }
    }
    return {};
  }

  // Fills `cache` of every sequence. True when old rows are where they belong already.
  Result<bool> bind_cache(const Context& ctx, const Geometry& g, std::span<const Tensor> in,
                          std::span<const Tensor> out, AttentionSequence* sequences) const {
    if (wiring_.past && in[kPastKey].cache != nullptr) {
      for (size_t i = kPresentKey; i < out.size(); i++) {
        if (out[i].present) return refuse(fmt::format("present output {} is wanted of a bound cache", i));
      }
      sequences[0] = AttentionSequence{.cache = *in[kPastKey].cache};
      return true;
    }
    QUERN_TRY(float* const keys, present_rows(ctx, g, out, kPresentKey));
    QUERN_TRY(float* const values, present_rows(ctx, g, out, kPresentValue));
    QUERN_TRY(const bool shared, shares_memory(g, in, keys, values));
    for (int64_t b = 0; b < g.batch; b++) {
      AttentionSequence s;
      s.cache.head_stride = g.present_rows * g.head_size;
      s.cache.row_stride = g.head_size;
      s.cache.capacity = g.present_rows;
      s.cache.keys = keys + b * attributes_.kv_heads * s.cache.head_stride;
      s.cache.values = values + b * attributes_.kv_heads * s.cache.head_stride;
      sequences[b] = s;
    }
    return shared;
  }

  // Where the present rows are written: the output, or scratch when the node omits it.
  Result<float*> present_rows(const Context& ctx, const Geometry& g, std::span<const Tensor> out, size_t i) const {
    if (i < out.size() && out[i].present) {
      if (!(out[i].shape == g.present)) {
        return refuse(fmt::format("present output {} has shape {}, expected {}", i, out[i].shape.to_string(),
                                  g.present.to_string()));
      }
      return out[i].as<float>();
    }
    return ctx.scratch->take<float>(static_cast<size_t>(g.present.elements()));
  }

  // True when the present tensors are the past tensors, so that old rows are where they belong.
  Result<bool> shares_memory(const Geometry& g, std::span<const Tensor> in, const float* keys,
                             const float* values) const {
    if (!wiring_.past || g.past_rows == 0) return false;
    const bool key = in[kPastKey].data == keys;
    const bool value = in[kPastValue].data == values;
    if (key == value && (!key || g.past_rows == g.present_rows)) return key;
    return refuse(
        fmt::format("present tensors of {} rows over the memory of past tensors of {} rows must cover both "
                    "pairs with the same extent",
                    g.present_rows, g.past_rows));
  }

  // Copies old rows and clears the rows that nothing is written to.
  void move_past(const Context& ctx, const Geometry& g, std::span<const Tensor> in,
                 std::span<const AttentionSequence> sequences) const {
    const auto row_bytes = static_cast<size_t>(g.head_size) * sizeof(float);
    const auto move = [&](const Tensor* past, float* present, const AttentionSequence& s, int64_t head) {
      const auto old_bytes = static_cast<size_t>(s.past) * row_bytes;
      const auto written = static_cast<size_t>(s.past + g.tokens) * row_bytes;
      if (old_bytes > 0) {
        std::memcpy(present, past->as<const char>() + static_cast<size_t>(head * g.past_rows) * row_bytes, old_bytes);
      }
      std::memset(reinterpret_cast<char*>(present) + written, 0,
                  static_cast<size_t>(g.present_rows) * row_bytes - written);
    };
    const int64_t heads = g.batch * attributes_.kv_heads;
    ctx.pool->parallel_for(heads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        const AttentionSequence& s = sequences[static_cast<size_t>(i / attributes_.kv_heads)];
        const int64_t offset = i % attributes_.kv_heads * s.cache.head_stride;
        move(&in[kPastKey], static_cast<float*>(s.cache.keys) + offset, s, i);
        move(&in[kPastValue], static_cast<float*>(s.cache.values) + offset, s, i);
      }
    });
    if (ctx.counters == nullptr) return;
    for (const AttentionSequence& s : sequences) {
      const auto bytes = 2 * static_cast<uint64_t>(s.past * attributes_.kv_heads) * row_bytes;
      ctx.counters->bytes_copied += bytes;
      ctx.counters->cache_bytes_copied += bytes;
    }
  }

  std::string where_;
  Attributes attributes_;
  Wiring wiring_;
  cpu::Features features_;
};

Result<int32_t> read_heads(const NodeView& node, AttributeReader& reader, std::string_view name) {
  QUERN_TRY(const int64_t heads, reader.require_int(name));
  if (heads >= 1 && heads <= kMaxHeads) return static_cast<int32_t>(heads);
  return bad_model(node.where(), fmt::format("attribute {} = {} is not allowed (1 to {})", name, heads, kMaxHeads));
}

Result<bool> read_switch(const NodeView& node, AttributeReader& reader, std::string_view name) {
  QUERN_TRY(const int64_t value, reader.int_or(name, 0));
  if (value == 0 || value == 1) return value == 1;
  return bad_model(node.where(), fmt::format("attribute {} = {} is not allowed (0 or 1)", name, value));
}

Result<Attributes> read_attributes(const NodeView& node) {
  AttributeReader reader(node);
  Attributes a;
  QUERN_TRY(a.query_heads, read_heads(node, reader, "num_heads"));
  QUERN_TRY(a.kv_heads, read_heads(node, reader, "kv_num_heads"));
  if (a.query_heads % a.kv_heads != 0) {
    return bad_model(node.where(),
                     fmt::format("num_heads = {} is not a multiple of kv_num_heads = {}", a.query_heads, a.kv_heads));
  }
  QUERN_TRY(a.scale, reader.float_or("scale", 0));
  if (!std::isfinite(a.scale)) return bad_model(node.where(), "attribute scale is not a finite number");
  QUERN_TRY(a.softcap, reader.float_or("softcap", 0));
  if (!std::isfinite(a.softcap) || a.softcap < 0) {
    return bad_model(node.where(), fmt::format("attribute softcap = {} is not allowed (0 or more)", a.softcap));
  }
  QUERN_TRY(const int64_t window, reader.int_or("local_window_size", -1));
  if (window == 0 || window < -1) {
    return bad_model(node.where(),
                     fmt::format("attribute local_window_size = {} is not allowed (-1, or 1 and more)", window));
  }
  a.window = window == -1 ? 0 : window;
  QUERN_TRY(a.rotary, read_switch(node, reader, "do_rotary"));
  QUERN_TRY(a.interleaved, read_switch(node, reader, "rotary_interleaved"));
  QUERN_TRY(const int64_t smooth, reader.int_or("smooth_softmax", -1));
  if (smooth != -1 && smooth != 0) {
    return unsupported(node.where(),
                       fmt::format("attribute smooth_softmax = {} is not supported (only -1 and 0)", smooth));
  }
  QUERN_TRY_VOID(reader.only_int("qk_output", 0));
  QUERN_TRY_VOID(reader.only_string("k_quant_type", "NONE"));
  QUERN_TRY_VOID(reader.only_string("v_quant_type", "NONE"));
  QUERN_TRY_VOID(reader.only_int("kv_cache_bit_width", 0));
  QUERN_TRY_VOID(reader.only_int("causal", 1));
  QUERN_TRY_VOID(reader.only_int("sliding_window_cache", 0));
  // Means something with norm weights only, which are refused.
  QUERN_TRY_VOID(reader.float_or("qk_norm_epsilon", 0));
  QUERN_TRY_VOID(reader.finish());
  return a;
}

Result<void> check_pair(const NodeView& node, int first, int second) {
  if (node.has_input(first) == node.has_input(second)) return {};
  return bad_model(node.where(),
                   fmt::format("inputs {} and {} must be both there or both absent",
                               kInputNames[static_cast<size_t>(first)], kInputNames[static_cast<size_t>(second)]));
}

Result<void> check_inputs(const NodeView& node, const Attributes& a) {
  for (int i : {kQuery, kSeqlens, kTotal}) {
    if (!node.has_input(i)) {
      return bad_model(node.where(), fmt::format("required input {} is missing", kInputNames[static_cast<size_t>(i)]));
    }
  }
  for (int i = kPositions; i < static_cast<int>(node.inputs.size()); i++) {
    if (!node.has_input(i) || i == kBias || i == kSink) continue;
    const auto index = static_cast<size_t>(i);
    return unsupported(node.where(), fmt::format("input {} ({}) is not supported", i,
                                                 index < kInputNames.size() ? kInputNames[index] : "unknown"));
  }
  QUERN_TRY_VOID(check_pair(node, kKey, kValue));
  QUERN_TRY_VOID(check_pair(node, kPastKey, kPastValue));
  QUERN_TRY_VOID(check_pair(node, kCos, kSin));
  if (a.rotary && !node.has_input(kCos)) return bad_model(node.where(), "do_rotary = 1 needs cos_cache and sin_cache");
  for (int i = 0; i < kInputs; i++) {
    QUERN_TRY_VOID(check_dtype(node, i, i == kSeqlens || i == kTotal ? DType::i32 : DType::f32));
  }
  if (!a.rotary || !node.input(kCos).constant || !node.input(kSin).constant) return {};
  const Shape& cos = node.input(kCos).value.shape;
  const Shape& sin = node.input(kSin).value.shape;
  if (cos.rank() == 2 && cos == sin && cos[1] > 0 && cos[1] % 8 == 0) return {};
  return bad_model(node.where(), fmt::format("cos_cache has shape {} and sin_cache {}, expected the same rank-2 shape "
                                             "with a multiple of 8 columns",
                                             cos.to_string(), sin.to_string()));
}

}  // namespace

Result<std::unique_ptr<Operator>> make_group_query_attention(const NodeView& node, const PrepareContext& ctx) {
  QUERN_TRY(const Attributes attributes, read_attributes(node));
  QUERN_TRY_VOID(check_inputs(node, attributes));
  if (!node.has_output(kOut)) return bad_model(node.where(), "required output 0 is missing");
  if (node.has_output(kOutputs)) return unsupported(node.where(), "output 3 (output_qk) is not supported");
  Wiring wiring;
  wiring.packed = !node.has_input(kKey);
  wiring.past = node.has_input(kPastKey);
  wiring.bias = node.has_input(kBias);
  wiring.sink = node.has_input(kSink);
  return std::unique_ptr<Operator>(
      std::make_unique<GroupQueryAttention>(node.where(), attributes, wiring, ctx.features));
}

}  // namespace quern::ops
