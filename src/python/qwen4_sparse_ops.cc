// SPDX-License-Identifier: Apache-2.0
// quern.ops: the rooms of sparse attention, the mixture of experts and the n-gram embedding of qwen4_exp, for parity
// tests. Arrays of elements are float32 or bfloat16 (element_arrays.h).
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ops/block_index/block_index.h"
#include "ops/element.h"
#include "ops/moe_matmul/moe_matmul.h"
#include "ops/moe_route/moe_route.h"
#include "ops/ngram_embed/ngram_embed.h"
#include "ops/ngram_ids/ngram_ids.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "python/argument_types.h"
#include "python/element_arrays.h"
#include "python/generation.h"

namespace quern::python {
namespace {

template <class T>
constexpr DType kDType = std::is_same_v<T, int32_t>   ? DType::i32
                         : std::is_same_v<T, int64_t> ? DType::i64
                                                      : DType::f32;

// A contiguous array of T, and what a span of it is.
template <class T>
class NumbersIn {
 public:
  NumbersIn(nb::handle object, const std::string& name) : array_((check_is_array(object, name), object), name) {
    if (!array_.tensor().present || array_.tensor().dtype != kDType<T>) {
      raise(bad_request(name, fmt::format("expected an array of {}", dtype_name(kDType<T>))));
    }
  }
  std::span<const T> span() const {
    return {static_cast<const T*>(array_.tensor().data), static_cast<size_t>(array_.tensor().elements())};
  }
  // Raises unless there are so many.
  std::span<const T> expect(int64_t count, const char* name) const {
    if (array_.tensor().elements() != count) {
      raise(bad_request(name, fmt::format("expected {} elements, got {}", count, array_.tensor().elements())));
    }
    return span();
  }

 private:
  ArrayIn array_;
};

template <class T>
class NumbersOut {
 public:
  explicit NumbersOut(ops::Shape shape) {
    tensor_.dtype = kDType<T>;
    tensor_.shape = shape;
    storage_ = take(cpu::Buffer::allocate(storage_bytes(tensor_.dtype, shape.elements()).value_or(SIZE_MAX),
                                          cpu::MemoryTag::workspace));
  }
  T* data() const { return storage_.as<T>(); }
  std::span<T> span() const { return {data(), static_cast<size_t>(tensor_.shape.elements())}; }
  ArrayOut array() { return array_out(tensor_, std::move(storage_)); }

