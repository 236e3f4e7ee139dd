// SPDX-License-Identifier: Apache-2.0
// Every kernel against the reference, attention against the formula of its contract, and what its bits may depend on.
// tests/oracle compares with transformers live.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/activation.h"
#include "ops/element.h"
#include "ops/sparse_attention/kernels.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "tests/support/allocation_count.h"
#include "tests/support/guard_page.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(SparseTileFunction symbol;)
#include "ops/sparse_attention/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::GuardedArray;
using support::Machine;
using support::Random;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const TypedVariant<SparseTileFunction> kLines[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/sparse_attention/kernels.inc"
#undef QUERN_KERNEL
};

size_t bytes_of(DType type, int64_t elements) { return *storage_bytes(type, elements); }

void fill(Random& random, DType type, void* out, int64_t elements) {
  with_element(type, [&](auto element) {
    for (int64_t i = 0; i < elements; i++) decltype(element)::store(out, i, random.normal());
  });
}

struct Aligned {
  explicit Aligned(int64_t floats) : storage(static_cast<size_t>(floats) + 16) {
    const auto at = reinterpret_cast<uintptr_t>(storage.data());
    data = storage.data() + (64 - at % 64) % 64 / sizeof(float);
  }
  std::vector<float> storage;
  float* data;
};

class SparseTileVariant : public testing::TestWithParam<TypedVariant<SparseTileFunction>> {
 protected:
  void SetUp() override {
    if (!cpu::detect_features().has(GetParam().isa))
      GTEST_SKIP() << "this processor lacks " << cpu::isa_name(GetParam().isa);
  }
};

// Two tiles one behind the other from a cache whose last row ends at an unreadable page.
TEST_P(SparseTileVariant, AgreesWithTheReferenceForEveryShape) {
  const DType type = GetParam().type;
  constexpr int32_t kCacheRows = 150;
  Random random(1);
  for (const int32_t d : {8, 16, 24, 32, 64, 72, 128, 256}) {
    for (const int32_t rows : {1, 2, 3, 4, 5, 12, 13}) {
      const int64_t stride = d + 3;
      const GuardedArray<uint8_t> k(bytes_of(type, (kCacheRows - 1) * stride + d)), v(k.size());
      for (const auto* half : {&k, &v}) fill(random, type, half->data(), (kCacheRows - 1) * stride + d);
      const Aligned q(rows * d), scratch(rows * kSparseRowScratch);
      random.fill_normal({q.data, static_cast<size_t>(rows * d)});
      for (const int32_t keys : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64}) {
        std::vector<int64_t> index(kCacheRows);
        std::iota(index.begin(), index.end(), 0);
        for (size_t i = 0; i + 1 < index.size(); i++) {
          std::swap(index[i], index[i + static_cast<size_t>(random.below(static_cast<int64_t>(index.size() - i)))]);
        }
        index[0] = kCacheRows - 1;
        std::vector<float> m[2], l[2];
        const Aligned o[2] = {Aligned(rows * d), Aligned(rows * d)};
        for (const int i : {0, 1}) {
          m[i].assign(static_cast<size_t>(rows), -std::numeric_limits<float>::infinity());
          l[i].assign(static_cast<size_t>(rows), 0);
          const auto run = i == 0               ? GetParam().run
                           : type == DType::f32 ? &sparse_tile_f32_reference
                                                : &sparse_tile_bf16_reference;
          for (const int32_t count : {keys, 5}) {
            run({q.data, k.data(), v.data(), stride, index.data() + (count == keys ? 0 : 70), rows, d, count, 0.3f,
                 m[i].data(), l[i].data(), o[i].data, scratch.data});
          }
        }
        for (int32_t r = 0; r < rows; r++) {
          const auto at = static_cast<size_t>(r);
          ASSERT_NEAR(m[0][at], m[1][at], 1e-5) << "d " << d << " keys " << keys << " row " << r;
          ASSERT_NEAR(l[0][at], l[1][at], 2e-5 * l[1][at]) << "d " << d << " keys " << keys << " row " << r;
          for (int32_t i = 0; i < d; i++) {
            ASSERT_NEAR(o[0].data[r * d + i] / l[0][at], o[1].data[r * d + i] / l[1][at], 2e-5)
                << "d " << d << " keys " << keys << " row " << r << " element " << i;
          }
        }
      }
    }
  }
}

