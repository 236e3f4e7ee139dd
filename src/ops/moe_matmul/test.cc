// SPDX-License-Identifier: Apache-2.0
// The mixture against the formula of its contract, computed token by token, and what its bits may depend on. The
// products' kernels are tested in ops/linear.
// tests/oracle compares with transformers live.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "ops/activation.h"
#include "ops/element.h"
#include "ops/kernel_list.h"
#include "ops/moe_matmul/kernels.h"
#include "ops/moe_matmul/moe_matmul.h"
#include "tests/support/allocation_count.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {

std::span<const VariantInfo> linear_variants();

namespace {

using support::Machine;
using support::Random;

size_t bytes_of(DType type, int64_t elements) { return *storage_bytes(type, elements); }

// Normal numbers, of which bfloat16 keeps its upper half.
void fill(Random& random, DType type, void* out, int64_t elements, float deviation) {
  with_element(type, [&](auto element) {
    for (int64_t i = 0; i < elements; i++) decltype(element)::store(out, i, random.normal() * deviation);
  });
}

// A mixture with its memory.
struct Mixture {
  Mixture(MoeMatmulParams params, int32_t experts, uint64_t seed) : p(params) {
    Random random(seed);
    const auto matrix = [&](int64_t rows, int64_t depth) {
      auto& m = storage.emplace_back(bytes_of(p.type, rows * depth));
      fill(random, p.type, m.data(), rows * depth, 1 / std::sqrt(static_cast<float>(depth)));
      return m.data();
    };
    for (int32_t e = 0; e < experts; e++) {
      const auto* gate_up = matrix(2 * p.width, p.hidden);
      weights.push_back({gate_up, element_at(p.type, gate_up, p.width * p.hidden), matrix(p.hidden, p.width)});
    }
    shared = {matrix(p.shared_width, p.hidden), matrix(p.shared_width, p.hidden), matrix(p.hidden, p.shared_width)};
    shared_gate = matrix(1, p.hidden);
    x.resize(bytes_of(p.type, p.tokens * p.hidden));
    fill(random, p.type, x.data(), p.tokens * p.hidden, 1);
    out.resize(x.size());
    for (int64_t i = 0; i < p.tokens * p.chosen; i++) {
      chosen.push_back(static_cast<int32_t>(random.below(experts)));
      float w = random.uniform(0.01f, 0.5f);
      with_element(p.type, [&](auto element) { w = decltype(element)::round(w); });
      chosen_weights.push_back(w);
    }
  }

  MoeMatmulArgs args() {
    return {{x.data(), p.hidden}, weights, shared, shared_gate, chosen, chosen_weights, {out.data(), p.hidden}};
  }
  Result<void> run(int threads = 1, cpu::Features features = cpu::detect_features()) {
    Machine machine(threads);
    machine.context.features = features;
    return moe_matmul(machine.context, p, args(), "moe");
  }

