// SPDX-License-Identifier: Apache-2.0
// quern.ops: the rooms of the residual stream and of the Gated DeltaNet layer of qwen4_exp, for parity tests. Arrays
// are float32 or bfloat16 (element_arrays.h).
#include <nanobind/stl/string.h>

#include "ops/centred_rms_norm/centred_rms_norm.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "ops/gated_norm/gated_norm.h"
#include "ops/hyper_mix/hyper_mix.h"
#include "ops/linear/linear.h"
#include "ops/partial_rope/partial_rope.h"
#include "ops/ple_gate/ple_gate.h"
#include "ops/short_conv/short_conv.h"
#include "python/argument_types.h"
#include "python/element_arrays.h"

namespace quern::python {
namespace {

ArrayOut centred_rms_norm(ArrayArg x, ArrayArg weight, int64_t group, float epsilon) {
  const ElementsIn in(x, "x");
  const ElementsIn scale(weight, "weight");
  scale.expect(in.type(), 1, in.width(), "weight");
  ElementsOut out(in.type(), in.shape());
  compute([&](const ops::Context& context) {
    return ops::centred_rms_norm(context, {in.type(), in.rows(), in.width(), group, epsilon},
                                 {in.data(), {1, 0, in.width()}, scale.data(), out.data(), {1, 0, in.width()}},
                                 "centred_rms_norm");
  });
  return out.array();
}

ArrayOut hyper_gate(ArrayArg a, int32_t streams) {
  const ElementsIn in(a, "a");
  ElementsOut out(in);
  compute([&](const ops::Context& context) {
    return ops::hyper_gate(context, {in.type(), in.rows(), in.width(), streams}, out.view(), "hyper_gate");
  });
  return out.array();
}

ArrayOut hyper_mix(ArrayArg normed, ArrayArg gate_logits, int32_t streams) {
  const ElementsIn n(normed, "normed");
  const ElementsIn m(gate_logits, "gate_logits");
  m.expect(n.type(), n.rows(), n.width(), "gate_logits");
  const int64_t hidden = parts_of(n.width(), streams, "normed");
  ElementsOut out(n.type(), {n.rows(), hidden});
  compute([&](const ops::Context& context) {
    return ops::hyper_mix(context, {n.type(), n.rows(), hidden, streams}, {n.view(), m.view(), out.view()},
                          "hyper_mix");
  });
  return out.array();
}

ArrayOut hyper_scatter(ArrayArg x, ArrayArg y, ArrayArg inject_logits) {
  const ElementsIn stream(x, "x");
  const ElementsIn sub(y, "y");
  const ElementsIn z(inject_logits, "inject_logits");
  const int32_t streams = parts_of(stream.width(), sub.width(), "x");
  sub.expect(stream.type(), stream.rows(), sub.width(), "y");
  z.expect(stream.type(), stream.rows(), streams, "inject_logits");
  ElementsOut out(stream);
  compute([&](const ops::Context& context) {
    return ops::hyper_scatter(context, {stream.type(), stream.rows(), sub.width(), streams},
                              {out.view(), sub.view(), z.view()}, "hyper_scatter");
  });
  return out.array();
}

ArrayOut linear(ArrayArg x, ArrayArg weight) {
  const ElementsIn in(x, "x");
  const ElementsIn w(weight, "weight");
  w.expect(w.type(), w.rows(), in.width(), "weight");
  ElementsOut out(in.type(), {in.rows(), w.rows()});
  compute([&](const ops::Context& context) {
    return ops::linear(context, {in.type(), w.type(), in.rows(), w.rows(), in.width()},
                       {in.view(), w.data(), out.view()}, "linear");
  });
  return out.array();
}

ArrayOut gated_norm(ArrayArg x, ArrayArg gate, ArrayArg weight, bool silu, float epsilon) {
  const ElementsIn in(x, "x");
  const ElementsIn z(gate, "gate");
  const ElementsIn scale(weight, "weight");
  z.expect(in.type(), in.rows(), in.width(), "gate");
  scale.expect(in.type(), 1, in.width(), "weight");
  ElementsOut out(in.type(), in.shape());
  const ops::RowLayout rows{1, 0, in.width()};
  compute([&](const ops::Context& context) {
    return ops::gated_norm(
        context, {in.type(), in.rows(), in.width(), epsilon, silu ? ops::Activation::silu : ops::Activation::sigmoid},
        {in.data(), rows, z.data(), rows, scale.data(), out.data(), rows}, "gated_norm");
  });
  return out.array();
}

nb::tuple short_conv(ArrayArg x, ArrayArg weight, ArrayArg state, int32_t dilation) {
  const ElementsIn in(x, "x");
  const ElementsIn w(weight, "weight");
  const ElementsIn past(state, "state");
  const int32_t taps = extent(w.width(), "weight");
  w.expect(in.type(), in.width(), taps, "weight");
  past.expect(in.type(), ops::short_conv_past(taps, dilation), in.width(), "state");
  ElementsOut out(in.type(), in.shape());
  ElementsOut left(past);
  compute([&](const ops::Context& context) {
    return ops::short_conv(context, {in.type(), in.rows(), in.width(), taps, dilation},
                           {in.view(), w.data(), left.data(), out.view()}, "short_conv");
  });
  return nb::make_tuple(out.array(), left.array());
}

nb::tuple gated_delta_rule(ArrayArg qkv, ArrayArg b, ArrayArg a, ArrayArg a_log, ArrayArg dt_bias, ArrayArg state,
                           bool chunked) {
  const ElementsIn in(qkv, "qkv");
  const ElementsIn learn(b, "b");
  const ElementsIn step(a, "a");
  const ElementsIn rate(a_log, "a_log");
  const ElementsIn bias(dt_bias, "dt_bias");
  const ElementsIn past(state, "state");
  const ops::Shape& s = past.shape();
  if (s.rank() != 3 || s[0] < 1 || s[1] < 1)
    raise(bad_request("state", "expected [value heads, key size, value size]"));
  const int32_t value_heads = extent(s[0], "state"), key_size = extent(s[1], "state");
  const int32_t value_size = extent(s[2], "state");
  const int32_t key_heads = parts_of(in.width() - s[0] * s[2], 2 * s[1], "qkv");
  past.expect(DType::f32, s[0] * s[1], s[2], "state");
  learn.expect(in.type(), in.rows(), s[0], "b");
  step.expect(in.type(), in.rows(), s[0], "a");
  rate.expect(in.type(), 1, s[0], "a_log");
  bias.expect(in.type(), 1, s[0], "dt_bias");
  ElementsOut out(in.type(), {in.rows(), s[0], s[2]});
  ElementsOut left(past);
  compute([&](const ops::Context& context) {
    return ops::gated_delta_rule(context,
                                 {in.type(), chunked ? ops::DeltaForm::chunked : ops::DeltaForm::recurrent, in.rows(),
                                  key_heads, value_heads, key_size, value_size},
                                 {in.view(),
                                  learn.view(),
                                  step.view(),
                                  rate.data(),
                                  bias.data(),
                                  static_cast<float*>(left.data()),
                                  {out.data(), s[0] * s[2]}},
                                 "gated_delta_rule");
  });
  return nb::make_tuple(out.array(), left.array());
}

ArrayOut rope_frequencies(double theta, int64_t rotary) {
  if (rotary < 0) raise(bad_request("rotary", "must not be negative"));
  ElementsOut out(DType::f32, {rotary / 2});
  ops::rope_frequencies(theta, {static_cast<float*>(out.data()), static_cast<size_t>(rotary / 2)});
  return out.array();
}

// x [tokens, heads, D] at int64 positions.
ArrayOut partial_rope(ArrayArg x, ArrayArg positions, ArrayArg frequencies) {
  const ElementsIn in(x, "x");
  check_is_array(positions, "positions");
  const ArrayIn at(positions, "positions");
  const ElementsIn inverse(frequencies, "frequencies");
  if (in.shape().rank() != 3 || in.shape()[1] < 1) raise(bad_request("x", "expected [tokens, heads, D]"));
  const int64_t tokens = in.shape()[0], half = inverse.width();
  if (at.tensor().dtype != DType::i64 || at.tensor().elements() != tokens) {
    raise(bad_request("positions", "expected one int64 a token"));
  }
  inverse.expect(DType::f32, 1, half, "frequencies");
  const ElementsOut cos(DType::f32, {tokens, half}), sin(DType::f32, {tokens, half});
  ops::fill_rope_table({in.type(),
                        {at.tensor().as<const int64_t>(), static_cast<size_t>(tokens)},
                        {static_cast<const float*>(inverse.data()), static_cast<size_t>(half)},
                        static_cast<float*>(cos.data()),
                        static_cast<float*>(sin.data())});
  ElementsOut out(in.type(), in.shape());
  const ops::RowLayout rows{1, 0, in.width()};
  const int32_t heads = extent(in.shape()[1], "x"), d = extent(in.width(), "x");
  const int32_t rotary = extent(2 * half, "frequencies");
  compute([&](const ops::Context& context) {
    return ops::partial_rope(context, {in.type(), tokens, heads, d, rotary},
                             {in.data(), rows, static_cast<const float*>(cos.data()),
                              static_cast<const float*>(sin.data()), out.data(), rows},
                             "partial_rope");
  });
  return out.array();
}

ArrayOut ple_gate(ArrayArg key_normed, ArrayArg query_normed, ArrayArg value) {
  const ElementsIn k(key_normed, "key_normed");
  const ElementsIn q(query_normed, "query_normed");
  const ElementsIn v(value, "value");
  const int32_t streams = parts_of(k.width(), v.width(), "key_normed");
  q.expect(k.type(), k.rows(), k.width(), "query_normed");
  v.expect(k.type(), k.rows(), v.width(), "value");
  ElementsOut out(k.type(), {k.rows(), k.width()});
  compute([&](const ops::Context& context) {
    return ops::ple_gate(context, {k.type(), k.rows(), v.width(), streams}, {k.view(), q.view(), v.view(), out.view()},
                         "ple_gate");
  });
  return out.array();
}

ArrayOut ple_add(ArrayArg x, ArrayArg gated, ArrayArg conv) {
  const ElementsIn stream(x, "x");
  const ElementsIn g(gated, "gated");
  const ElementsIn h(conv, "conv");
  g.expect(stream.type(), stream.rows(), stream.width(), "gated");
  h.expect(stream.type(), stream.rows(), stream.width(), "conv");
  ElementsOut out(stream);
  compute([&](const ops::Context& context) {
    return ops::ple_add(context, {stream.type(), stream.rows(), stream.width(), 1}, {out.view(), g.view(), h.view()},
                        "ple_add");
  });
  return out.array();
}

}  // namespace

void bind_qwen4_mixer_ops(nb::module_& ops) {
  ops.def("centred_rms_norm", &centred_rms_norm, nb::arg("x"), nb::arg("weight"), nb::kw_only(), nb::arg("group"),
          nb::arg("epsilon") = 1e-6F, "x / sqrt(mean(x^2) + epsilon) * (1 + weight), the mean over groups of a row.");
  ops.def("hyper_gate", &hyper_gate, nb::arg("a"), nb::kw_only(), nb::arg("streams"), "silu(a / streams).");
  ops.def("hyper_mix", &hyper_mix, nb::arg("normed"), nb::arg("gate_logits"), nb::kw_only(), nb::arg("streams"),
          "[rows, H]: the mean over streams of sigmoid(gate_logits) * normed, both [rows, streams * H].");
  ops.def("hyper_scatter", &hyper_scatter, nb::arg("x"), nb::arg("y"), nb::arg("inject_logits"),
          "x [rows, C * H] plus y [rows, H] times 2 sigmoid(inject_logits [rows, C] / C) of each stream.");
  ops.def("linear", &linear, nb::arg("x"), nb::arg("weight"), "x [..., K] times weight [N, K] transposed.");
  ops.def("gated_norm", &gated_norm, nb::arg("x"), nb::arg("gate"), nb::arg("weight"), nb::kw_only(),
          nb::arg("silu") = false, nb::arg("epsilon") = 1e-6F,
          "x / sqrt(mean(x^2) + epsilon) * weight * sigmoid(gate), or silu(gate).");
  ops.def("short_conv", &short_conv, nb::arg("x"), nb::arg("weight"), nb::arg("state"), nb::kw_only(),
          nb::arg("dilation") = 1,
          "(silu of the causal depthwise convolution of x [T, C] with weight [C, taps], the state after it); state "
          "[(taps - 1) * dilation, C], oldest row first.");
  ops.def("gated_delta_rule", &gated_delta_rule, nb::arg("qkv"), nb::arg("b"), nb::arg("a"), nb::arg("a_log"),
          nb::arg("dt_bias"), nb::arg("state"), nb::kw_only(), nb::arg("chunked"),
          "(out [T, Nv, Dv], the state after it) of qkv [T, 2 Nk Dk + Nv Dv], b and a [T, Nv], a_log and dt_bias [Nv], "
          "state float32 [Nv, Dk, Dv].");
  ops.def("rope_frequencies", &rope_frequencies, nb::arg("theta"), nb::arg("rotary"),
          "float32 [rotary / 2]: 1 / theta^(2 i / rotary).");
  ops.def("partial_rope", &partial_rope, nb::arg("x"), nb::arg("positions"), nb::arg("frequencies"),
          "x [T, heads, D] with the first 2 * len(frequencies) elements of each head rotated.");
  ops.def("ple_gate", &ple_gate, nb::arg("key_normed"), nb::arg("query_normed"), nb::arg("value"),
          "[rows, C * H]: value [rows, H] times the gate of each stream.");
  ops.def("ple_add", &ple_add, nb::arg("x"), nb::arg("gated"), nb::arg("conv"), "x + (gated + conv).");
}

}  // namespace quern::python
