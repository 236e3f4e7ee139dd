// SPDX-License-Identifier: Apache-2.0
// Owns the inputs of this room's tests: one kernel call on memory that ends at unreadable pages (Block), and one call
// of the entry with its result written out in double precision (Problem). Asserts nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/half.h"
#include "ops/gqa_attention/gqa_attention.h"
#include "ops/gqa_attention/kernels.h"
#include "ops/registry.h"
#include "tests/support/guard_page.h"
#include "tests/support/random.h"

namespace quern::ops {

Result<std::unique_ptr<Operator>> make_group_query_attention(const NodeView& node, const PrepareContext& ctx);

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

inline constexpr DType kCacheTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8};

inline size_t size_of(DType type) { return static_cast<size_t>(bits_of(type)) / 8; }

// The bfloat16 nearest to x by a comparison of its two neighbours; x is finite and far from the ends.
inline uint16_t nearest_brain(float x) {
  const uint32_t below = std::bit_cast<uint32_t>(x) & 0xffff0000u, above = below + 0x10000u;
  const double down = std::abs(static_cast<double>(x) - std::bit_cast<float>(below));
  const double up = std::abs(static_cast<double>(std::bit_cast<float>(above)) - x);
  const bool even = (below >> 16 & 1u) == 0;
  return static_cast<uint16_t>((down < up || (down == up && even) ? below : above) >> 16);
}

// Writes a row of d floats as elements of a cache, and its scale for i8.
inline void encode_row(DType type, const float* x, int32_t d, char* to, float* scale) {
  if (type == DType::i8) {
    float amax = 0;
    for (int32_t i = 0; i < d; i++) amax = std::max(amax, std::abs(x[i]));
    *scale = amax / 127;
    for (int32_t i = 0; i < d; i++) {
      to[i] = static_cast<char>(amax == 0 ? 0 : static_cast<int>(std::nearbyint(x[i] * (127 / amax))));
    }
    return;
  }
  for (int32_t i = 0; i < d; i++) {
    const uint16_t narrow = type == DType::f16 ? float_to_half(x[i]) : nearest_brain(x[i]);
    if (type == DType::f32) {
      std::memcpy(to + 4 * i, x + i, 4);
    } else {
      std::memcpy(to + 2 * i, &narrow, 2);
    }
  }
}

// Element i of a row.
inline double decoded(DType type, const char* row, int64_t i, float scale) {
  if (type == DType::i8) return static_cast<double>(static_cast<int8_t>(row[i])) * scale;
  uint16_t narrow = 0;
  float wide = 0;
  if (type == DType::f32) {
    std::memcpy(&wide, row + 4 * i, 4);
    return wide;
  }
  std::memcpy(&narrow, row + 2 * i, 2);
  return type == DType::f16 ? half_to_float(narrow) : std::bit_cast<float>(static_cast<uint32_t>(narrow) << 16);
}

// What turns element i of a row into NaN, or all of an i8 row.
inline void poison_element(DType type, char* row, int64_t i, float* scale) {
  const uint16_t narrow = type == DType::f16 ? 0x7e00 : 0x7fc0;
  if (type == DType::i8) {
    row[i] = 77;
    *scale = kNaN;
  } else if (type == DType::f32) {
    std::memcpy(row + 4 * i, &kNaN, 4);
  } else {
    std::memcpy(row + 2 * i, &narrow, 2);
  }
}