  MoeMatmulParams p;
  std::vector<std::vector<uint8_t>> storage;
  std::vector<ExpertWeights> weights;
  ExpertWeights shared;
  const void* shared_gate = nullptr;
  std::vector<uint8_t> x, out;
  std::vector<int32_t> chosen;
  std::vector<float> chosen_weights;
};

template <class E>
std::vector<float> values(const std::vector<uint8_t>& bytes, size_t count) {
  std::vector<float> v;
  for (size_t i = 0; i < count; i++) v.push_back(E::load(bytes.data(), static_cast<int64_t>(i)));
  return v;
}

// What the formula gives.
template <class E>
std::vector<float> by_formula(Mixture& m) {
  std::vector<uint8_t> out(m.out.size());
  MoeMatmulArgs args = m.args();
  args.out.data = out.data();
  moe_matmul_reference(m.p, args);
  return values<E>(out, static_cast<size_t>(m.p.tokens * m.p.hidden));
}

const MoeMatmulParams kShapes[] = {
    {DType::f32, 1, 24, 8, 8, 2},   {DType::f32, 7, 40, 33, 50, 3},   {DType::f32, 70, 33, 20, 40, 4},
    {DType::bf16, 1, 24, 8, 8, 2},  {DType::bf16, 7, 40, 33, 50, 3},  {DType::bf16, 70, 33, 20, 40, 4},
    {DType::bf16, 3, 64, 65, 1, 1}, {DType::bf16, 40, 100, 3, 90, 6},
};

TEST(MoeMatmul, TheReferenceIsTheFormulaBitForBit) {
  for (const auto& p : kShapes) {
    Mixture m(p, 5, 3);
    ASSERT_TRUE(m.run(2, {}).ok());
    with_element(p.type, [&](auto element) {
      using E = decltype(element);
      EXPECT_EQ(values<E>(m.out, static_cast<size_t>(p.tokens * p.hidden)), by_formula<E>(m))
          << p.tokens << " tokens of " << dtype_name(p.type);
    });
  }
}

TEST(MoeMatmul, SharedExpertMayBeWiderThanTheOthers) {
  Mixture m({DType::f32, 9, 24, 3, 200, 2}, 5, 4);
  ASSERT_TRUE(m.run(2, {}).ok());
  EXPECT_EQ(values<FloatElement>(m.out, 9 * 24), by_formula<FloatElement>(m));
}

TEST(MoeMatmul, EveryInstructionSetIsTheFormulaWithinRounding) {
  std::set<cpu::Isa> isas;
  for (const VariantInfo& v : linear_variants()) isas.insert(v.isa);
  isas.erase(cpu::Isa::scalar);
  int compared = 0;
  for (const cpu::Isa isa : isas) {
    const auto features = cpu::cap_features(cpu::detect_features(), cpu::isa_name(isa));
    if (!features.ok()) continue;
    compared++;
    for (const auto& p : kShapes) {
      Mixture m(p, 5, 3);
      ASSERT_TRUE(m.run(2, *features).ok());
      with_element(p.type, [&](auto element) {
        using E = decltype(element);
        const auto wanted = by_formula<E>(m);
        const auto seen = values<E>(m.out, wanted.size());
        float largest = 0;
        for (const float w : wanted) largest = std::max(largest, std::fabs(w));
        // Float: sums of depth 100 at most, twice. Bfloat16: an addend may round to its other neighbour.
        const float step = p.type == DType::f32 ? 1e-6f : 0x1p-7f;
        for (size_t i = 0; i < wanted.size(); i++)
          ASSERT_NEAR(seen[i], wanted[i], step * largest) << cpu::isa_name(isa) << " " << i;
      });
    }
  }
  if (compared == 0) GTEST_SKIP() << "this processor has no instruction set with a variant";
}

TEST(MoeMatmul, NumbersByHandWithAGatedSharedExpert) {
  // Two experts on two elements with one row each. silu(0) = 0, silu(log 3) = log(3) * 3/4.
  const float log3 = std::log(3.0f);
  const std::vector<float> gate0{log3, 0}, up0{2, 0}, down0{1, 10};
  const std::vector<float> gate1{0, log3}, up1{0, 4}, down1{-1, 100};
  const std::vector<float> shared_gate_up{log3, 0}, shared_down{1000, 0}, gate{log3, -log3};
  const std::vector<ExpertWeights> experts{{gate0.data(), up0.data(), down0.data()},
                                           {gate1.data(), up1.data(), down1.data()}};
  const ExpertWeights shared{shared_gate_up.data(), shared_gate_up.data(), shared_down.data()};
  const std::vector<float> x{1, 0};
  const std::vector<int32_t> chosen{1, 0};
  const std::vector<float> weights{0.25f, 0.5f};
  std::vector<float> out(2);
  Machine machine;
  ASSERT_TRUE(moe_matmul(machine.context, {DType::f32, 1, 2, 1, 1, 2},
                         {{x.data(), 2}, experts, shared, gate.data(), chosen, weights, {out.data(), 2}}, "moe")
                  .ok());
  const float a0 = log3 * 0.75f * 2;
  const float sh = log3 * 0.75f * log3 * 1000;
  EXPECT_NEAR(out[0], a0 * 0.5f + 0.75f * sh, 1e-3);
  EXPECT_NEAR(out[1], a0 * 10 * 0.5f, 1e-5);
}

// One element; expert e gives down[e] times the same number.
float combined(const std::vector<float>& down, const std::vector<int32_t>& chosen) {
  const float one = 1, large = 88;  // silu(88) = 88 in float32
  std::vector<ExpertWeights> experts;
  for (const float& d : down) experts.push_back({&large, &one, &d});
  const float zero = 0;
  const std::vector<float> weights(chosen.size(), 1 / 88.0f);
  float out = -1;
  Machine machine(2);
  EXPECT_TRUE(moe_matmul(machine.context, {DType::f32, 1, 1, 1, 1, static_cast<int32_t>(chosen.size())},
                         {{&one, 1}, experts, {&zero, &zero, &zero}, &zero, chosen, weights, {&out, 1}}, "moe")
                  .ok());
  return out;
}

TEST(MoeMatmul, TermsAreAddedInTheOrderOfTheRouter) {
  const std::vector<float> down{1e9f, 1, -1e9f};
  EXPECT_EQ(combined(down, {0, 1, 2}), 0);
  EXPECT_NEAR(combined(down, {0, 2, 1}), 1, 1e-6);
  EXPECT_NEAR(combined(down, {2, 0, 1}), 1, 1e-6);
}

TEST(MoeMatmul, ATokensBitsDependNeitherOnTheOthersNorOnThreads) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Mixture m({type, 50, 72, 40, 24, 3}, 4, 5);
    ASSERT_TRUE(m.run(1).ok());
    const auto whole = m.out;
    ASSERT_TRUE(m.run(4).ok());
    EXPECT_EQ(m.out, whole) << "4 threads";
    const size_t row = bytes_of(type, m.p.hidden);
    for (size_t t = 0; t < 50; t++) {
      Mixture one = m;
      one.p.tokens = 1;
      one.x.assign(m.x.begin() + static_cast<std::ptrdiff_t>(t * row),
                   m.x.begin() + static_cast<std::ptrdiff_t>((t + 1) * row));
      one.chosen.assign(m.chosen.begin() + static_cast<std::ptrdiff_t>(3 * t),
                        m.chosen.begin() + static_cast<std::ptrdiff_t>(3 * t + 3));
      one.chosen_weights.assign(m.chosen_weights.begin() + static_cast<std::ptrdiff_t>(3 * t),
                                m.chosen_weights.begin() + static_cast<std::ptrdiff_t>(3 * t + 3));
      one.out.resize(row);
      ASSERT_TRUE(one.run().ok());
      ASSERT_EQ(std::memcmp(one.out.data(), whole.data() + t * row, row), 0) << t;
    }
  }
}

