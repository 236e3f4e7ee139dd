// SPDX-License-Identifier: Apache-2.0
// Every kernel against the reference, the choice against the formula of the contract, its tie rule, and what state and
// choice may depend on. tests/oracle compares with transformers live.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/block_index/block_index.h"
#include "ops/block_index/kernels.h"
#include "ops/element.h"
#include "ops/partial_rope/partial_rope.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(BlockScoreFunction symbol;)
#include "ops/block_index/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::GuardedArray;
using support::Machine;
using support::Random;

const TypedVariant<BlockScoreFunction> kLines[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/block_index/kernels.inc"
#undef QUERN_KERNEL
};

size_t bytes_of(DType type, int64_t elements) { return *storage_bytes(type, elements); }

class BlockScoreVariant : public testing::TestWithParam<TypedVariant<BlockScoreFunction>> {
 protected:
  void SetUp() override {
    if (!cpu::detect_features().has(GetParam().isa))
      GTEST_SKIP() << "this processor lacks " << cpu::isa_name(GetParam().isa);
  }
};

TEST_P(BlockScoreVariant, AgreesWithTheReferenceForEveryShape) {
  const DType type = GetParam().type;
  Random random(1);
  for (const int32_t d : {8, 16, 24, 32, 40, 64, 120, 128}) {
    for (const int32_t heads : {1, 2, 3, 4, 5}) {
      for (const int64_t blocks : {1, 2, 3, 4, 5, 7, 8, 9, 40}) {
        const GuardedArray<uint8_t> keys(bytes_of(type, blocks * d));
        with_element(type, [&](auto element) {
          for (int64_t i = 0; i < blocks * d; i++) decltype(element)::store(keys.data(), i, random.normal());
        });
        const GuardedArray<float> q(static_cast<size_t>(heads * d)), scores(static_cast<size_t>(blocks));
        random.fill_normal(q.span());
        std::vector<float> wanted(static_cast<size_t>(blocks)), alone(static_cast<size_t>(blocks));
        BlockScoreArgs args{q.data(), keys.data(), blocks, heads, d, 3, scores.data()};
        GetParam().run(args);
        args.scores = wanted.data();
        (type == DType::f32 ? block_score_f32_reference : block_score_bf16_reference)(args);
        for (int64_t b = 0; b < blocks; b++) {
          const auto at = static_cast<size_t>(b);
          ASSERT_NEAR(scores[at], wanted[at], 1e-5) << "d " << d << " heads " << heads << " block " << b;
          ASSERT_FALSE(std::signbit(scores[at]));
          GetParam().run({q.data(), element_at(type, static_cast<const void*>(keys.data()), b * d), 1, heads, d, 3,
                          alone.data() + b});
          ASSERT_EQ(alone[at], scores[at]) << "alone and with others";
        }
      }
    }
  }
}

TEST_P(BlockScoreVariant, NegativeAndUndefinedProductsCountAsZero) {
  const DType type = GetParam().type;
  constexpr int32_t kD = 16;
  std::vector<uint8_t> keys(bytes_of(type, 3 * kD));
  with_element(type, [&](auto element) {
    for (int64_t i = 0; i < kD; i++) {
      decltype(element)::store(keys.data(), i, 1);
      decltype(element)::store(keys.data(), kD + i, -1);
      decltype(element)::store(keys.data(), 2 * kD + i, std::numeric_limits<float>::quiet_NaN());
    }
  });
  std::vector<float> q(2 * kD, 0.5f), scores(3);
  std::fill(q.begin() + kD, q.end(), -0.25f);
  GetParam().run({q.data(), keys.data(), 3, 2, kD, 2, scores.data()});
  EXPECT_EQ(scores, (std::vector<float>{4, 2, 0}));
}

INSTANTIATE_TEST_SUITE_P(Kernels, BlockScoreVariant, testing::ValuesIn(kLines),
                         [](const auto& line) { return std::string(line.param.symbol); });