struct Block {
  Block(int32_t rows, int32_t keys, int32_t d, int64_t stride, int misalign, uint64_t seed, DType element = DType::f32)
      : type(element),
        rows_(static_cast<size_t>(rows)),
        q(rows_ * static_cast<size_t>(d)),
        k(bytes_of(keys, d, stride, misalign)),
        v(bytes_of(keys, d, stride, misalign)),
        k_scale(static_cast<size_t>(keys)),
        v_scale(static_cast<size_t>(keys)),
        bias(rows_),
        lo(rows_),
        hi(rows_),
        m(rows_),
        l(rows_),
        o(rows_ * static_cast<size_t>((d + 31) / 32 * 32)),
        scratch(static_cast<size_t>(attention_block_scratch_floats(rows, d)) + 16) {
    support::Random random(seed);
    random.fill_normal(q.span(), 1 / std::sqrt(static_cast<float>(d)));
    args.q = q.data();
    args.k = fill(k, misalign, random, d);
    args.v = fill(v, misalign, random, d);
    for (float& x : k_scale) x = random.uniform(0.5f, 1.5f) / 64;
    for (float& x : v_scale) x = random.uniform(0.5f, 1.5f) / 64;
    args.k_scale = k_scale.data();
    args.v_scale = v_scale.data();
    args.kv_stride = stride;
    args.rows = rows;
    args.d = d;
    args.keys = keys;
    args.lo = lo.data();
    args.hi = hi.data();
    args.m = m.data();
    args.l = l.data();
    args.o = o.data();
    args.o_stride = (d + 31) / 32 * 32;
    args.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / 4;
    std::fill(hi.begin(), hi.end(), keys);
    reset();
  }
  void round_queries() {
    for (float& x : q.span()) {
      char kept[sizeof(uint16_t)];
      encode_row(DType::bf16, &x, 1, kept, nullptr);
      x = static_cast<float>(decoded(DType::bf16, kept, 0, 1));
    }
  }
  // Of bfloat16.
  void drop_signs_of_values() {
    char* at = v.data();
    for (size_t i = 1; i < v.size() / 2 * 2; i += 2) at[i] = static_cast<char>(at[i] & 0x7F);
  }
  void reset() {
    std::fill(m.begin(), m.end(), kLowest);
    std::fill(l.begin(), l.end(), 0.0f);
    std::fill(o.begin(), o.end(), 0.0f);
  }
  size_t bytes_of(int32_t keys, int32_t d, int64_t stride, int misalign) const {
    const auto at_least_zero = static_cast<size_t>(keys == 0 ? 0 : (keys - 1) * stride + d);
    return at_least_zero * size_of(type) + static_cast<size_t>(misalign);
  }
  // The last element ends `misalign` bytes before the unreadable page, so that the first is misaligned by as much.
  const void* fill(const support::GuardedArray<char>& to, int misalign, support::Random& random, int32_t d) const {
    const size_t elements = (to.size() - static_cast<size_t>(misalign)) / size_of(type);
    for (size_t i = 0; i < elements; i++) {
      const float x = random.normal();
      char* at = to.data() + i * size_of(type);
      if (type == DType::i8) {
        *at = static_cast<char>(random.below(255) - 127);
      } else {
        encode_row(type, &x, std::min(d, 1), at, nullptr);
      }
    }
    return to.data();
  }
  // Gives row r a bias that ends at an unreadable page behind its last seen key.
  void add_bias(support::Random& random) {
    for (size_t r = 0; r < rows_; r++) {
      bias_rows.push_back(std::make_unique<support::GuardedArray<float>>(static_cast<size_t>(std::max(0, hi[r]))));
      random.fill_normal(bias_rows.back()->span());
      bias[r] = bias_rows.back()->data();
    }
    args.bias = bias.data();
  }
  void poison(const void* base, int32_t key, int32_t i) const {
    char* row = static_cast<char*>(const_cast<void*>(base)) + static_cast<size_t>(key * args.kv_stride) * size_of(type);
    poison_element(type, row, i, (base == args.k ? k_scale : v_scale).data() + key);
  }

  DType type;
  size_t rows_;
  support::GuardedArray<float> q;
  support::GuardedArray<char> k, v;
  support::GuardedArray<float> k_scale, v_scale;
  std::vector<const float*> bias;
  std::vector<std::unique_ptr<support::GuardedArray<float>>> bias_rows;
  support::GuardedArray<int32_t> lo, hi;
  support::GuardedArray<float> m, l, o;
  std::vector<float> scratch;
  AttentionBlockArgs args{};
};