TEST_P(SparseTileVariant, ARowDoesNotDependOnTheOthersNorSpreadsNaN) {
  const DType type = GetParam().type;
  constexpr int32_t kD = 40, kRows = 7, kKeys = 29;
  Random random(2);
  std::vector<uint8_t> k(bytes_of(type, kKeys * kD)), v(k.size());
  fill(random, type, k.data(), kKeys * kD);
  fill(random, type, v.data(), kKeys * kD);
  const Aligned q(kRows * kD), scratch(kRows * kSparseRowScratch), o(kRows * kD), alone(kD), own(kD);
  random.fill_normal({q.data, kRows * kD});
  q.data[3 * kD + 5] = kNan;
  std::vector<int64_t> index(kKeys);
  std::iota(index.begin(), index.end(), 0);
  std::vector<float> m(kRows, -std::numeric_limits<float>::infinity()), l(kRows, 0);
  GetParam().run(
      {q.data, k.data(), v.data(), kD, index.data(), kRows, kD, kKeys, 1, m.data(), l.data(), o.data, scratch.data});
  for (int32_t r = 0; r < kRows; r++) {
    float m1 = -std::numeric_limits<float>::infinity(), l1 = 0;
    std::copy_n(q.data + r * kD, kD, own.data);
    std::fill_n(alone.data, kD, 0.0f);
    GetParam().run(
        {own.data, k.data(), v.data(), kD, index.data(), 1, kD, kKeys, 1, &m1, &l1, alone.data, scratch.data});
    if (r == 3) {
      EXPECT_TRUE(std::isnan(l[3]));
      for (int32_t i = 0; i < kD; i++) EXPECT_TRUE(std::isnan(o.data[r * kD + i])) << i;
      continue;
    }
    EXPECT_EQ(l1, l[static_cast<size_t>(r)]) << r;
    EXPECT_EQ(std::memcmp(alone.data, o.data + r * kD, kD * sizeof(float)), 0) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, SparseTileVariant, testing::ValuesIn(kLines),
                         [](const auto& line) { return std::string(line.param.symbol); });

// A timeline: projections of all its tokens, a cache, and the choice of blocks for each token.
struct Timeline {
  Timeline(SparseAttentionParams params, uint64_t seed) : p(params) {
    Random random(seed);
    const int64_t width = p.head_size;
    q_gate = random_rows(random, p.tokens * p.query_heads * 2 * width);
    kv = random_rows(random, p.tokens * 2 * p.kv_heads * width);
    capacity = p.tokens + 3;
    keys.assign(bytes_of(p.type, p.kv_heads * capacity * width), 0xff);  // NaN where nothing was written
    values = keys;
    out.resize(bytes_of(p.type, p.tokens * p.query_heads * width));
    counts.assign(static_cast<size_t>(p.tokens), kAllBlocks);
    blocks.resize(static_cast<size_t>(p.tokens * stride()));
  }

  std::vector<uint8_t> random_rows(Random& random, int64_t elements) const {
    std::vector<uint8_t> rows(bytes_of(p.type, elements));
    fill(random, p.type, rows.data(), elements);
    return rows;
  }
  int64_t stride() const { return p.tokens / p.ratio + 1; }

  void choose(int64_t token, const std::vector<int32_t>& chosen) {
    counts[static_cast<size_t>(token)] = static_cast<int32_t>(chosen.size());
    std::copy(chosen.begin(), chosen.end(), blocks.begin() + static_cast<std::ptrdiff_t>(token * stride()));
  }
  void choose_all_by_name() {
    for (int64_t t = 0; t < p.tokens; t++) {
      std::vector<int32_t> all(static_cast<size_t>((t + 1) / p.ratio));
      std::iota(all.begin(), all.end(), 0);
      choose(t, all);
    }
  }
  // Up to `most` random blocks, where there are more.
  void choose_some(int64_t most, uint64_t seed) {
    Random random(seed);
    for (int64_t t = 0; t < p.tokens; t++) {
      std::vector<int32_t> all(static_cast<size_t>((t + 1) / p.ratio));
      std::iota(all.begin(), all.end(), 0);
      while (static_cast<int64_t>(all.size()) > most) {
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(random.below(static_cast<int64_t>(all.size()))));
      }
      choose(t, all);
    }
  }

  SparseAttentionArgs args(int64_t first) {
    const int64_t width = p.head_size;
    const auto at = [&](void* base, int64_t element) { return element_at(p.type, base, element); };
    SparseAttentionArgs a;
    void* rows = at(q_gate.data(), first * p.query_heads * 2 * width);
    a.q = {rows, p.query_heads * 2 * width, 2 * width};
    a.gate = {at(rows, width), p.query_heads * 2 * width, 2 * width};
    rows = at(kv.data(), first * 2 * p.kv_heads * width);
    a.k = {rows, 2 * p.kv_heads * width, width};
    a.v = {at(rows, p.kv_heads * width), 2 * p.kv_heads * width, width};
    a.cache.keys = keys.data();
    a.cache.values = values.data();
    a.cache.dtype = p.type;
    a.cache.head_stride = capacity * width;
    a.cache.row_stride = width;
    a.cache.capacity = capacity;
    a.selection = {blocks.data() + first * stride(), stride(), counts.data() + first};
    a.out = {at(out.data(), first * p.query_heads * width), p.query_heads * width};
    return a;
  }
  // Tokens [first, first + count), whose past was run before.
  Result<void> run(Machine& machine, int64_t first, int64_t count) {
    SparseAttentionParams piece = p;
    piece.past = first;
    piece.tokens = count;
    return sparse_attention(machine.context, piece, args(first), "attention");
  }
  std::vector<uint8_t> run_whole(int threads = 1) {
    Machine machine(threads);
    const auto done = run(machine, 0, p.tokens);
    EXPECT_TRUE(done.ok()) << done.error().message();
    return out;
  }

  SparseAttentionParams p;
  std::vector<uint8_t> q_gate, kv, keys, values, out;
  int64_t capacity = 0;
  std::vector<int32_t> counts, blocks;
};

