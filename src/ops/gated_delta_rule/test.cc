// SPDX-License-Identifier: Apache-2.0
// gated_delta_rule: one token by hand, every variant against the reference of its form, both forms against each other,
// splits into calls, threads and refusals. The comparison with the reference library is
// tests/oracle/test_qwen4_mixer.py.
#include "ops/gated_delta_rule/gated_delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/activation.h"
#include "ops/gated_delta_rule/kernels.h"
#include "tests/support/allocation_count.h"
#include "tests/support/elements.h"
#include "tests/support/one_node.h"

namespace quern::ops {

#define QUERN_KERNEL(isa, symbol, form) QUERN_ISA_LINE_##isa(void symbol(const DeltaKernelArgs& a) noexcept;)
#include "ops/gated_delta_rule/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::Elements;
using support::GuardedArray;
using support::kElementTypes;
using support::Machine;
using support::Random;

struct Line {
  cpu::Isa isa;
  DeltaForm form;
  void (*run)(const DeltaKernelArgs&) noexcept;
  std::string_view symbol;
};
const Line kLines[] = {
#define QUERN_KERNEL(isa, symbol, form) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DeltaForm::form, &symbol, #symbol}, )
#include "ops/gated_delta_rule/kernels.inc"
#undef QUERN_KERNEL
};

float largest(std::span<const float> values) {
  float most = 0;
  for (const float v : values) most = std::max(most, std::fabs(v));
  return most;
}

void expect_close(std::span<const float> seen, std::span<const float> wanted, float share, const char* what) {
  ASSERT_EQ(seen.size(), wanted.size());
  const float bound = share * largest(wanted);
  for (size_t i = 0; i < seen.size(); i++) ASSERT_NEAR(seen[i], wanted[i], bound) << what << " at " << i;
}

// One head with random gates and unit keys and queries, in memory that ends at unreadable pages.
struct Head {
  Head(int64_t tokens_, int64_t keys_, int64_t values_)
      : tokens(tokens_),
        keys(keys_),
        values(values_),
        q(size(tokens * keys)),
        k(size(tokens * keys)),
        v(size(tokens * values)),
        decay(size(tokens)),
        kept(size(tokens)),
        beta(size(tokens)),
        state(size(keys * values)),
        o(size(tokens * values)),
        scratch(size(kDeltaChunk * (values + 2 * kDeltaChunk + 1))) {
    Random random(static_cast<uint64_t>(tokens * 1000 + keys));
    for (const auto* a : {&q, &k, &v}) random.fill_normal(a->span());
    for (int64_t t = 0; t < tokens; t++) {
      make_unit(q.data() + t * keys);
      make_unit(k.data() + t * keys);
    }
    random.fill_uniform(decay.span(), -2, 0);
    std::transform(decay.begin(), decay.end(), kept.begin(), [](float x) { return std::exp(x); });
    random.fill_uniform(beta.span(), 0, 1);
    random.fill_normal(state.span());
  }
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  void make_unit(float* x) const {
    float squares = 0;
    for (int64_t i = 0; i < keys; i++) squares += x[i] * x[i];
    for (int64_t i = 0; i < keys; i++) x[i] /= std::sqrt(squares);
  }
  DeltaKernelArgs args() const {
    return {q.data(),     k.data(), v.data(),       decay.data(), kept.data(), beta.data(),
            state.data(), o.data(), scratch.data(), tokens,       keys,        values};
  }
  int64_t tokens, keys, values;
  GuardedArray<float> q, k, v, decay, kept, beta, state, o, scratch;
};

class DeltaRuleVariant : public testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    if (!cpu::detect_features().has(GetParam().isa))
      GTEST_SKIP() << "this processor lacks " << cpu::isa_name(GetParam().isa);
  }
};