 private:
  ops::Tensor tensor_;
  cpu::Buffer storage_;
};

ArrayOut numbers(const std::vector<int64_t>& values) {
  NumbersOut<int64_t> out({static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), out.data());
  return out.array();
}

nb::tuple ngram_hash(int32_t ngram_size, int32_t heads_per_ngram, int64_t vocabulary, int64_t base, int64_t divisor,
                     int64_t seed, int32_t layer_index) {
  const auto hash =
      take(ops::ngram_hash({ngram_size, heads_per_ngram, vocabulary, base, divisor, seed, layer_index}, "ngram_hash"));
  return nb::make_tuple(numbers(hash.multipliers), numbers(hash.sizes), numbers(hash.offsets), hash.padded);
}

ArrayOut ngram_ids(IdsArg ids, int64_t vocab_size, int32_t eos_token_id, int64_t seed, int32_t ngram_size,
                   int32_t heads_per_ngram, int64_t ngram_vocab_size_base, int32_t ple_index) {
  const std::vector<int32_t> tokens = ids_in(ids, "ids");
  const auto hash = take(ops::ngram_hash(
      {ngram_size, heads_per_ngram, vocab_size, ngram_vocab_size_base, /*divisor=*/1, seed, ple_index}, "ngram_ids"));
  NumbersOut<int64_t> rows({static_cast<int64_t>(tokens.size()), static_cast<int64_t>(hash.sizes.size())});
  compute([&](const ops::Context& context) {
    return ops::ngram_ids(context, {ngram_size, heads_per_ngram, vocab_size, eos_token_id},
                          {hash.multipliers, hash.sizes, hash.offsets, tokens, 0, rows.span()}, "ngram_ids");
  });
  return rows.array();
}

ArrayOut ngram_rows(ArrayArg ids, ArrayArg multipliers, ArrayArg sizes, ArrayArg offsets, int64_t first,
                    int64_t vocabulary, int32_t eos) {
  const NumbersIn<int32_t> tokens(ids, "ids");
  const NumbersIn<int64_t> factors(multipliers, "multipliers"), rows_of(sizes, "sizes"), starts(offsets, "offsets");
  const int32_t orders = extent(static_cast<int64_t>(factors.span().size()), "multipliers");
  const int64_t heads = extent(static_cast<int64_t>(rows_of.span().size()), "sizes");
  const int64_t count = static_cast<int64_t>(tokens.span().size()) - first;
  NumbersOut<int64_t> rows({std::max<int64_t>(0, count), heads});
  compute([&](const ops::Context& context) {
    return ops::ngram_ids(context, {orders, static_cast<int32_t>(heads / std::max(1, orders - 1)), vocabulary, eos},
                          {factors.span(), rows_of.span(), starts.span(), tokens.span(), first, rows.span()},
                          "ngram_rows");
  });
  return rows.array();
}

ArrayOut ngram_embed(std::vector<ArrayArg> shards, ArrayArg rows) {
  if (shards.empty()) raise(bad_request("shards", "at least one is needed"));
  std::vector<ElementsIn> tables;
  std::vector<ops::NgramShard> views;
  for (const auto& shard : shards) {
    const ElementsIn& table = tables.emplace_back(shard, "shards");
    table.expect(tables[0].type(), table.rows(), tables[0].width(), "shards");
    views.push_back({table.data(), table.rows()});
  }
  check_is_array(rows, "rows");
  const ArrayIn chosen(rows, "rows");
  const ops::Shape& shape = chosen.tensor().shape;
  if (!chosen.tensor().present || shape.rank() != 2) raise(bad_request("rows", "expected [tokens, heads] of int64"));
  const NumbersIn<int64_t> numbers(rows, "rows");
  ElementsOut out(tables[0].type(), {shape[0], shape[1] * tables[0].width()});
  compute([&](const ops::Context& context) {
    return ops::ngram_embed(context, {tables[0].type(), shape[0], shape[1], tables[0].width()},
                            {views, numbers.span(), out.data()}, "ngram_embed");
  });
  return out.array();
}

nb::tuple moe_route(ArrayArg scores, int32_t chosen, bool normalize) {
  const ElementsIn in(scores, "scores");
  const ops::Shape shape{in.rows(), std::max(0, chosen)};
  const int32_t choices = extent(in.width(), "scores");
  NumbersOut<int32_t> experts(shape);
  NumbersOut<float> weights(shape);
  compute([&](const ops::Context& context) {
    return ops::moe_route(context, {in.type(), in.rows(), choices, chosen, normalize},
                          {in.view(), experts.data(), weights.data()}, "moe_route");
  });
  return nb::make_tuple(experts.array(), weights.array());
}

ArrayOut moe_matmul(ArrayArg x, ArrayArg gate_up, ArrayArg down, ArrayArg shared_gate_proj, ArrayArg shared_up,
                    ArrayArg shared_down, ArrayArg shared_gate, ArrayArg chosen_experts, ArrayArg chosen_weights) {
  const ElementsIn in(x, "x"), first(gate_up, "gate_up"), second(down, "down"),
      shared_0(shared_gate_proj, "shared_gate_proj"), shared_1(shared_up, "shared_up"),
      shared_2(shared_down, "shared_down"), gate(shared_gate, "shared_gate");
  const NumbersIn<int32_t> choices(chosen_experts, "chosen_experts");
  const NumbersIn<float> weights(chosen_weights, "chosen_weights");
  const int64_t hidden = in.width(), width = second.width(), shared_width = shared_2.width();
  const int64_t experts = parts_of(second.rows(), hidden, "down");
  second.expect(in.type(), experts * hidden, width, "down");
  first.expect(in.type(), experts * 2 * extent(width, "down"), hidden, "gate_up");
  shared_0.expect(in.type(), shared_width, hidden, "shared_gate_proj");
  shared_1.expect(in.type(), shared_width, hidden, "shared_up");
  shared_2.expect(in.type(), hidden, shared_width, "shared_down");
  gate.expect(in.type(), 1, hidden, "shared_gate");
  std::vector<ops::ExpertWeights> matrices;
  for (int64_t e = 0; e < experts; e++) {
    const int64_t at = e * width * hidden;
    matrices.push_back({ops::element_at(in.type(), first.data(), 2 * at),
                        ops::element_at(in.type(), first.data(), 2 * at + width * hidden),
                        ops::element_at(in.type(), second.data(), at)});
  }
  const int32_t chosen =
      parts_of(static_cast<int64_t>(choices.span().size()), std::max<int64_t>(1, in.rows()), "chosen_experts");
  ElementsOut out(in.type(), in.shape());
  compute([&](const ops::Context& context) {
    return ops::moe_matmul(context, {in.type(), in.rows(), hidden, width, shared_width, chosen},
                           {in.view(),
                            matrices,
                            {shared_0.data(), shared_1.data(), shared_2.data()},
                            gate.data(),
                            choices.span(),
                            weights.span(),
                            out.view()},
                           "moe_matmul");
  });
  return out.array();
}

// Of [tokens, heads, d], each token and head without gaps.
ops::HeadRowsIn heads_of(const ElementsIn& rows, int64_t heads) {
  return {rows.data(), heads * rows.width(), rows.width()};
}

nb::tuple sparse_attention(ArrayArg q, ArrayArg gate, ArrayArg k, ArrayArg v, ArrayArg past_keys, ArrayArg past_values,
                           ArrayArg blocks, ArrayArg counts, int32_t ratio, float scale) {
  const ElementsIn query(q, "q"), open(gate, "gate"), key(k, "k"), value(v, "v"), keys(past_keys, "past_keys"),
      values(past_values, "past_values");
  const NumbersIn<int32_t> lists(blocks, "blocks"), lengths(counts, "counts");
  for (const ElementsIn* a : {&query, &key, &keys}) {
    if (a->shape().rank() != 3) raise(bad_request("sparse_attention", "expected arrays of [rows, heads, d]"));
  }
  const int64_t tokens = query.shape()[0], kv_heads = key.shape()[1], d = query.width(), past = keys.shape()[1];
  const int32_t query_heads = extent(query.shape()[1], "q"), head_size = extent(d, "q");
  open.expect(query.type(), query.rows(), d, "gate");
  key.expect(query.type(), tokens * extent(kv_heads, "k"), d, "k");
  value.expect(query.type(), key.rows(), d, "v");
  keys.expect(query.type(), kv_heads * extent(past, "past_keys"), d, "past_keys");
  values.expect(query.type(), keys.rows(), d, "past_values");
  lengths.expect(tokens, "counts");
  std::vector<int32_t> list(lists.span().begin(), lists.span().end());
  std::vector<int32_t> length(lengths.span().begin(), lengths.span().end());
  const int64_t stride = parts_of(static_cast<int64_t>(lists.span().size()), std::max<int64_t>(1, tokens), "blocks");

  const int64_t capacity = past + tokens;
  ElementsOut new_keys(query.type(), {kv_heads, capacity, d}), new_values(query.type(), {kv_heads, capacity, d});
  const auto bytes = static_cast<size_t>(past * d * bits_of(query.type()) / 8);
  for (int64_t g = 0; g < kv_heads && bytes > 0; g++) {
    std::memcpy(ops::element_at(query.type(), new_keys.data(), g * capacity * d),
                ops::element_at(query.type(), keys.data(), g * past * d), bytes);
    std::memcpy(ops::element_at(query.type(), new_values.data(), g * capacity * d),
                ops::element_at(query.type(), values.data(), g * past * d), bytes);
  }
  ops::SparseAttentionArgs args;
  args.q = heads_of(query, query_heads);
  args.gate = heads_of(open, query_heads);
  args.k = heads_of(key, kv_heads);
  args.v = heads_of(value, kv_heads);
  args.cache.keys = new_keys.data();
  args.cache.values = new_values.data();
  args.cache.dtype = query.type();
  args.cache.head_stride = capacity * d;
  args.cache.row_stride = d;
  args.cache.capacity = capacity;
  args.selection = {list.data(), stride, length.data()};
  ElementsOut out(query.type(), {tokens, query_heads * d});
  args.out = out.view();
  compute([&](const ops::Context& context) {
    return ops::sparse_attention(
        context, {query.type(), query_heads, static_cast<int32_t>(kv_heads), head_size, tokens, past, ratio, scale},
        args, "sparse_attention");
  });
  return nb::make_tuple(out.array(), new_keys.array(), new_values.array());
}

nb::tuple block_index(ArrayArg z, ArrayArg q_weight, ArrayArg k_weight, ArrayArg frequencies, int32_t ratio,
                      int32_t budget, float epsilon) {
  const ElementsIn rows(z, "z"), q(q_weight, "q_weight"), k(k_weight, "k_weight");
  const NumbersIn<float> angles(frequencies, "frequencies");
  const int64_t tokens = rows.rows(), d = q.width();
  k.expect(rows.type(), 1, d, "k_weight");
  q.expect(rows.type(), 1, d, "q_weight");
  const int32_t heads = parts_of(rows.width(), d, "z") - 1, head_size = extent(d, "q_weight");
  const int64_t blocks = tokens / std::max(1, ratio);
  ElementsOut keys(rows.type(), {blocks, d}), open(rows.type(), {std::max(0, ratio - 1), d});
  NumbersOut<int32_t> chosen({tokens, std::max(0, budget)}), counts({tokens});
  ops::BlockIndexArgs args;
  args.z = rows.view();
  args.q_weight = q.data();
  args.k_weight = k.data();
  args.frequencies = angles.span();
  args.state = {keys.data(), blocks, open.data()};
  args.selection = {chosen.data(), budget, counts.data()};
  compute([&](const ops::Context& context) {
    return ops::block_index(context, {rows.type(), heads, head_size, ratio, budget, tokens, 0, epsilon}, args,
                            "block_index");
  });
  return nb::make_tuple(keys.array(), open.array(), chosen.array(), counts.array());
}

}  // namespace

void bind_qwen4_sparse_ops(nb::module_& ops) {
  ops.def("ngram_hash", &ngram_hash, nb::kw_only(), nb::arg("ngram_size"), nb::arg("heads_per_ngram"),
          nb::arg("vocabulary"), nb::arg("base"), nb::arg("divisor"), nb::arg("seed"), nb::arg("layer_index"),
          "(multipliers, sizes, offsets, rows of the table) of one layer's n-gram hash.");
  ops.def("ngram_ids", &ngram_ids, nb::arg("ids"), nb::kw_only(), nb::arg("vocab_size"), nb::arg("eos_token_id"),
          nb::arg("seed") = 1234, nb::arg("ngram_size") = 3, nb::arg("heads_per_ngram") = 8,
          nb::arg("ngram_vocab_size_base") = 20'000'000, nb::arg("ple_index") = 0,
          "[tokens, heads] int64: rows of the n-gram table for a sequence of ids, by the names of the model's "
          "configuration; ple_index counts the layers that look up n-grams.");
  ops.def("ngram_rows", &ngram_rows, nb::arg("ids"), nb::arg("multipliers"), nb::arg("sizes"), nb::arg("offsets"),
          nb::kw_only(), nb::arg("first") = 0, nb::arg("vocabulary"), nb::arg("eos"),
          "The same for the int32 ids from `first` on, with the constants that ngram_hash() gives.");
  ops.def("ngram_embed", &ngram_embed, nb::arg("shards"), nb::arg("rows"),
          "[tokens, heads * width]: the named rows of a table given in parts.");
  ops.def("moe_route", &moe_route, nb::arg("scores"), nb::kw_only(), nb::arg("chosen"), nb::arg("normalize") = true,
          "(experts int32, weights float32), both [tokens, chosen], from router scores [tokens, experts].");
  ops.def("moe_matmul", &moe_matmul, nb::arg("x"), nb::arg("gate_up"), nb::arg("down"), nb::arg("shared_gate_proj"),
          nb::arg("shared_up"), nb::arg("shared_down"), nb::arg("shared_gate"), nb::arg("chosen_experts"),
          nb::arg("chosen_weights"),
          "x [tokens, H] through its chosen experts of gate_up [E, 2 I, H] and down [E, H, I] and the shared expert.");
  ops.def("block_index", &block_index, nb::arg("z"), nb::arg("q_weight"), nb::arg("k_weight"), nb::arg("frequencies"),
          nb::kw_only(), nb::arg("ratio"), nb::arg("budget"), nb::arg("epsilon") = 1e-6F,
          "(keys of the complete blocks, open raw keys, chosen blocks int32 [S, budget], counts int32 [S], -1 for all) "
          "of a sequence's index projections z [S, (H + 1) * D], with the float32 frequencies of the rotation.");
  ops.def("sparse_attention", &sparse_attention, nb::arg("q"), nb::arg("gate"), nb::arg("k"), nb::arg("v"),
          nb::arg("past_keys"), nb::arg("past_values"), nb::arg("blocks"), nb::arg("counts"), nb::kw_only(),
          nb::arg("ratio"), nb::arg("scale"),
          "(out [S, Nq * D], keys, values [Nk, past + S, D]) of q, gate [S, Nq, D] and k, v [S, Nk, D]; each query "
          "sees the first counts[s] of int32 blocks[s] (-1: all blocks) and its tail.");
}

}  // namespace quern::python