struct Problem {
  AttentionParams p;
  std::vector<int64_t> past, valid;
  int64_t capacity = 0;
  std::vector<float> q, k, v, cos, sin, keys, values, out, sink, bias;
  // Of a cache that does not keep floats; `keys` and `values` then are what its past rows mean.
  DType type = DType::f32;
  std::vector<char> kept_keys, kept_values;
  std::vector<float> key_scales, value_scales;

  int64_t width() const { return int64_t{p.kv_heads} * p.head_size; }
  Problem(const AttentionParams& params, std::vector<int64_t> past_rows, std::vector<int64_t> valid_rows, uint64_t seed)
      : p(params), past(std::move(past_rows)), valid(std::move(valid_rows)) {
    support::Random random(seed);
    const auto batch = static_cast<int64_t>(past.size());
    for (int64_t n : past) capacity = std::max(capacity, n + p.tokens + 3);
    const auto fill = [&](std::vector<float>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      random.fill_normal(x);
    };
    fill(q, batch * p.tokens * p.query_heads * p.head_size);
    fill(k, batch * p.tokens * width());
    fill(v, batch * p.tokens * width());
    cos.resize(static_cast<size_t>(capacity * (p.rotary / 2)));
    sin = cos;
    for (size_t i = 0; i < cos.size(); i++) {
      const double angle = static_cast<double>(random.below(1000)) / 100;
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
    fill(keys, batch * capacity * width());
    fill(values, batch * capacity * width());
    // What nobody may read: everything behind the past.
    for (int64_t b = 0; b < batch; b++) {
      for (int64_t g = 0; g < p.kv_heads; g++) {
        for (int64_t i = past[static_cast<size_t>(b)] * p.head_size; i < capacity * p.head_size; i++) {
          keys[static_cast<size_t>((b * p.kv_heads + g) * capacity * p.head_size + i)] = kNaN;
          values[static_cast<size_t>((b * p.kv_heads + g) * capacity * p.head_size + i)] = kNaN;
        }
      }
    }
    out.assign(q.size(), kNaN);
  }

  // Rows of the past become rows of this type, those behind them NaN.
  void keep_as(DType kept) {
    type = kept;
    const size_t rows = keys.size() / static_cast<size_t>(p.head_size);
    const auto convert = [&](std::vector<float>& from, std::vector<char>& to, std::vector<float>& scales) {
      to.assign(from.size() * size_of(type), 0);
      scales.assign(rows, 0);
      for (size_t row = 0; row < rows; row++) {
        float* x = from.data() + row * static_cast<size_t>(p.head_size);
        char* y = to.data() + row * static_cast<size_t>(p.head_size) * size_of(type);
        if (std::isnan(x[0])) {
          for (int32_t i = 0; i < p.head_size; i++) poison_element(type, y, i, &scales[row]);
        } else {
          encode_row(type, x, p.head_size, y, &scales[row]);
          for (int32_t i = 0; i < p.head_size; i++) x[i] = static_cast<float>(decoded(type, y, i, scales[row]));
        }
      }
    };
    convert(keys, kept_keys, key_scales);
    convert(values, kept_values, value_scales);
  }

  // Row t of a sequence and KV head in the cache, as the numbers that it means.
  std::vector<double> row_of(bool key, size_t b, int64_t g, int64_t t) const {
    const auto row = static_cast<size_t>((static_cast<int64_t>(b) * p.kv_heads + g) * capacity + t);
    const size_t at = row * static_cast<size_t>(p.head_size);
    std::vector<double> x;
    for (int32_t i = 0; i < p.head_size; i++) {
      if (type == DType::f32) {
        x.push_back((key ? keys : values)[at + static_cast<size_t>(i)]);
      } else {
        x.push_back(decoded(type, (key ? kept_keys : kept_values).data() + at * size_of(type), i,
                            (key ? key_scales : value_scales)[row]));
      }
    }
    return x;
  }

  AttentionSequence sequence(size_t b) {
    AttentionSequence s;
    if (type != DType::f32) {
      const size_t first = b * static_cast<size_t>(capacity * width());
      const size_t row = b * static_cast<size_t>(capacity * p.kv_heads);
      s.cache = {kept_keys.data() + first * size_of(type),
                 kept_values.data() + first * size_of(type),
                 type,
                 capacity * p.head_size,
                 p.head_size,
                 capacity,
                 type == DType::i8 ? key_scales.data() + row : nullptr,
                 type == DType::i8 ? value_scales.data() + row : nullptr,
                 capacity};
      s.past = past[b];
      s.valid = valid[b];
      return s;
    }
    s.cache.head_stride = capacity * p.head_size;
    s.cache.row_stride = p.head_size;
    s.cache.capacity = capacity;
    s.cache.keys = keys.data() + static_cast<int64_t>(b) * capacity * width();
    s.cache.values = values.data() + static_cast<int64_t>(b) * capacity * width();
    s.past = past[b];
    s.valid = valid[b];
    return s;
  }

  Result<void> run(const cpu::Features& features, int threads, Counters* counters = nullptr) {
    std::vector<AttentionSequence> sequences;
    for (size_t b = 0; b < past.size(); b++) sequences.push_back(sequence(b));
    return run_on(sequences, features, threads, counters);
  }

  Result<void> run_on(std::span<const AttentionSequence> sequences, const cpu::Features& features, int threads,
                      Counters* counters = nullptr) {
    cpu::Pool pool(threads);
    cpu::Arena arena;
    const Context ctx{&pool, &arena, features, counters};
    AttentionArgs a;
    a.sequences = sequences;
    a.q = q.data();
    a.k = k.data();
    a.v = v.data();
    a.q_rows.outer_stride = int64_t{p.query_heads} * p.head_size;
    a.k_rows.outer_stride = a.v_rows.outer_stride = width();
    a.cos = cos.data();
    a.sin = sin.data();
    a.table_rows = capacity;
    if (!sink.empty()) a.sink = sink.data();
    if (!bias.empty()) {
      a.bias = {bias.data(), p.query_heads * p.tokens * capacity, p.tokens * capacity, capacity, capacity};
    }
    a.out = out.data();
    return attention(ctx, p, a, "test");
  }

  std::vector<double> rotated(const float* x, int64_t position) const {
    std::vector<double> y(x, x + p.head_size);
    const int half = p.rotary / 2;
    for (int j = 0; j < half; j++) {
      const int a = p.interleaved ? 2 * j : j, b = p.interleaved ? 2 * j + 1 : j + half;
      const double c = cos[static_cast<size_t>(position * half + j)], s = sin[static_cast<size_t>(position * half + j)];
      y[static_cast<size_t>(a)] = x[a] * c - x[b] * s;
      y[static_cast<size_t>(b)] = x[b] * c + x[a] * s;
    }
    return y;
  }

  void add_sink_and_bias(uint64_t seed) {
    support::Random random(seed);
    sink.resize(static_cast<size_t>(p.query_heads));
    random.fill_normal(sink, 3);
    bias.resize(past.size() * static_cast<size_t>(p.query_heads * p.tokens * capacity));
    random.fill_normal(bias);
  }

  // The contract, written out; to be called before run(), for a cache that does not keep floats after it: the rows of
  // this call then are what the cache keeps of them.
  std::vector<double> truth() const {
    std::vector<double> result;
    const auto d = static_cast<size_t>(p.head_size);
    for (size_t b = 0; b < past.size(); b++) {
      for (int64_t s = 0; s < p.tokens; s++) {
        for (int64_t h = 0; h < p.query_heads; h++) {
          const int64_t g = h / (p.query_heads / p.kv_heads);
          const int64_t row = static_cast<int64_t>(b) * p.tokens + s;
          const auto query = rotated(q.data() + (row * p.query_heads + h) * p.head_size, past[b] + s);
          const int64_t n = std::min(past[b] + s + 1, valid[b]);
          const int64_t lo = p.window > 0 ? std::max<int64_t>(0, n - p.window) : 0;
          std::vector<double> sum(d, 0);
          double total = 0;
          for (int64_t t = lo; t < n; t++) {
            std::vector<double> key, value;
            if (type != DType::f32) {
              key = row_of(true, b, g, t);
              value = row_of(false, b, g, t);
            } else if (t < past[b]) {
              const int64_t at = ((static_cast<int64_t>(b) * p.kv_heads + g) * capacity + t) * p.head_size;
              key.assign(keys.data() + at, keys.data() + at + p.head_size);
              value.assign(values.data() + at, values.data() + at + p.head_size);
            } else {
              const int64_t at = (static_cast<int64_t>(b) * p.tokens + t - past[b]) * width() + g * p.head_size;
              key = rotated(k.data() + at, t);
              value.assign(v.data() + at, v.data() + at + p.head_size);
            }
            double x = 0;
            for (size_t i = 0; i < d; i++) x += query[i] * key[i];
            x *= p.scale;
            if (p.softcap > 0) x = p.softcap * std::tanh(x / p.softcap);
            if (!bias.empty()) {
              const int64_t line = (static_cast<int64_t>(b) * p.query_heads + h) * p.tokens + s;
              x += bias[static_cast<size_t>(line * capacity + t)];
            }
            const double weight = std::exp(x);  // scores of these inputs stay far below 700
            total += weight;
            for (size_t i = 0; i < d; i++) sum[i] += weight * value[i];
          }
          if (!sink.empty()) total += std::exp(static_cast<double>(sink[static_cast<size_t>(h)]));
          for (size_t i = 0; i < d; i++) result.push_back(sum[i] / total);
        }
      }
    }
    return result;
  }
};

// ---- the ONNX operator ----

struct Node {
  std::vector<Attribute> attributes{integer("num_heads", 2), integer("kv_num_heads", 1), integer("do_rotary", 1)};
  std::vector<NodeInput> inputs;
  std::array<bool, 4> outputs{true, true, true, false};

