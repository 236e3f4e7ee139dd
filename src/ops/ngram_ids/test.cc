// SPDX-License-Identifier: Apache-2.0
// The hash and its constants against the published ones of Qwen3.8-Flash-Next and of a small configuration, and all
// ways to reach the same history against each other. tests/oracle compares with transformers live.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/ngram_ids/ngram_ids.h"
#include "tests/support/allocation_count.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

using support::Machine;
using Rows = std::vector<int64_t>;

// A published configuration: the constants that are buffers of the checkpoint follow from it.
struct Model {
  NgramIdsParams params;
  NgramHash hash;
};

Model frozen(int32_t layer_index = 0) {
  return {{3, 8, 248320, 248044}, *ngram_hash({3, 8, 248320, 20000000, 128, 1234, layer_index}, "test")};
}
Model small(int32_t layer_index) {
  return {{3, 3, 199, 5}, *ngram_hash({3, 3, 199, 101, 16, 1234, layer_index}, "test")};
}

Result<Rows> try_rows(const Model& m, std::span<const int32_t> ids, int64_t first = 0, int threads = 1) {
  Machine machine(threads);
  Rows rows((ids.size() - static_cast<size_t>(first)) * m.hash.sizes.size());
  const auto done = ngram_ids(machine.context, m.params,
                              {m.hash.multipliers, m.hash.sizes, m.hash.offsets, ids, first, rows}, "test");
  if (!done.ok()) return done.error();
  return rows;
}

Rows rows_of(const Model& m, const std::vector<int32_t>& ids, int64_t first = 0, int threads = 1) {
  auto rows = try_rows(m, ids, first, threads);
  EXPECT_TRUE(rows.ok()) << rows.error().message();
  return rows.ok() ? *rows : Rows{};
}