// A timeline: the projections of all its tokens, rotation tables, the state and the choices.
struct Timeline {
  Timeline(BlockIndexParams params, int32_t rotary, uint64_t seed) : p(params) {
    p.epsilon = 1e-6f;
    Random random(seed);
    const int64_t width = (p.heads + 1) * p.head_size;
    z = rows(p.tokens * width, [&] { return random.normal(); });
    q_weight = rows(p.head_size, [&] { return 0.3f * random.normal(); });
    k_weight = rows(p.head_size, [&] { return 0.3f * random.normal(); });
    frequencies.resize(static_cast<size_t>(rotary / 2));
    rope_frequencies(1e4, frequencies);
    clear();
  }
  template <class F>
  std::vector<uint8_t> rows(int64_t elements, F value) const {
    std::vector<uint8_t> bytes(bytes_of(p.type, elements));
    with_element(p.type, [&](auto element) {
      for (int64_t i = 0; i < elements; i++) decltype(element)::store(bytes.data(), i, value());
    });
    return bytes;
  }
  // Not-a-number everywhere.
  void clear() {
    keys.assign(bytes_of(p.type, p.tokens / p.ratio * p.head_size), 0xff);
    open.assign(bytes_of(p.type, (p.ratio - 1) * p.head_size), 0xff);
    blocks.assign(static_cast<size_t>(p.tokens * p.budget), -9);
    counts.assign(static_cast<size_t>(p.tokens), -9);
  }
  BlockIndexArgs args(int64_t first) {
    BlockIndexArgs a;
    const int64_t width = (p.heads + 1) * p.head_size;
    a.z = {element_at(p.type, static_cast<const void*>(z.data()), first * width), width};
    a.q_weight = q_weight.data();
    a.k_weight = k_weight.data();
    a.frequencies = frequencies;
    a.state = {keys.data(), p.tokens / p.ratio, open.data()};
    a.selection = {blocks.data() + first * p.budget, p.budget, counts.data() + first};
    return a;
  }
  Result<void> run(Machine& machine, int64_t first, int64_t count) {
    BlockIndexParams piece = p;
    piece.past = first;
    piece.tokens = count;
    return block_index(machine.context, piece, args(first), "indexer");
  }
  void run_whole(int threads = 2) {
    Machine machine(threads);
    const auto done = run(machine, 0, p.tokens);
    ASSERT_TRUE(done.ok()) << done.error().message();
  }
  std::vector<int32_t> chosen(int64_t token) const {
    const auto begin = blocks.begin() + static_cast<std::ptrdiff_t>(token * p.budget);
    return {begin, begin + counts[static_cast<size_t>(token)]};
  }
  void set_z(int64_t token, int64_t head, int64_t i, float value) {
    with_element(p.type, [&](auto element) {
      decltype(element)::store(z.data(), (token * (p.heads + 1) + head) * p.head_size + i, value);
    });
  }

  BlockIndexParams p;
  std::vector<uint8_t> z, q_weight, k_weight, keys, open;
  std::vector<float> frequencies;
  std::vector<int32_t> blocks, counts;
};

BlockIndexParams params(DType type, int32_t heads, int32_t head_size, int32_t ratio, int32_t budget, int64_t tokens) {
  return {type, heads, head_size, ratio, budget, tokens, 0, 1e-6f};
}

// Norm and rotation in float64.
std::vector<double> norm_and_rotate(const Timeline& m, std::vector<double> x, const std::vector<uint8_t>& weight,
                                    int64_t position) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  for (size_t i = 0; i < x.size(); i++) {
    x[i] *= factor * (1 + static_cast<double>(FloatElement::load(weight.data(), static_cast<int64_t>(i))));
  }
  const size_t half = m.frequencies.size();
  for (size_t i = 0; i < half; i++) {
    const auto angle = static_cast<double>(static_cast<float>(position) * m.frequencies[i]);
    const double c = std::cos(angle), s = std::sin(angle);
    const double first = x[i], second = x[i + half];
    x[i] = first * c - second * s;
    x[i + half] = second * c + first * s;
  }
  return x;
}

std::vector<double> z_row(const Timeline& m, int64_t token, int64_t head) {
  std::vector<double> row;
  for (int64_t i = 0; i < m.p.head_size; i++) {
    row.push_back(FloatElement::load(m.z.data(), (token * (m.p.heads + 1) + head) * m.p.head_size + i));
  }
  return row;
}

std::vector<double> key_by_formula(const Timeline& m, int64_t block) {
  std::vector<double> sum(static_cast<size_t>(m.p.head_size));
  for (int64_t j = 0; j < m.p.ratio; j++) {
    const auto row = z_row(m, block * m.p.ratio + j, m.p.heads);
    for (size_t i = 0; i < sum.size(); i++) sum[i] += row[i] / m.p.ratio;
  }
  return norm_and_rotate(m, sum, m.k_weight, block * m.p.ratio);
}

std::vector<double> scores_by_formula(const Timeline& m, int64_t token) {
  std::vector<double> scores;
  for (int64_t b = 0; b < (token + 1) / m.p.ratio; b++) {
    const auto key = key_by_formula(m, b);
    double score = 0;
    for (int64_t h = 0; h < m.p.heads; h++) {
      const auto q = norm_and_rotate(m, z_row(m, token, h), m.q_weight, token);
      score += std::max(0.0, std::inner_product(q.begin(), q.end(), key.begin(), 0.0));
    }
    scores.push_back(score / std::sqrt(m.p.head_size));
  }
  return scores;
}