  Node() {
    inputs.resize(9);
    for (size_t i = 0; i < 9; i++) {
      inputs[i].present = true;
      if (i == 5 || i == 6) inputs[i].dtype = DType::i32;
    }
  }
  static Attribute attribute(std::string_view name, AttributeType type) {
    Attribute a;
    a.name = name;
    a.type = type;
    return a;
  }
  static Attribute integer(std::string_view name, int64_t value) {
    Attribute a = attribute(name, AttributeType::i);
    a.i = value;
    return a;
  }
  static Attribute real(std::string_view name, float value) {
    Attribute a = attribute(name, AttributeType::f);
    a.f = value;
    return a;
  }
  static Attribute text(std::string_view name, std::string_view value) {
    Attribute a = attribute(name, AttributeType::s);
    a.s = value;
    return a;
  }
  void set(const Attribute& attribute) {
    std::erase_if(attributes, [&](const Attribute& a) { return a.name == attribute.name; });
    attributes.push_back(attribute);
  }
  Result<std::unique_ptr<Operator>> make(const cpu::Features& features) const {
    NodeView view;
    view.name = "/attn/GQA";
    view.op = "GroupQueryAttention";
    view.domain = "com.microsoft";
    view.opset = 1;
    view.attributes = attributes;
    view.inputs = inputs;
    view.outputs = outputs;
    PrepareContext ctx;
    ctx.features = features;
    return make_group_query_attention(view, ctx);
  }
};

// The tensors of one call: Nq = 2, Nk = 1, D = 16, filled as the vectors of ONNX Runtime are, with
// f(i, a, b, c) = ((i * a mod b) - c) / 8.
struct Call {
  Call(int64_t batch_size, int64_t tokens, int64_t past_rows, int64_t total_length)
      : batch(batch_size), total(total_length) {
    q = sequence(batch * tokens * 32, 7, 19, 9);
    k = sequence(batch * tokens * 16, 5, 17, 8);
    v = sequence(batch * tokens * 16, 3, 13, 6);
    past_key = sequence(batch * past_rows * 16, 11, 23, 11);
    past_value = sequence(batch * past_rows * 16, 2, 11, 5);
    for (int position = 0; position < 64; position++) {
      for (int j = 0; j < 8; j++) {
        const float inverse = static_cast<float>(std::pow(1e6, -j / 8.0));
        cos.push_back(std::cos(static_cast<float>(position) * inverse));
        sin.push_back(std::sin(static_cast<float>(position) * inverse));
      }
    }
    lengths.assign(static_cast<size_t>(batch), static_cast<int32_t>(total - 1));
    in.resize(9);
    in[0] = tensor(q, {batch, tokens, 32});
    in[1] = tensor(k, {batch, tokens, 16});
    in[2] = tensor(v, {batch, tokens, 16});
    in[3] = tensor(past_key, {batch, 1, past_rows, 16});
    in[4] = tensor(past_value, {batch, 1, past_rows, 16});
    in[5] = tensor(lengths.data(), {batch}, DType::i32);
    in[6] = tensor(&total_input, {}, DType::i32);
    in[7] = tensor(cos, {64, 8});
    in[8] = tensor(sin, {64, 8});
  }
  static std::vector<float> sequence(int64_t count, int a, int b, int c) {
    std::vector<float> x;
    for (int64_t i = 0; i < count; i++) x.push_back(static_cast<float>(i * a % b - c) / 8);
    return x;
  }
  static Tensor tensor(void* data, const Shape& shape, DType dtype) {
    Tensor t;
    t.data = data;
    t.dtype = dtype;
    t.shape = shape;
    return t;
  }
  static Tensor tensor(std::vector<float>& x, const Shape& shape) { return tensor(x.data(), shape, DType::f32); }