TEST(MoeMatmul, ExpertsOfNoTokenAreNotRead) {
  Mixture m({DType::bf16, 6, 16, 8, 8, 2}, 5, 6);
  for (auto& e : m.chosen) e = e % 2 * 3 + 1;  // 1 and 4
  ASSERT_TRUE(m.run().ok());
  const auto wanted = m.out;
  m.weights[0] = m.weights[2] = m.weights[3] = {};
  ASSERT_TRUE(m.run(2).ok());
  EXPECT_EQ(m.out, wanted);
}

TEST(MoeMatmul, RowsAtADistance) {
  Mixture m({DType::bf16, 9, 20, 8, 12, 2}, 3, 7);
  ASSERT_TRUE(m.run().ok());
  constexpr int64_t kIn = 27, kOut = 31;
  std::vector<uint16_t> x(9 * kIn), out(9 * kOut, 0x1234);
  for (size_t t = 0; t < 9; t++) std::memcpy(x.data() + t * kIn, m.x.data() + t * 40, 40);
  MoeMatmulArgs args = m.args();
  args.x = {x.data(), kIn};
  args.out = {out.data(), kOut};
  Machine machine(2);
  ASSERT_TRUE(moe_matmul(machine.context, m.p, args, "moe").ok());
  for (size_t t = 0; t < 9; t++) {
    EXPECT_EQ(std::memcmp(out.data() + t * kOut, m.out.data() + t * 40, 40), 0) << t;
    EXPECT_TRUE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(t * kOut + 20),
                            out.begin() + static_cast<std::ptrdiff_t>((t + 1) * kOut),
                            [](uint16_t v) { return v == 0x1234; }));
  }
}