struct FormulaCase {
  BlockIndexParams p;
  int32_t rotary;
};
const FormulaCase kFormulaCases[] = {{params(DType::f32, 4, 16, 4, 4, 60), 8},
                                     {params(DType::f32, 2, 24, 1, 5, 30), 24},
                                     {params(DType::f32, 3, 8, 3, 2, 40), 0}};

TEST(BlockIndex, KeysArePooledThenNormedThenTurnedToTheFirstToken) {
  for (const auto& [p, rotary] : kFormulaCases) {
    Timeline m(p, rotary, 1);
    m.run_whole();
    for (int64_t b = 0; b < p.tokens / p.ratio; b++) {
      const auto key = key_by_formula(m, b);
      for (int64_t i = 0; i < p.head_size; i++) {
        ASSERT_NEAR(FloatElement::load(m.keys.data(), b * p.head_size + i), key[static_cast<size_t>(i)], 1e-5)
            << "block " << b;
      }
    }
  }
}

TEST(BlockIndex, OnlyCompleteBlocksThatTheTokenSeesAreRanked) {
  for (const auto& [p, rotary] : kFormulaCases) {
    Timeline m(p, rotary, 1);
    m.run_whole();
    int compared = 0;
    for (int64_t t = 0; t < p.tokens; t++) {
      const auto scores = scores_by_formula(m, t);
      if (static_cast<int64_t>(scores.size()) <= p.budget) {
        ASSERT_EQ(m.counts[static_cast<size_t>(t)], kAllBlocks) << t;
        continue;
      }
      std::vector<int32_t> order(scores.size());
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
      });
      const auto cut = static_cast<size_t>(p.budget);
      const double last = scores[static_cast<size_t>(order[cut - 1])], next = scores[static_cast<size_t>(order[cut])];
      if (last - next < 1e-5 && last != next) continue;  // rounding decides
      order.resize(cut);
      std::sort(order.begin(), order.end());
      ASSERT_EQ(m.chosen(t), order) << "token " << t;
      compared++;
    }
    EXPECT_GT(compared, 15);
  }
}

TEST(BlockIndex, AllBlocksAreChosenUpToTheBudgetOnly) {
  // 2048 tokens in blocks of 4: from 2052 tokens on there is a choice.
  Timeline m(params(DType::bf16, 4, 16, 4, 512, 2060), 8, 2);
  m.run_whole();
  for (int64_t t = 0; t < 2060; t++) {
    ASSERT_EQ(m.counts[static_cast<size_t>(t)], t + 1 <= 2051 ? kAllBlocks : 512) << t;
  }
}

TEST(BlockIndex, OfEqualScoresTheLowerBlocksAreChosen) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Timeline m(params(type, 2, 8, 2, 3, 40), 0, 3);
    for (int64_t t = 0; t < 40; t++) {
      for (int64_t i = 0; i < 8; i++) {
        m.set_z(t, 0, i, 1);
        m.set_z(t, 1, i, 2);
        m.set_z(t, 2, i, -1);  // every score is 0
      }
    }
    // Blocks 5 and 7 score alike and more.
    for (const int64_t t : {10, 11, 14, 15}) {
      for (int64_t i = 0; i < 8; i++) m.set_z(t, 2, i, 1);
    }
    m.q_weight = m.k_weight = m.rows(8, [] { return 0.0f; });
    m.run_whole();
    EXPECT_EQ(m.chosen(9), (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(m.chosen(11), (std::vector<int32_t>{0, 1, 5}));
    EXPECT_EQ(m.chosen(39), (std::vector<int32_t>{0, 5, 7}));
    // Three of four equal ones.
    for (const int64_t t : {4, 5, 30, 31}) {
      for (int64_t i = 0; i < 8; i++) m.set_z(t, 2, i, 1);
    }
    m.run_whole();
    EXPECT_EQ(m.chosen(39), (std::vector<int32_t>{2, 5, 7}));
  }
}

TEST(BlockIndex, ATokensOwnBlockMayLose) {
  Timeline m(params(DType::f32, 1, 8, 2, 1, 6), 0, 4);
  m.q_weight = m.k_weight = m.rows(8, [] { return 0.0f; });
  for (int64_t t = 0; t < 6; t++) {
    for (int64_t i = 0; i < 8; i++) {
      m.set_z(t, 0, i, 1);
      m.set_z(t, 1, i, t == 0 || t == 1 ? 1 : -1);
    }
  }
  m.run_whole();
  EXPECT_EQ(m.chosen(5), std::vector<int32_t>{0});
}

