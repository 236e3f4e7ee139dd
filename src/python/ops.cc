// SPDX-License-Identifier: Apache-2.0
// quern.ops: each operator room as a function on arrays, through the same preparation, checks and kernels as a graph.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu/topology.h"
#include "ops/registry.h"
#include "python/argument_types.h"
#include "python/arrays.h"
#include "python/interpreter_lock.h"

namespace quern::python {
namespace {

constexpr int64_t kOpset = 26;

ops::Attribute attribute(std::string_view name, int64_t value) {
  ops::Attribute a;
  a.name = name;
  a.type = ops::AttributeType::i;
  a.i = value;
  return a;
}

ops::Attribute attribute(std::string_view name, float value) {
  ops::Attribute a;
  a.name = name;
  a.type = ops::AttributeType::f;
  a.f = value;
  return a;
}

ops::IntValues small_ints(const ops::Tensor& t) {
  ops::IntValues values;
  if (!t.present || (t.dtype != DType::i64 && t.dtype != DType::i32) || t.elements() > ops::IntValues::kMax)
    return values;
  values.known = true;
  values.count = static_cast<int>(t.elements());
  for (int i = 0; i < values.count; i++) values.v[i] = t.dtype == DType::i64 ? t.as<int64_t>()[i] : t.as<int32_t>()[i];
  return values;
}

// An argument, None where it is absent.
struct Named {
  const char* name;
  nb::object array;
};

// Runs one node and returns the outputs it has. `constants` are input indices that the node sees as initializers.
nb::list run_node(std::string_view domain, std::string_view op_type, const std::vector<Named>& arrays,
                  const std::vector<ops::Attribute>& attributes, const std::vector<bool>& outputs,
                  const std::vector<int>& constants = {}) {
  std::vector<ArrayIn> in;
  in.reserve(arrays.size());
  std::vector<ops::NodeInput> node_inputs;
  std::vector<ops::Tensor> tensors;
  std::vector<ops::IntValues> in_values;
  for (size_t i = 0; i < arrays.size(); i++) {
    check_is_array(arrays[i].array, arrays[i].name);
    in.emplace_back(arrays[i].array, arrays[i].name);
    const ops::Tensor& t = in.back().tensor();
    ops::NodeInput input;
    input.present = t.present;
    input.dtype = t.dtype;
    for (int c : constants) input.constant = input.constant || (c == static_cast<int>(i) && t.present);
    if (input.constant) input.value = t;
    node_inputs.push_back(input);
    tensors.push_back(t);
    in_values.push_back(small_ints(t));
  }
  const std::unique_ptr<bool[]> present(new bool[outputs.size()]);
  std::copy(outputs.begin(), outputs.end(), present.get());
  ops::NodeView node;
  node.name = op_type;
  node.op = op_type;
  node.domain = domain;
  node.opset = domain.empty() ? kOpset : 1;
  node.attributes = attributes;
  node.inputs = node_inputs;
  node.outputs = {present.get(), outputs.size()};

  const auto features = take(cpu::usable_features());
  cpu::Pool pool(cpu::read_topology().threads);
  std::map<ops::SharedKey, std::shared_ptr<const void>> shared;
  ops::PrepareContext prepare;
  prepare.features = features;
  prepare.pool = &pool;
  prepare.shared = &shared;
  const auto op = [&] {
    const LockReleased released;
    return take(ops::make_operator(node, prepare));
  }();

  std::vector<ops::Shape> shapes(outputs.size());
  std::vector<ops::IntValues> out_values(outputs.size());
  std::vector<ops::View> views(outputs.size());
  take(op->resolve({tensors, in_values, shapes, out_values, views}));
  std::vector<ops::Tensor> out(outputs.size());
  std::vector<cpu::Buffer> storage(outputs.size());
  for (size_t j = 0; j < out.size(); j++) {
    out[j].present = outputs[j];
    if (!outputs[j]) continue;
    out[j].dtype = op->output_dtype(static_cast<int>(j));
    out[j].shape = shapes[j];
    const auto elements = shapes[j].checked_elements();
    const auto bytes = elements ? storage_bytes(out[j].dtype, *elements) : std::nullopt;
    if (!bytes)
      raise(bad_request(std::string(op_type), fmt::format("output shape {} is too large", shapes[j].to_string())));
    storage[j] = take(cpu::Buffer::allocate(*bytes, cpu::MemoryTag::workspace));
    out[j].data = storage[j].data();
  }
  if (op->folds_shapes()) {
    for (size_t j = 0; j < out.size(); j++) {
      for (int k = 0; k < out_values[j].count; k++) out[j].as<int64_t>()[k] = out_values[j].v[k];
    }
  } else {
    const LockReleased released;
    cpu::Arena scratch;
    ops::Counters counters;
    take(op->run({&pool, &scratch, features, &counters}, tensors, out));
  }
  nb::list results;
  for (size_t j = 0; j < out.size(); j++) {
    if (outputs[j]) results.append(array_out(out[j], std::move(storage[j])));
  }
  return results;
}

constexpr std::string_view kMicrosoft = "com.microsoft";

ArrayOut only(nb::list results) { return nb::borrow<ArrayOut>(results[0]); }

void bind_data_movement(nb::module_& m) {
  m.def(
      "gather",
      [](ArrayArg data, ArrayArg indices, int64_t axis) {
        return only(run_node("", "Gather", {{"data", data}, {"indices", indices}}, {attribute("axis", axis)}, {true}));
      },
      nb::arg("data"), nb::arg("indices"), nb::kw_only(), nb::arg("axis") = 0,
      "Rows of `data` (any dtype) along `axis` at int32 or int64 `indices`, of which negative ones count from the end; "
      "shape data[:axis] + indices + data[axis + 1:].");
  m.def(
      "cast",
      [](ArrayArg x, int64_t to) {
        return only(run_node("", "Cast", {{"x", x}}, {attribute("to", to)}, {true}));
      },
      nb::arg("x"), nb::kw_only(), nb::arg("to"),
      "x as the ONNX element type number `to` (6: int32, 7: int64, 1: float32), same shape.");
  m.def(
      "reduce_sum",
      [](ArrayArg x, ArrayArg axes, int64_t keepdims, int64_t noop_with_empty_axes) {
        return only(run_node("", "ReduceSum", {{"x", x}, {"axes", axes}},
                             {attribute("keepdims", keepdims), attribute("noop_with_empty_axes", noop_with_empty_axes)},
                             {true}, {1}));
      },
      nb::arg("x"), nb::arg("axes") = nb::none(), nb::kw_only(), nb::arg("keepdims") = 1,
      nb::arg("noop_with_empty_axes") = 0,
      "Sum of x (int64, int32 or float32) over int64 `axes` (None: all, unless noop_with_empty_axes), which stay as "
      "extents of 1 with keepdims.");
  m.def(
      "split",
      [](ArrayArg x, ArrayArg sizes, int64_t axis) {
        check_is_array(sizes, "sizes");
        const ArrayIn split(sizes, "sizes");
        return run_node("", "Split", {{"x", x}, {"sizes", sizes}}, {attribute("axis", axis)},
                        std::vector<bool>(static_cast<size_t>(split.tensor().elements()), true), {1});
      },
      nb::arg("x"), nb::arg("sizes"), nb::kw_only(), nb::arg("axis") = 0,
      "List of pieces of `x` (any dtype) along `axis`, int64 `sizes` long, which add up to its extent.");
  m.def(
      "reshape",
      [](ArrayArg x, ArrayArg shape, int64_t allowzero) {
        return only(
            run_node("", "Reshape", {{"x", x}, {"shape", shape}}, {attribute("allowzero", allowzero)}, {true}, {1}));
      },
      nb::arg("x"), nb::arg("shape"), nb::kw_only(), nb::arg("allowzero") = 0,
      "`x` (any dtype) with the dims of int64 `shape` (0: keep, unless allowzero; one -1: infer).");
  m.def(
      "shape",
      [](ArrayArg x) {
        return only(run_node("", "Shape", {{"x", x}}, {}, {true}));
      },
      nb::arg("x"), "The dims of `x` as an int64 array [rank].");
}

void bind_arithmetic(nb::module_& m) {
  for (const auto& [name, op] : {std::pair{"add", "Add"}, {"sub", "Sub"}, {"mul", "Mul"}}) {
    m.def(
        name,
        [op = op](ArrayArg a, ArrayArg b) {
          return only(run_node("", op, {{"a", a}, {"b", b}}, {}, {true}));
        },
        nb::arg("a"), nb::arg("b"), "Element by element with NumPy broadcasting; float32 or int64.");
  }
  m.def(
      "sigmoid",
      [](ArrayArg x) {
        return only(run_node("", "Sigmoid", {{"x", x}}, {}, {true}));
      },
      nb::arg("x"), "1 / (1 + exp(-x)), float32, absolute error at most 5e-7.");
  m.def(
      "matmul",
      [](ArrayArg a, ArrayArg b) {
        return only(run_node("", "MatMul", {{"a", a}, {"b", b}}, {}, {true}, {1}));
      },
      nb::arg("a"), nb::arg("b"), "float32 [..., M, K] times [K, N]: [..., M, N].");
  m.def(
      "matmul_nbits",
      [](ArrayArg a, ArrayArg b, ArrayArg scales, ArrayArg zero_points, ArrayArg bias, int64_t bits, int64_t block_size,
         int64_t accuracy_level) {
        check_is_array(a, "a");
        check_is_array(b, "b");
        const ArrayIn activations(a, "a");
        const ArrayIn codes(b, "b");
        if (!activations.tensor().present || activations.tensor().shape.rank() == 0 || !codes.tensor().present ||
            codes.tensor().shape.rank() == 0) {
          raise(bad_request("matmul_nbits", "a and b must have at least one dimension"));
        }
        std::vector<ops::Attribute> attributes{
            attribute("K", activations.tensor().shape.back()), attribute("N", codes.tensor().shape[0]),
            attribute("bits", bits), attribute("block_size", block_size), attribute("accuracy_level", accuracy_level)};
        return only(run_node(kMicrosoft, "MatMulNBits",
                             {{"a", a},
                              {"b", b},
                              {"scales", scales},
                              {"zero_points", zero_points},
                              {"absent", nb::none()},
                              {"bias", bias}},
                             attributes, {true}, {1, 2, 3, 5}));
      },
      nb::arg("a"), nb::arg("b"), nb::arg("scales"), nb::arg("zero_points") = nb::none(), nb::arg("bias") = nb::none(),
      nb::kw_only(), nb::arg("bits") = 4, nb::arg("block_size") = 32, nb::arg("accuracy_level") = 4,
      "a [..., K] float32 or float16 times the block-quantized b [N, ceil(K/block), block*bits/8] uint8 with scales "
      "[N, ceil(K/block)]; zero_points uint8 [N, ceil(ceil(K/block)*bits/8)] or floats like scales; bias [N]. bits 4 "
      "or 8, block_size 16, 32, 64, 128 or 256; accuracy_level 4 quantizes the rows of a to int8, 0 to 3 keep them "
      "float32.");
}

void bind_norms_and_attention(nb::module_& m) {
  m.def(
      "simplified_layer_normalization",
      [](ArrayArg x, ArrayArg scale, float epsilon) {
        return only(run_node("", "SimplifiedLayerNormalization", {{"x", x}, {"scale", scale}},
                             {attribute("epsilon", epsilon)}, {true}, {1}));
      },
      nb::arg("x"), nb::arg("scale"), nb::kw_only(), nb::arg("epsilon") = 1e-5F,
      "x / sqrt(mean(x^2) + epsilon) * scale over the last axis.");
  m.def(
      "skip_simplified_layer_normalization",
      [](ArrayArg x, ArrayArg skip, ArrayArg gamma, ArrayArg bias, float epsilon) {
        return run_node(kMicrosoft, "SkipSimplifiedLayerNormalization",
                        {{"x", x}, {"skip", skip}, {"gamma", gamma}, {"bias", bias}}, {attribute("epsilon", epsilon)},
                        {true, false, false, true}, {2, 3});
      },
      nb::arg("x"), nb::arg("skip"), nb::arg("gamma"), nb::arg("bias") = nb::none(), nb::kw_only(),
      nb::arg("epsilon") = 1e-12F,
      "[normalized, sum]: sum = x + skip (+ bias), normalized = sum / sqrt(mean(sum^2) + epsilon) * gamma.");
  m.def(
      "group_query_attention",
      [](ArrayArg query, ArrayArg key, ArrayArg value, ArrayArg past_key, ArrayArg past_value, ArrayArg seqlens_k,
         ArrayArg total_sequence_length, ArrayArg cos_cache, ArrayArg sin_cache, int64_t num_heads,
         int64_t kv_num_heads, float scale, float softcap, int64_t local_window_size, int64_t do_rotary,
         int64_t rotary_interleaved) {
        std::vector<ops::Attribute> attributes{attribute("num_heads", num_heads),
                                               attribute("kv_num_heads", kv_num_heads),
                                               attribute("scale", scale),
                                               attribute("softcap", softcap),
                                               attribute("local_window_size", local_window_size),
                                               attribute("do_rotary", do_rotary),
                                               attribute("rotary_interleaved", rotary_interleaved)};
        return run_node(kMicrosoft, "GroupQueryAttention",
                        {{"query", query},
                         {"key", key},
                         {"value", value},
                         {"past_key", past_key},
                         {"past_value", past_value},
                         {"seqlens_k", seqlens_k},
                         {"total_sequence_length", total_sequence_length},
                         {"cos_cache", cos_cache},
                         {"sin_cache", sin_cache}},
                        attributes, {true, true, true}, {7, 8});
      },
      nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("past_key"), nb::arg("past_value"),
      nb::arg("seqlens_k"), nb::arg("total_sequence_length"), nb::arg("cos_cache") = nb::none(),
      nb::arg("sin_cache") = nb::none(), nb::kw_only(), nb::arg("num_heads"), nb::arg("kv_num_heads"),
      nb::arg("scale") = 0.0F, nb::arg("softcap") = 0.0F, nb::arg("local_window_size") = -1, nb::arg("do_rotary") = 0,
      nb::arg("rotary_interleaved") = 0, "[output [B,S,Nq*D], present_key, present_value [B,Nk,T,D]], float32.");
}

}  // namespace

void bind_ops(nb::module_& m) {
  nb::module_ ops = m.def_submodule(
      "ops",
      "The operator rooms on NumPy arrays, for parity tests: each call prepares, checks and runs "
      "one operator on all usable cores.\n\n"
      "Arrays are float32 where nothing else is said; the rooms of qwen4_exp also take "
      "bfloat16, as ml_dtypes.bfloat16 or as its bits in uint16. All raise quern.Error: bad_request (a dtype, a "
      "shape or a parameter), unsupported, no_memory.");
  bind_data_movement(ops);
  bind_arithmetic(ops);
  bind_norms_and_attention(ops);
  bind_qwen4_mixer_ops(ops);
  bind_qwen4_sparse_ops(ops);
}

}  // namespace quern::python