TEST(MoeMatmul, ANaNStaysInItsToken) {
  Mixture m({DType::f32, 5, 16, 8, 8, 2}, 3, 8);
  ASSERT_TRUE(m.run().ok());
  const auto before = values<FloatElement>(m.out, 80);
  FloatElement::store(m.x.data(), 2 * 16 + 3, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(m.run().ok());
  const auto after = values<FloatElement>(m.out, 80);
  for (size_t i = 0; i < 80; i++) {
    if (i / 16 == 2) {
      EXPECT_TRUE(std::isnan(after[i])) << i;
    } else {
      EXPECT_EQ(after[i], before[i]) << i;
    }
  }
}

TEST(MoeMatmul, AllocatesNothingTheSecondTimeAndCountsWeights) {
  Mixture m({DType::bf16, 20, 48, 24, 40, 3}, 6, 9);
  for (auto& e : m.chosen) e = e % 4;
  const std::vector<int32_t> all{0, 1, 2, 3};
  std::copy(all.begin(), all.end(), m.chosen.begin());
  Machine machine(2);
  const auto args = m.args();
  ASSERT_TRUE(moe_matmul(machine.context, m.p, args, "moe").ok());
  const uint64_t read = machine.counters.weight_bytes_read;
  EXPECT_EQ(read, 2u * (3 * 48 * (4 * 24 + 40) + 48));
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(moe_matmul(machine.context, m.p, args, "moe").ok()); }), 0);
}

TEST(MoeMatmul, NoTokens) {
  Mixture m({DType::bf16, 0, 16, 8, 8, 2}, 3, 10);
  EXPECT_TRUE(m.run().ok());
}

TEST(MoeMatmul, RefusesBeforeAnythingIsWritten) {
  const auto refused = [&](Errc code, auto change) {
    Mixture m({DType::f32, 4, 16, 8, 12, 2}, 3, 11);
    MoeMatmulArgs args = m.args();
    change(m, args);
    std::fill(m.out.begin(), m.out.end(), uint8_t{7});
    Machine machine;
    const auto done = moe_matmul(machine.context, m.p, args, "moe");
    return !done.ok() && done.error().code == code && done.error().where == "moe" &&
           std::all_of(m.out.begin(), m.out.end(), [](uint8_t b) { return b == 7; });
  };
  EXPECT_FALSE(refused(Errc::bad_request, [](Mixture&, MoeMatmulArgs&) {}));
  EXPECT_TRUE(refused(Errc::unsupported, [](Mixture& m, MoeMatmulArgs&) { m.p.type = DType::f16; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.p.hidden = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.p.width = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.p.shared_width = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.p.tokens = -1; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.p.tokens = 3; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.p.chosen = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture&, MoeMatmulArgs& a) { a.x.stride = 15; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture&, MoeMatmulArgs& a) { a.out.stride = 15; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.chosen[7] = 3; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture& m, MoeMatmulArgs&) { m.chosen[7] = -1; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Mixture&, MoeMatmulArgs& a) { a.experts = a.experts.first(1); }));
  EXPECT_TRUE(
      refused(Errc::bad_request, [](Mixture&, MoeMatmulArgs& a) { a.chosen_weights = a.chosen_weights.first(7); }));
}

}  // namespace
}  // namespace quern::ops