// The contract in float64, for one query head of one token.
template <class E>
std::vector<double> by_formula(Timeline& m, int64_t token, int64_t head) {
  const auto a = m.args(0);
  const int64_t n = token + 1, g = head / (m.p.query_heads / m.p.kv_heads);
  std::vector<int64_t> seen;
  if (m.counts[static_cast<size_t>(token)] == kAllBlocks) {
    seen.resize(static_cast<size_t>(n));
    std::iota(seen.begin(), seen.end(), 0);
  } else {
    for (int32_t i = 0; i < m.counts[static_cast<size_t>(token)]; i++) {
      const int64_t block = m.blocks[static_cast<size_t>(token * m.stride() + i)];
      for (int64_t j = 0; j < m.p.ratio; j++) seen.push_back(block * m.p.ratio + j);
    }
    for (int64_t t = n - n % m.p.ratio; t < n; t++) seen.push_back(t);
  }
  const auto row = [&](const HeadRowsIn& rows, int64_t t, int64_t h, int64_t i) {
    return static_cast<double>(E::load(rows.data, t * rows.stride + h * rows.head_stride + i));
  };
  std::vector<double> x, o(static_cast<size_t>(m.p.head_size));
  for (const int64_t t : seen) {
    double dot = 0;
    for (int64_t i = 0; i < m.p.head_size; i++) dot += row(a.q, token, head, i) * row(a.k, t, g, i);
    x.push_back(dot * static_cast<double>(m.p.scale));
  }
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (size_t j = 0; j < seen.size(); j++) {
    const double weight = std::exp(x[j] - top);
    sum += weight;
    for (int64_t i = 0; i < m.p.head_size; i++) o[static_cast<size_t>(i)] += weight * row(a.v, seen[j], g, i);
  }
  for (int64_t i = 0; i < m.p.head_size; i++) {
    auto& value = o[static_cast<size_t>(i)];
    value = static_cast<double>(E::round(static_cast<float>(value / sum))) *
            static_cast<double>(E::round(sigmoid(static_cast<float>(row(a.gate, token, head, i)))));
  }
  return o;
}

void expect_formula(Timeline& m, const std::string& what) {
  with_element(m.p.type, [&](auto element) {
    using E = decltype(element);
    // Three roundings of values below 4 in the bfloat16 form, of which one may fall to the other side.
    const double tolerance = m.p.type == DType::f32 ? 2e-5 : 0x1p-6;
    for (int64_t t = 0; t < m.p.tokens; t++) {
      for (int64_t h = 0; h < m.p.query_heads; h++) {
        const auto wanted = by_formula<E>(m, t, h);
        for (int64_t i = 0; i < m.p.head_size; i++) {
          const float seen = E::load(m.out.data(), (t * m.p.query_heads + h) * m.p.head_size + i);
          ASSERT_NEAR(seen, wanted[static_cast<size_t>(i)], tolerance) << what << " token " << t << " head " << h;
        }
      }
    }
  });
}