TEST(BlockIndex, PiecesAndThreadsChangeNothing) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int32_t ratio : {1, 4, 5}) {
      Timeline m(params(type, 4, 16, ratio, 6, 203), 8, 5);
      m.run_whole(1);
      const auto keys = m.keys, open = m.open;
      const auto blocks = m.blocks;
      const auto counts = m.counts;
      for (const int64_t step : {1, 2, 3, 7, 64}) {
        m.clear();
        Machine machine(4);
        for (int64_t t = 0; t < m.p.tokens; t += step) {
          ASSERT_TRUE(m.run(machine, t, std::min(step, m.p.tokens - t)).ok());
        }
        EXPECT_TRUE(m.keys == keys) << step << " tokens a call";
        const auto used = static_cast<std::ptrdiff_t>(bytes_of(type, 203 % ratio * 16));
        EXPECT_TRUE(std::equal(m.open.begin(), m.open.begin() + used, open.begin())) << step << " tokens a call";
        EXPECT_EQ(m.blocks, blocks) << step << " tokens a call";
        EXPECT_EQ(m.counts, counts) << step << " tokens a call";
      }
    }
  }
}

// More blocks than one piece of work, and more scores than one batch.
TEST(BlockIndex, LongSequences) {
  Timeline m(params(DType::bf16, 1, 8, 1, 3, 2600), 8, 6);
  m.run_whole(3);
  for (const int64_t t : {1500, 2047, 2048, 2599}) {
    Timeline one = m;
    Machine machine;
    ASSERT_TRUE(one.run(machine, t, 1).ok());
    EXPECT_EQ(one.chosen(t), m.chosen(t)) << t;
  }
}

TEST(BlockIndex, AStateIsItsFirstBlocksAndTheOpenKeys) {
  Timeline m(params(DType::bf16, 2, 16, 4, 3, 50), 8, 7);
  m.run_whole();
  const auto blocks = m.blocks;
  // As it was at 30 tokens: 7 blocks and 2 open keys; the rest is garbage.
  Timeline other(m.p, 8, 7);
  Machine machine;
  ASSERT_TRUE(other.run(machine, 0, 30).ok());
  std::vector<uint8_t> open = other.open;
  m.open = open;
  std::fill(m.keys.begin() + static_cast<std::ptrdiff_t>(bytes_of(DType::bf16, 7 * 16)), m.keys.end(), uint8_t{0xff});
  ASSERT_TRUE(m.run(machine, 30, 20).ok());
  EXPECT_EQ(m.blocks, blocks);
}

TEST(BlockIndex, AllocatesNothingTheSecondTime) {
  Timeline m(params(DType::bf16, 4, 16, 4, 6, 100), 8, 8);
  Machine machine(2);
  ASSERT_TRUE(m.run(machine, 0, 100).ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(m.run(machine, 0, 100).ok()); }), 0);
}

TEST(BlockIndex, RefusesBeforeAnythingIsWritten) {
  const auto refused = [&](Errc code, auto change) {
    Timeline m(params(DType::f32, 2, 8, 4, 2, 20), 4, 9);
    BlockIndexArgs args = m.args(0);
    change(m.p, args);
    Machine machine;
    const auto done = block_index(machine.context, m.p, args, "layer 3");
    return !done.ok() && done.error().code == code && done.error().where == "layer 3" &&
           std::all_of(m.keys.begin(), m.keys.end(), [](uint8_t b) { return b == 0xff; }) &&
           std::all_of(m.open.begin(), m.open.end(), [](uint8_t b) { return b == 0xff; }) &&
           std::all_of(m.counts.begin(), m.counts.end(), [](int32_t c) { return c == -9; });
  };
  using P = BlockIndexParams;
  using A = BlockIndexArgs;
  EXPECT_FALSE(refused(Errc::bad_request, [](P&, A&) {}));
  EXPECT_TRUE(refused(Errc::unsupported, [](P& p, A&) { p.type = DType::f16; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.heads = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.head_size = 12; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.ratio = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.budget = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.tokens = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.past = -1; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.past = INT64_MAX; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P& p, A&) { p.epsilon = std::numeric_limits<float>::quiet_NaN(); }));
  static constexpr float kFive[5] = {};
  EXPECT_TRUE(refused(Errc::bad_request, [](P&, A& a) { a.frequencies = kFive; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P&, A& a) { a.state.capacity = 4; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P&, A& a) { a.selection.stride = 1; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](P&, A& a) { a.z.stride = 23; }));
}

}  // namespace
}  // namespace quern::ops