TEST_P(DeltaRuleVariant, AgreesWithTheReferencesOfBothForms) {
  for (const int64_t tokens : {1, 2, 3, 7, 8, 31, 63, 64}) {
    for (const auto& [keys, values] :
         {std::pair<int64_t, int64_t>{1, 1}, {5, 7}, {16, 16}, {17, 15}, {24, 40}, {128, 128}}) {
      const Head seen(tokens, keys, values), recurrent(tokens, keys, values), chunked(tokens, keys, values);
      GetParam().run(seen.args());
      delta_rule_recurrent_reference(recurrent.args());
      delta_rule_chunked_reference(chunked.args());
      for (const auto* wanted : {&recurrent, &chunked}) {
        expect_close(seen.o.span(), wanted->o.span(), 1e-5f, "o");
        expect_close(seen.state.span(), wanted->state.span(), 1e-5f, "state");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, DeltaRuleVariant, testing::ValuesIn(kLines),
                         [](const auto& line) { return std::string(line.param.symbol); });

// A layer's inputs and one state.
struct Layer {
  Layer(DType type_, DeltaForm form, int64_t tokens, std::array<int32_t, 4> sizes)
      : type(type_),
        params{type, form, tokens, sizes[0], sizes[1], sizes[2], sizes[3]},
        width(int64_t{2} * sizes[0] * sizes[2] + int64_t{sizes[1]} * sizes[3]),
        qkv(type, tokens * width),
        b(type, tokens * sizes[1]),
        a(type, tokens * sizes[1]),
        a_log(type, sizes[1]),
        dt_bias(type, sizes[1]),
        state(DType::f32, int64_t{sizes[1]} * sizes[2] * sizes[3]),
        out(type, tokens * sizes[1] * sizes[3]) {
    Random random(7);
    for (const auto* e : {&qkv, &b, &a, &a_log, &dt_bias, &state}) e->fill_normal(random);
  }
  // Tokens [begin, end).
  Result<void> run(Machine& machine, int64_t begin, int64_t end) const {
    GatedDeltaRuleParams piece = params;
    piece.tokens = end - begin;
    const int64_t heads = params.value_heads, out_width = heads * params.value_size;
    const auto at = [&](const Elements& e, int64_t stride) -> void* {
      return element_at(type, e.data(), begin * stride);
    };
    return gated_delta_rule(machine.context, piece,
                            {{at(qkv, width), width},
                             {at(b, heads), heads},
                             {at(a, heads), heads},
                             a_log.data(),
                             dt_bias.data(),
                             static_cast<float*>(state.data()),
                             {at(out, out_width), out_width}},
                            "");
  }
  DType type;
  GatedDeltaRuleParams params;
  int64_t width;
  Elements qkv, b, a, a_log, dt_bias, state, out;
};

// One token, one head of 1 x 1: q = k = x / sqrt(x^2 + 1e-6), which is 1 for a large x.
TEST(GatedDeltaRule, OneTokenByHand) {
  Machine machine;
  for (const DType type : kElementTypes) {
    for (const DeltaForm form : {DeltaForm::recurrent, DeltaForm::chunked}) {
      const Layer layer(type, form, 1, {1, 1, 1, 1});
      layer.qkv.set(0, 1000);
      layer.qkv.set(1, -1000);
      layer.qkv.set(2, 3);
      layer.b.set(0, 0.3f);
      layer.a.set(0, -0.5f);
      layer.a_log.set(0, 0.25f);
      layer.dt_bias.set(0, -1);
      layer.state.set(0, 5);
      ASSERT_TRUE(layer.run(machine, 0, 1).ok());
      const auto beta = static_cast<double>(support::rounded(type, sigmoid(layer.b[0])));
      const double kept = std::exp(-std::exp(0.25) * std::log1p(std::exp(-1.5))) * 5;
      const double wanted = kept - beta * (3 + kept);  // k = -1: S + k * beta * (v - k * S)
      EXPECT_NEAR(layer.state[0], wanted, 1e-5);
      EXPECT_NEAR(layer.out[0], wanted, type == DType::bf16 ? 0x1p-7 : 1e-5);
    }
  }
}

// Keys and queries of 2 elements whose squares sum to 1e-6: the factor is sqrt(1/2) with the epsilon on the sum, 0.82
// on the mean, 0.99 outside of the root.
TEST(GatedDeltaRule, EpsilonOfTheNormIsAddedToTheSumOfSquares) {
  Machine machine;
  for (const DeltaForm form : {DeltaForm::recurrent, DeltaForm::chunked}) {
    const Layer layer(DType::f32, form, 1, {1, 1, 2, 1});
    for (int64_t i = 0; i < 4; i++) layer.qkv.set(i, i % 2 == 0 ? 1e-3f : 0);
    layer.qkv.set(4, 3);
    layer.b.set(0, 100);  // beta = 1
    for (const int64_t i : {0, 1}) layer.state.set(i, 0);
    ASSERT_TRUE(layer.run(machine, 0, 1).ok());
    EXPECT_NEAR(layer.state[0], 3 * std::sqrt(0.5), 1e-5);
    EXPECT_NEAR(layer.out[0], 1.5 / std::sqrt(2), 1e-5);  // the query is divided by the root of its length, too
  }
}

// Bfloat16 values that lie at most so many of them apart.
void expect_units_apart(const std::vector<float>& found, const std::vector<float>& expected, float units) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); i++) {
    const float largest = std::max(std::fabs(found[i]), std::fabs(expected[i]));
    const float unit = largest == 0 ? 0 : std::ldexp(1.0f, std::ilogb(largest) - 7);
    EXPECT_LE(std::fabs(found[i] - expected[i]), units * unit) << i << ": " << found[i] << ", " << expected[i];
  }
}