SparseAttentionParams params(DType type, int32_t query_heads, int32_t kv_heads, int32_t head_size, int64_t tokens,
                             int32_t ratio) {
  return {type, query_heads, kv_heads, head_size, tokens, 0, ratio, 1 / std::sqrt(static_cast<float>(head_size))};
}

TEST(SparseAttention, IsTheFormula) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const auto& p :
         {params(type, 4, 2, 32, 45, 4), params(type, 3, 3, 8, 20, 1), params(type, 12, 1, 16, 30, 7)}) {
      Timeline m(p, 1);
      m.run_whole(2);
      expect_formula(m, "dense");
      m.choose_some(3, 2);
      m.run_whole(3);
      expect_formula(m, "sparse");
    }
  }
}

TEST(SparseAttention, NumbersByHand) {
  // Blocks of 2; the last of 5 tokens sees block 1 and its tail. Scores are log 1, log 2, log 4 there.
  auto p = params(DType::f32, 1, 1, 8, 5, 2);
  p.scale = 1;
  Timeline m(p, 1);
  std::vector<float> q_gate(5 * 16, 0.0f), kv(5 * 16, 0.0f);
  q_gate[4 * 16] = 1;                   // query of the last token
  q_gate[4 * 16 + 8] = std::log(3.0f);  // its gate: sigmoid is 3/4
  const std::vector<float> scores{50, 50, 0, std::log(2.0f), std::log(4.0f)};
  for (size_t t = 0; t < 5; t++) {
    kv[t * 16] = scores[t];
    kv[t * 16 + 8] = static_cast<float>(t);  // values 0, 1, 2, 3, 4
  }
  std::memcpy(m.q_gate.data(), q_gate.data(), m.q_gate.size());
  std::memcpy(m.kv.data(), kv.data(), m.kv.size());
  m.choose(4, {1});
  m.run_whole();
  float out = 0;
  std::memcpy(&out, m.out.data() + 4 * 8 * sizeof(float), sizeof(out));
  EXPECT_NEAR(out, (1 * 2 + 2 * 3 + 4 * 4) / 7.0 * 0.75, 1e-5);
}

TEST(SparseAttention, AllBlocksByNameGiveTheBitsOfDenseAttention) {
  for (const DType type : {DType::f32, DType::bf16}) {
    // More than one piece of keys, tails of every length.
    Timeline m(params(type, 4, 2, 16, 1100, 4), 3);
    const auto dense = m.run_whole(2);
    m.choose_all_by_name();
    EXPECT_EQ(m.run_whole(2), dense) << dtype_name(type);
  }
}

TEST(SparseAttention, PiecesAndThreadsDoNotChangeBits) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Timeline m(params(type, 6, 2, 16, 640, 4), 4);
    m.choose_some(140, 5);
    const auto whole = m.run_whole(1);
    const auto keys = m.keys, values = m.values;
    for (const int64_t step : {1, 3, 37, 300}) {
      std::fill(m.keys.begin(), m.keys.end(), uint8_t{0xff});
      std::fill(m.values.begin(), m.values.end(), uint8_t{0xff});
      Machine machine(4);
      for (int64_t t = 0; t < m.p.tokens; t += step) {
        ASSERT_TRUE(m.run(machine, t, std::min(step, m.p.tokens - t)).ok());
      }
      EXPECT_EQ(m.out, whole) << step << " tokens a call";
      EXPECT_TRUE(m.keys == keys && m.values == values) << step << " tokens a call";
    }
  }
}

TEST(SparseAttention, AppendsRowsAsTheyAreAndCountsThem) {
  Timeline m(params(DType::bf16, 4, 2, 8, 9, 4), 6);
  Machine machine(2);
  ASSERT_TRUE(m.run(machine, 0, 9).ok());
  EXPECT_EQ(machine.counters.cache_bytes_appended, 9u * 2 * 2 * 8 * 2);
  const size_t row = 16;
  for (size_t t = 0; t < 9; t++) {
    for (size_t g = 0; g < 2; g++) {
      const size_t at = (g * static_cast<size_t>(m.capacity) + t) * row;
      EXPECT_EQ(std::memcmp(m.keys.data() + at, m.kv.data() + (t * 4 + g) * row, row), 0);
      EXPECT_EQ(std::memcmp(m.values.data() + at, m.kv.data() + (t * 4 + 2 + g) * row, row), 0);
    }
  }
}

