// SPDX-License-Identifier: Apache-2.0
// The look-up against tables whose rows say where they lie, and what of a mapped table it touches.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ops/ngram_embed/ngram_embed.h"
#include "tests/support/allocation_count.h"
#include "tests/support/one_node.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

using support::Machine;

// Element j of row r is 100 r + j.
struct Table {
  Table(int64_t rows, int64_t rows_of_shard, int64_t width) {
    for (int64_t first = 0; first < rows; first += rows_of_shard) {
      const int64_t count = std::min(rows_of_shard, rows - first);
      auto& values = storage.emplace_back(static_cast<size_t>(count * width));
      for (int64_t i = 0; i < count * width; i++) {
        values[static_cast<size_t>(i)] = static_cast<float>(100 * (first + i / width) + i % width);
      }
    }
    for (const auto& values : storage) {
      shards.push_back({values.data(), static_cast<int64_t>(values.size()) / width});
    }
  }
  std::vector<std::vector<float>> storage;
  std::vector<NgramShard> shards;
};

TEST(NgramEmbed, RowsOfEqualShardsAndAShorterLastOne) {
  const Table table(11, 4, 3);
  ASSERT_EQ(table.shards.size(), 3u);
  const std::vector<int64_t> rows{0, 3, 4, 7, 8, 10};
  std::vector<float> out(18);
  Machine machine(2);
  const auto done = ngram_embed(machine.context, {DType::f32, 3, 2, 3}, {table.shards, rows, out.data()}, "test");
  ASSERT_TRUE(done.ok()) << done.error().message();
  EXPECT_EQ(
      out, (std::vector<float>{0, 1, 2, 300, 301, 302, 400, 401, 402, 700, 701, 702, 800, 801, 802, 1000, 1001, 1002}));
  EXPECT_EQ(machine.counters.bytes_copied, 18 * sizeof(float));
}

TEST(NgramEmbed, BytesOfBfloat16AreKept) {
  // NaN payloads and odd addresses too.
  std::vector<uint8_t> bytes(1 + 5 * 2 * 2);
  support::Random random(1);
  for (auto& b : bytes) b = static_cast<uint8_t>(random.bits());
  bytes[1] = bytes[2] = 0xff;
  const NgramShard shard{bytes.data() + 1, 5};
  const std::vector<int64_t> rows{4, 0, 2};
  std::vector<uint8_t> out(12);
  Machine machine;
  ASSERT_TRUE(ngram_embed(machine.context, {DType::bf16, 1, 3, 2}, {{&shard, 1}, rows, out.data()}, "test").ok());
  for (size_t i = 0; i < rows.size(); i++) {
    EXPECT_EQ(std::memcmp(out.data() + 4 * i, bytes.data() + 1 + 4 * rows[i], 4), 0) << i;
  }
}

TEST(NgramEmbed, TouchesOnlyThePagesOfTheRows) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr size_t kPages = 64;
  auto* base =
      static_cast<float*>(mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(base, MAP_FAILED);
  const auto row_elements = static_cast<int64_t>(page / sizeof(float));
  const std::vector<int64_t> rows{40, 3, 63, 40};
  for (size_t r = 0; r < kPages; r++) base[r * page / sizeof(float)] = static_cast<float>(r);
  for (int64_t r = 0; r < static_cast<int64_t>(kPages); r++) {
    if (std::find(rows.begin(), rows.end(), r) == rows.end()) {
      ASSERT_EQ(mprotect(reinterpret_cast<char*>(base) + static_cast<size_t>(r) * page, page, PROT_NONE), 0);
    }
  }
  const NgramShard shard{base, kPages};
  std::vector<float> out(4 * page / sizeof(float));
  Machine machine(2);
  ASSERT_TRUE(
      ngram_embed(machine.context, {DType::f32, 2, 2, row_elements}, {{&shard, 1}, rows, out.data()}, "test").ok());
  for (size_t i = 0; i < rows.size(); i++) {
    EXPECT_EQ(out[i * page / sizeof(float)], static_cast<float>(rows[i]));
  }
  munmap(base, kPages * page);
}