TEST(NgramHash, ConstantsOfThePublishedCheckpoint) {
  const NgramHash hash = frozen().hash;
  EXPECT_EQ(hash.multipliers, (Rows{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(hash.sizes, (Rows{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081,
                              20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}));
  EXPECT_EQ(hash.offsets, (Rows{0, 20000003, 40000026, 60000059, 80000106, 100000165, 120000228, 140000297, 160000374,
                                180000455, 200000548, 220000655, 240000802, 260000955, 280001114, 300001275}));
  EXPECT_EQ(hash.total, 320001446);
  EXPECT_EQ(hash.padded, 320001536);
  EXPECT_EQ(frozen(1).hash.multipliers, (Rows{3352040966061, 19752442147475, 10742103100073}));
}

// With a vocabulary of one id a multiplier is 2 (mix64(seed + increment) mod (2^62 - 1)) + 1.
TEST(NgramHash, Mix64OfZeroAndOne) {
  constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15u, kHalf = (uint64_t{1} << 62) - 1;
  const auto first = [](uint64_t argument) {
    return ngram_hash({2, 1, 1, 2, 1, static_cast<int64_t>(argument - kIncrement), 0}, "test")->multipliers[0];
  };
  EXPECT_EQ(first(0), static_cast<int64_t>(2 * (0xe220a8397b1dcdafu % kHalf) + 1));
  EXPECT_EQ(first(1), static_cast<int64_t>(2 * (0x910a2dec89025cc1u % kHalf) + 1));
}

TEST(NgramHash, ASecondLayerContinuesTheRunOfPrimes) {
  EXPECT_EQ(small(0).hash.sizes, (Rows{101, 103, 107, 109, 113, 127}));
  EXPECT_EQ(small(0).hash.total, 660);
  EXPECT_EQ(small(0).hash.padded, 672);
  EXPECT_EQ(small(0).hash.multipliers, (Rows{43582842071245295, 41610290519755253, 33588205739750437}));
  EXPECT_EQ(small(1).hash.sizes, (Rows{131, 137, 139, 149, 151, 157}));
  EXPECT_EQ(small(1).hash.total, 864);
  EXPECT_EQ(small(1).hash.padded, 864);
  EXPECT_EQ(small(1).hash.multipliers, (Rows{30454339547749147, 40640107284507235, 20793887309769095}));
}

TEST(NgramHash, SmallBasesAndVocabularies) {
  EXPECT_EQ(ngram_hash({2, 5, 10, 2, 1, 0, 0}, "test")->sizes, (Rows{2, 3, 5, 7, 11}));
  const NgramHash one = *ngram_hash({2, 1, 1, 2, 4, 0, 0}, "test");
  EXPECT_EQ(one.padded, 4);
  for (const int64_t m : one.multipliers) EXPECT_GT(m, 0);
  EXPECT_EQ(ngram_hash({2, 1, INT64_MAX, 2, 4, 7, 0}, "test")->multipliers, (Rows{1, 1}));
}

TEST(NgramHash, TheLargestTableStaysBelowFiftyThreeBits) {
  const auto hash = ngram_hash({2, 16, 1, kMostNgramBase, kMostNgramBase, 0, 0}, "test");
  ASSERT_TRUE(hash.ok());
  // 16 heads of 4,096 here: each further one adds as much.
  EXPECT_LT(hash->sizes.back(), kMostNgramBase + (int64_t{1} << 20));
  EXPECT_LT(hash->total, int64_t{1} << 45);
  EXPECT_EQ(hash->padded % kMostNgramBase, 0);
}

TEST(NgramHash, RefusesWhatCannotBeDerived) {
  const NgramHashParams good{3, 8, 100, 101, 16, 1, 0};
  EXPECT_TRUE(ngram_hash(good, "test").ok());
  const auto refused = [&](auto change) {
    NgramHashParams p = good;
    change(p);
    const auto hash = ngram_hash(p, "ple");
    return !hash.ok() && hash.error().code == Errc::bad_request && hash.error().where == "ple";
  };
  EXPECT_TRUE(refused([](auto& p) { p.ngram_size = 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.ngram_size = kMaxNgramSize + 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.heads_per_ngram = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.heads_per_ngram = INT32_MAX; }));
  EXPECT_TRUE(refused([](auto& p) { p.vocabulary = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.base = 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.base = kMostNgramBase + 1; }));
  EXPECT_FALSE(refused([](auto& p) { p.base = kMostNgramBase; }));
  EXPECT_TRUE(refused([](auto& p) { p.divisor = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.divisor = kMostNgramBase + 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.layer_index = -1; }));
  EXPECT_TRUE(refused([](auto& p) { p.layer_index = INT32_MAX; }));
  // 2 orders by 8 heads are 16 primes a layer.
  EXPECT_TRUE(refused([](auto& p) { p.layer_index = kMostNgramHeads / 16; }));
  EXPECT_FALSE(refused([](auto& p) { p.layer_index = kMostNgramHeads / 16 - 1; }));
}

TEST(NgramIds, RowsOfThePublishedCheckpoint) {
  EXPECT_EQ(rows_of(frozen(), {248045, 846, 198}),
            (Rows{13981229,  30076798,  49239434,  61315716,  98540601,  111186732, 120378863, 146384625,
                  173637879, 184336749, 217808755, 222173721, 249579227, 277180543, 299757935, 312970430,  //
                  4908448,   36872991,  46611251,  64451521,  83649409,  110850044, 122402102, 159207155,
                  170314019, 195445770, 214314282, 239389039, 254862662, 271565595, 284073139, 308659387,  //
                  4582007,   37691206,  44255274,  65455601,  89351473,  103985474, 135938409, 145212418,
                  163775156, 199680439, 200044921, 228961047, 240669798, 272736434, 296838250, 317942745}));
}

TEST(NgramIds, TokensBehindAnEndDoNotSeePastIt) {
  const Rows rows = rows_of(frozen(), {1, 248044, 2, 3});
  EXPECT_EQ(Rows(rows.begin() + 32, rows.end()),
            (Rows{557681,    34951092,  45888726,  61391243,  89998281,  113665401, 129914206, 159642585,
                  174754477, 190524023, 208451907, 222160281, 242915276, 264896005, 285828740, 312534661,  //
                  14605717,  24410875,  49313567,  72177428,  86060820,  104022010, 130963819, 146886202,
                  165072300, 195686070, 213219648, 231243893, 250325810, 269767253, 296327789, 309728713}));
}

TEST(NgramIds, RowsOfTheSmallConfiguration) {
  const std::vector<int32_t> ids{11, 12, 5, 13, 14, 15};
  EXPECT_EQ(rows_of(small(0), ids),
            (Rows{99, 175, 299, 343, 464, 644, 25, 120, 243, 387, 438, 546, 90, 159, 287, 393, 493, 645,
                  69, 127, 240, 332, 505, 620, 99, 144, 302, 417, 457, 580, 55, 145, 212, 331, 442, 592}));
  EXPECT_EQ(rows_of(small(1), ids),
            (Rows{72, 177, 399, 554, 600, 840, 7,   211, 291, 549, 607, 747, 116, 200, 321, 448, 600, 854,
                  33, 140, 371, 512, 576, 779, 125, 242, 275, 441, 585, 844, 87,  218, 329, 457, 701, 845}));
}

// Whatever was there before the call: 14 sees 13 and the end before it, 15 sees 14 and 13.
TEST(NgramIds, TokensOfOneCallSeeEachOther) {
  const Rows wanted{99, 144, 302, 417, 457, 580, 55, 145, 212, 331, 442, 592};
  for (const int64_t first : {0, 1, 3, 4}) {
    const Rows rows = rows_of(small(0), {11, 12, 5, 13, 14, 15}, first);
    EXPECT_EQ(Rows(rows.end() - 12, rows.end()), wanted) << first;
  }
}

TEST(NgramIds, TheFirstMultiplierBelongsToTheNewestToken) {
  const Model m{{3, 1, 100, 99}, {{3, 5, 7}, {101, 103}, {0, 101}, 204, 204}};
  EXPECT_EQ(rows_of(m, {7, 9, 11}), (Rows{1, 124, 56, 136, 12, 162}));
}

std::vector<int32_t> random_ids(int64_t count, uint64_t seed) {
  support::Random random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (auto& id : ids) id = static_cast<int32_t>(random.below(4) == 0 ? 5 : random.below(199));
  return ids;
}

TEST(NgramIds, EveryWayToReachAHistoryGivesTheSameRows) {
  for (const int32_t n : {2, 3, 4, 7}) {
    const Model m{{n, 2, 199, 5}, *ngram_hash({n, 2, 199, 101, 16, 1, 0}, "test")};
    const auto ids = random_ids(40, static_cast<uint64_t>(n));
    const auto heads = static_cast<size_t>(2 * (n - 1));
    const Rows whole = rows_of(m, ids);
    for (size_t cut = 0; cut <= ids.size(); cut++) {
      const Rows wanted(whole.begin() + static_cast<std::ptrdiff_t>(cut * heads), whole.end());
      EXPECT_EQ(rows_of(m, ids, static_cast<int64_t>(cut)), wanted) << "all of the past, cut at " << cut;
      // Only the last n - 1 tokens of the past, where there are fewer behind ends.
      std::vector<int32_t> window(static_cast<size_t>(n - 1), 5);
      for (size_t s = 1; s <= std::min(cut, window.size()); s++) window[window.size() - s] = ids[cut - s];
      window.insert(window.end(), ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end());
      EXPECT_EQ(rows_of(m, window, n - 1), wanted) << "a window of the past, cut at " << cut;
    }
  }
}

TEST(NgramIds, ThreadsDoNotChangeRows) {
  const auto ids = random_ids(1000, 3);
  EXPECT_EQ(rows_of(small(0), ids, 0, 4), rows_of(small(0), ids));
}

TEST(NgramIds, RowNumbersBeyond32Bits) {
  const int64_t far = int64_t{1} << 40;
  const Model m{{2, 1, 1000, 0}, {{1, 0}, {1000}, {far}, far + 1000, far + 1000}};
  EXPECT_EQ(rows_of(m, {7}), Rows{far + 7});
}

TEST(NgramIds, NothingIsAllocated) {
  const Model m = small(0);
  const auto ids = random_ids(500, 4);
  Machine machine(2);
  Rows rows(ids.size() * 6);
  const NgramIdsArgs args{m.hash.multipliers, m.hash.sizes, m.hash.offsets, ids, 0, rows};
  EXPECT_EQ(support::allocations_in([&] { EXPECT_TRUE(ngram_ids(machine.context, m.params, args, "test").ok()); }), 0);
}

TEST(NgramIds, IdsOutsideOfTheVocabularyAreRefusedByPlace) {
  for (const int32_t id : {-1, 199, INT32_MAX, INT32_MIN}) {
    const auto rows = try_rows(small(0), std::vector<int32_t>{1, 2, id});
    ASSERT_FALSE(rows.ok());
    EXPECT_EQ(rows.error().code, Errc::bad_request);
    EXPECT_EQ(rows.error().message(), "test: token id " + std::to_string(id) + " at position 2 is outside of [0, 198]");
  }
}

TEST(NgramIds, RefusesArgumentsOutsideOfTheContract) {
  const Model good = small(0);
  const std::vector<int32_t> ids{1, 2, 3};
  const auto refused = [&](auto change) {
    Model m = good;
    Rows rows(ids.size() * 6, -1);
    NgramIdsArgs args{{}, {}, {}, ids, 0, rows};
    change(m, args);
    args.multipliers = m.hash.multipliers;
    args.sizes = m.hash.sizes;
    args.offsets = m.hash.offsets;
    Machine machine(1);
    const auto done = ngram_ids(machine.context, m.params, args, "ple");
    return !done.ok() && done.error().code == Errc::bad_request && done.error().where == "ple" &&
           std::all_of(rows.begin(), rows.end(), [](int64_t r) { return r == -1; });
  };
  EXPECT_FALSE(refused([](Model&, NgramIdsArgs&) {}));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.params.ngram_size = 1; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.params.ngram_size = kMaxNgramSize + 1; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.params.heads_per_ngram = 0; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.params.vocabulary = 0; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.params.eos = 199; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.params.eos = -1; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.multipliers.pop_back(); }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.sizes.pop_back(); }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.offsets.push_back(0); }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.multipliers[1] = INT64_MAX / 199 + 1; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.multipliers[1] = -1; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.sizes[2] = 0; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.offsets[2] = -1; }));
  EXPECT_TRUE(refused([](Model& m, NgramIdsArgs&) { m.hash.offsets[2] = INT64_MAX - 5; }));
  EXPECT_TRUE(refused([](Model&, NgramIdsArgs& a) { a.first = 4; }));
  EXPECT_TRUE(refused([](Model&, NgramIdsArgs& a) { a.first = -1; }));
  EXPECT_TRUE(refused([](Model&, NgramIdsArgs& a) { a.rows = a.rows.first(17); }));
}

}  // namespace
}  // namespace quern::ops
