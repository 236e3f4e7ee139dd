// SPDX-License-Identifier: Apache-2.0
// Owns the inputs of this room's tests: one kernel call on memory that ends at unreadable pages (Block), and one call
// of the entry with its result written out in double precision (Problem). Asserts nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/gqa_attention/gqa_attention.h"
#include "ops/gqa_attention/kernels.h"
#include "ops/registry.h"
#include "tests/support/guard_page.h"
#include "tests/support/random.h"

namespace quern::ops {

Result<std::unique_ptr<Operator>> make_group_query_attention(const NodeView& node, const PrepareContext& ctx);

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Block {
  Block(int32_t rows, int32_t keys, int32_t d, int64_t stride, int misalign, uint64_t seed)
      : rows_(static_cast<size_t>(rows)),
        q(rows_ * static_cast<size_t>(d)),
        k(bytes_of(keys, d, stride, misalign)),
        v(bytes_of(keys, d, stride, misalign)),
        lo(rows_),
        hi(rows_),
        m(rows_),
        l(rows_),
        o(rows_ * static_cast<size_t>((d + 31) / 32 * 32)),
        scratch(static_cast<size_t>(attention_block_scratch_floats(rows, d)) + 16) {
    support::Random random(seed);
    random.fill_normal(q.span(), 1 / std::sqrt(static_cast<float>(d)));
    args.q = q.data();
    args.k = fill(k, misalign, random);
    args.v = fill(v, misalign, random);
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
  void reset() {
    std::fill(m.begin(), m.end(), kLowest);
    std::fill(l.begin(), l.end(), 0.0f);
    std::fill(o.begin(), o.end(), 0.0f);
  }
  static size_t bytes_of(int32_t keys, int32_t d, int64_t stride, int misalign) {
    const auto at_least_zero = static_cast<size_t>(keys == 0 ? 0 : (keys - 1) * stride + d);
    return at_least_zero * sizeof(float) + static_cast<size_t>(misalign);
  }
  // The last float ends `misalign` bytes before the unreadable page, so that the first is misaligned by as much.
  static const float* fill(const support::GuardedArray<char>& to, int misalign, support::Random& random) {
    const size_t floats = (to.size() - static_cast<size_t>(misalign)) / sizeof(float);
    for (size_t i = 0; i < floats; i++) {
      const float x = random.normal();
      std::memcpy(to.data() + i * sizeof(float), &x, sizeof(x));
    }
    return reinterpret_cast<const float*>(to.data());
  }
  void poison(const float* base, int32_t key, int32_t i) const {
    std::memcpy(reinterpret_cast<char*>(const_cast<float*>(base)) + (key * args.kv_stride + i) * 4, &kNaN, 4);
  }

  size_t rows_;
  support::GuardedArray<float> q;
  support::GuardedArray<char> k, v;
  support::GuardedArray<int32_t> lo, hi;
  support::GuardedArray<float> m, l, o;
  std::vector<float> scratch;
  AttentionBlockArgs args{};
};

struct Problem {
  AttentionParams p;
  std::vector<int64_t> past, valid;
  int64_t capacity = 0;
  std::vector<float> q, k, v, cos, sin, keys, values, out;

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

  AttentionSequence sequence(size_t b) {
    AttentionSequence s;
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
    cpu::Pool pool(threads);
    cpu::Arena arena;
    const Context ctx{&pool, &arena, features, counters};
    std::vector<AttentionSequence> sequences;
    for (size_t b = 0; b < past.size(); b++) sequences.push_back(sequence(b));
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

  // The contract, written out; to be called before run().
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
            std::vector<double> key;
            const float* value;
            if (t < past[b]) {
              const int64_t at = ((static_cast<int64_t>(b) * p.kv_heads + g) * capacity + t) * p.head_size;
              key.assign(keys.data() + at, keys.data() + at + p.head_size);
              value = values.data() + at;
            } else {
              const int64_t at = (static_cast<int64_t>(b) * p.tokens + t - past[b]) * width() + g * p.head_size;
              key = rotated(k.data() + at, t);
              value = v.data() + at;
            }
            double x = 0;
            for (size_t i = 0; i < d; i++) x += query[i] * key[i];
            x *= p.scale;
            if (p.softcap > 0) x = p.softcap * std::tanh(x / p.softcap);
            const double weight = std::exp(x);  // scores of these inputs stay far below 700
            total += weight;
            for (size_t i = 0; i < d; i++) sum[i] += weight * value[i];
          }
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
  std::array<IntValues, 9> in_values{};
  std::array<Shape, 3> shapes{};
  std::array<IntValues, 3> out_values{};
  std::array<View, 3> views{};
  cpu::Pool pool{2};
  cpu::Arena arena;
  Counters counters;
  Context ctx{&pool, &arena, cpu::detect_features(), &counters};
};

}  // namespace quern::ops