// The published table has 102 GB: neither its row numbers in float32 nor its places in 32 bits.
TEST(NgramEmbed, RowsBeyondFourGigabytes) {
  constexpr int64_t kRows = 20'000'000, kWidth = 160;
  constexpr size_t kRowBytes = kWidth * sizeof(uint16_t), kBytes = kRows * kRowBytes;
  auto* base = static_cast<uint8_t*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base == MAP_FAILED) GTEST_SKIP() << "this machine gives no 6.4 GB of addresses";
  // Odd, and above 2^24.
  const std::vector<int64_t> rows{kRows - 1, 16'777'217, 13'421'773};
  for (size_t i = 0; i < rows.size(); i++) base[static_cast<size_t>(rows[i]) * kRowBytes] = static_cast<uint8_t>(i + 1);
  const NgramShard shard{base, kRows};
  std::vector<uint8_t> out(rows.size() * kRowBytes);
  Machine machine;
  EXPECT_TRUE(ngram_embed(machine.context, {DType::bf16, 1, 3, kWidth}, {{&shard, 1}, rows, out.data()}, "test").ok());
  for (size_t i = 0; i < rows.size(); i++) EXPECT_EQ(out[i * kRowBytes], i + 1) << rows[i];
  munmap(base, kBytes);
}

TEST(NgramEmbed, NoTokens) {
  const Table table(4, 4, 3);
  Machine machine;
  EXPECT_TRUE(ngram_embed(machine.context, {DType::f32, 0, 2, 3}, {table.shards, {}, nullptr}, "test").ok());
}

TEST(NgramEmbed, NothingIsAllocated) {
  const Table table(100, 30, 3);
  const std::vector<int64_t> rows(64, 99);
  std::vector<float> out(64 * 3);
  Machine machine(2);
  const NgramEmbedArgs args{table.shards, rows, out.data()};
  EXPECT_EQ(support::allocations_in([&] {
              EXPECT_TRUE(ngram_embed(machine.context, {DType::f32, 32, 2, 3}, args, "test").ok());
            }),
            0);
}

TEST(NgramEmbed, RefusesBeforeAnythingIsWritten) {
  const Table table(11, 4, 3);
  const auto refused = [&](Errc code, auto change) {
    NgramEmbedParams params{DType::f32, 3, 2, 3};
    std::vector<NgramShard> shards = table.shards;
    std::vector<int64_t> rows{0, 3, 4, 7, 8, 10};
    change(params, shards, rows);
    std::vector<float> out(18, -1);
    Machine machine;
    const auto done = ngram_embed(machine.context, params, {shards, rows, out.data()}, "ple");
    return !done.ok() && done.error().code == code && done.error().where == "ple" && out == std::vector<float>(18, -1);
  };
  using Shards = std::vector<NgramShard>;
  using Rows = std::vector<int64_t>;
  EXPECT_FALSE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards&, Rows&) {}));
  EXPECT_TRUE(refused(Errc::unsupported, [](NgramEmbedParams& p, Shards&, Rows&) { p.dtype = DType::f16; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams& p, Shards&, Rows&) { p.tokens = 2; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams& p, Shards&, Rows&) { p.tokens = -3; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams& p, Shards&, Rows&) { p.heads = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams& p, Shards&, Rows&) { p.width = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards& s, Rows&) { s.clear(); }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards& s, Rows&) { s[1].count = 3; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards& s, Rows&) { s[2].count = 5; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards& s, Rows&) { s[2].count = 0; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards&, Rows& r) { r[5] = 11; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards&, Rows& r) { r[5] = -1; }));
  EXPECT_TRUE(refused(Errc::bad_request, [](NgramEmbedParams&, Shards&, Rows& r) { r[0] = INT64_MAX; }));
}

}  // namespace
}  // namespace quern::ops