  Result<void> resolve(const Operator& op, size_t outputs = 3) {
    total_input = static_cast<int32_t>(total);
    in_values[6] = {.known = true, .count = 1, .v = {total}};
    const ResolveArgs args{
        in, in_values, {shapes.data(), outputs}, {out_values.data(), outputs}, {views.data(), outputs}};
    return op.resolve(args);
  }
  // Binds outputs of the resolved shapes, present tensors only where they are not bound yet.
  void bind(size_t outputs = 3) {
    out.resize(outputs);
    std::vector<float>* storage[] = {&y, &present_key, &present_value};
    for (size_t i = 0; i < outputs; i++) {
      out[i].shape = shapes[i];
      if (out[i].data != nullptr) continue;
      storage[i]->assign(static_cast<size_t>(shapes[i].elements()), kNaN);
      out[i].data = storage[i]->data();
    }
  }
  Result<void> run(const Operator& op, size_t outputs = 3) {
    QUERN_TRY_VOID(resolve(op, outputs));
    bind(outputs);
    return op.run(ctx, in, out);
  }

  int64_t batch, total;
  int32_t total_input = 0;
  std::vector<float> q, k, v, past_key, past_value, cos, sin, y, present_key, present_value;
  std::vector<int32_t> lengths;
  std::vector<Tensor> in, out;
  std::array<IntValues, 12> in_values{};
  std::array<Shape, 3> shapes{};
  std::array<IntValues, 3> out_values{};
  std::array<View, 3> views{};
  cpu::Pool pool{2};
  cpu::Arena arena;
  Counters counters;
  Context ctx{&pool, &arena, cpu::detect_features(), &counters};
};

}  // namespace quern::ops