TEST(GatedDeltaRule, ChunkedAndRecurrentAgreeAndMayFollowEachOther) {
  Machine machine(2);
  const std::array<int32_t, 4> sizes{2, 6, 16, 24};
  for (const DType type : kElementTypes) {
    const Layer recurrent(type, DeltaForm::recurrent, 150, sizes), chunked(type, DeltaForm::chunked, 150, sizes);
    Layer mixed(type, DeltaForm::chunked, 150, sizes);
    ASSERT_TRUE(recurrent.run(machine, 0, 150).ok());
    ASSERT_TRUE(chunked.run(machine, 0, 150).ok());
    ASSERT_TRUE(mixed.run(machine, 0, 70).ok());
    mixed.params.form = DeltaForm::recurrent;
    ASSERT_TRUE(mixed.run(machine, 70, 150).ok());
    for (const auto* l : {&chunked, static_cast<const Layer*>(&mixed)}) {
      expect_close(l->state.values(), recurrent.state.values(), 1e-5f, "state");
      if (type == DType::f32) {
        expect_close(l->out.values(), recurrent.out.values(), 1e-5f, "out");
      } else {
        expect_units_apart(l->out.values(), recurrent.out.values(), 1);
      }
    }
  }
}

TEST(GatedDeltaRule, SplitsAndThreadsDoNotChangeTheBitsAndNothingIsAllocated) {
  for (const DType type : kElementTypes) {
    for (const DeltaForm form : {DeltaForm::recurrent, DeltaForm::chunked}) {
      const Layer whole(type, form, 200, {2, 4, 16, 16}), pieces(type, form, 200, {2, 4, 16, 16});
      Machine single(1), several(4);
      ASSERT_TRUE(whole.run(single, 0, 200).ok());
      const bool any = form == DeltaForm::recurrent;
      const std::vector<int64_t> ends =
          any ? std::vector<int64_t>{1, 3, 70, 71, 200} : std::vector<int64_t>{64, 192, 200};
      ASSERT_TRUE(pieces.run(several, 0, ends[0]).ok());
      EXPECT_EQ(support::allocations_in([&] {
                  for (size_t i = 1; i < ends.size(); i++) {
                    EXPECT_TRUE(pieces.run(several, ends[i - 1], ends[i]).ok());
                  }
                }),
                0);
      EXPECT_EQ(whole.out.values(), pieces.out.values());
      EXPECT_EQ(whole.state.values(), pieces.state.values());
    }
  }
}

// A head of values reads the key head of its group, and its own gates and state.
TEST(GatedDeltaRule, ValueHeadsShareKeyHeadsInGroups) {
  Machine machine;
  const Layer all(DType::f32, DeltaForm::recurrent, 5, {2, 6, 8, 4});
  const auto begin = all.state.values();
  ASSERT_TRUE(all.run(machine, 0, 5).ok());
  for (int64_t h = 0; h < 6; h++) {
    const Layer one(DType::f32, DeltaForm::recurrent, 5, {1, 1, 8, 4});
    for (int64_t t = 0; t < 5; t++) {
      for (int64_t i = 0; i < 8; i++) {
        one.qkv.set(t * one.width + i, all.qkv[t * all.width + h / 3 * 8 + i]);
        one.qkv.set(t * one.width + 8 + i, all.qkv[t * all.width + 16 + h / 3 * 8 + i]);
      }
      for (int64_t i = 0; i < 4; i++) one.qkv.set(t * one.width + 16 + i, all.qkv[t * all.width + 32 + h * 4 + i]);
      one.a.set(t, all.a[t * 6 + h]);
      one.b.set(t, all.b[t * 6 + h]);
    }
    one.a_log.set(0, all.a_log[h]);
    one.dt_bias.set(0, all.dt_bias[h]);
    for (int64_t i = 0; i < 32; i++) one.state.set(i, begin[static_cast<size_t>(h * 32 + i)]);
    ASSERT_TRUE(one.run(machine, 0, 5).ok());
    for (int64_t i = 0; i < 32; i++) ASSERT_EQ(one.state[i], all.state[h * 32 + i]) << h;
    for (int64_t t = 0; t < 5; t++) {
      for (int64_t i = 0; i < 4; i++) ASSERT_EQ(one.out[t * 4 + i], all.out[t * 24 + h * 4 + i]) << h;
    }
  }
}

TEST(GatedDeltaRule, RefusesWhatTheContractExcludes) {
  Machine machine;
  const auto message = [&](const GatedDeltaRuleParams& params) {
    const auto done = gated_delta_rule(machine.context, params, {}, "here");
    return done.ok() ? std::string() : done.error().message();
  };
  const DeltaForm form = DeltaForm::chunked;
  EXPECT_EQ(message({DType::f16, form, 1, 1, 1, 1, 1}),
            "here: elements of type float16 are not supported (float32 or bfloat16)");
  EXPECT_EQ(message({DType::f32, form, 1, 2, 3, 1, 1}),
            "here: 3 value heads over 2 key heads are not allowed (a multiple of at least one)");
  EXPECT_EQ(message({DType::f32, form, 1, 0, 3, 1, 1}),
            "here: 3 value heads over 0 key heads are not allowed (a multiple of at least one)");
  EXPECT_EQ(message({DType::f32, form, 1, 1, 1, 0, 5000}),
            "here: keys of 0 and values of 5000 elements are not allowed (1 to 4096)");
  EXPECT_EQ(message({DType::f32, form, 0, 1, 1, 1, 1}), "");
}

}  // namespace
}  // namespace quern::ops