TEST(SparseAttention, RowsThatAreNotChosenMayHoldAnything) {
  Timeline m(params(DType::f32, 2, 1, 8, 40, 4), 7);
  for (int64_t t = 0; t < 40; t++) m.choose(t, {});
  m.choose(3, {0});
  for (int64_t t = 4; t < 40; t++) {
    if ((t + 1) % 4 == 0) m.choose(t, {static_cast<int32_t>(t / 4)});
  }
  m.choose(39, {2, 7});
  const auto wanted = m.run_whole();
  const size_t last = m.out.size() / 40;
  for (int64_t t = 0; t < 40; t++) {
    if (t / 4 == 2 || t / 4 == 7) continue;
    for (int64_t i = 0; i < 8; i++) {
      FloatElement::store(m.keys.data(), t * 8 + i, kNan);
      FloatElement::store(m.values.data(), t * 8 + i, kNan);
    }
  }
  Machine machine;
  ASSERT_TRUE(m.run(machine, 39, 1).ok());
  EXPECT_TRUE(std::equal(m.out.end() - static_cast<std::ptrdiff_t>(last), m.out.end(),
                         wanted.end() - static_cast<std::ptrdiff_t>(last)));
}

TEST(SparseAttention, AnOpenGateGivesTheRoundedSum) {
  Timeline m(params(DType::bf16, 2, 1, 16, 12, 4), 8);
  // sigmoid(89) is 1 in float32.
  for (int64_t i = 0; i < 12 * 2; i++) {
    for (int64_t j = 0; j < 16; j++) BrainElement::store(m.q_gate.data(), i * 32 + 16 + j, 89);
  }
  m.run_whole();
  expect_formula(m, "open gate");
}

TEST(SparseAttention, AllocatesNothingTheSecondTime) {
  Timeline m(params(DType::bf16, 4, 2, 16, 100, 4), 9);
  m.choose_some(10, 10);
  Machine machine(2);
  ASSERT_TRUE(m.run(machine, 0, 100).ok());
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(m.run(machine, 0, 100).ok()); }), 0);
}

TEST(SparseAttention, RefusesBeforeAnythingIsWritten) {
  const auto refused = [&](Errc code, auto change) {
    Timeline m(params(DType::f32, 4, 2, 8, 10, 4), 11);
    m.choose(8, {0, 1});
    SparseAttentionArgs args = m.args(0);
    change(m, args);
    std::fill(m.out.begin(), m.out.end(), uint8_t{7});
    Machine machine;
    const auto done = sparse_attention(machine.context, m.p, args, "layer 3");
    return !done.ok() && done.error().code == code && done.error().where == "layer 3" &&
           std::all_of(m.out.begin(), m.out.end(), [](uint8_t b) { return b == 7; }) &&
           std::all_of(m.keys.begin(), m.keys.end(), [](uint8_t b) { return b == 0xff; });
  };
  using Args = SparseAttentionArgs;
  EXPECT_FALSE(refused(Errc::bad_request, [](Timeline&, Args&) {}));
  EXPECT_TRUE(refused(Errc::unsupported, [](Timeline& m, Args& a) { m.p.type = a.cache.dtype = DType::f16; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline&, Args& a) { a.cache.dtype = DType::bf16; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.query_heads = 3; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.kv_heads = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.head_size = 12; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.head_size = 520; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.tokens = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.ratio = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.past = -1; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.past = 4; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.p.past = INT64_MAX; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.choose(8, {1, 0}); }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.choose(8, {1, 1}); }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.choose(8, {1, 2}); }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.choose(8, {-1, 1}); }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.counts[8] = 3; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.counts[8] = -2; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline& m, Args&) { m.choose(7, {}); })) << "a token without any key";
  EXPECT_TRUE(refused(Errc::bad_request, [](Timeline&, Args& a) { a.selection.stride = 1; }));
}

}  // namespace
}  // namespace quern::ops
