// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the row width and the shards of Qwen3.8-Flash-Next, for a token and for a prompt. The
// shards are shorter than the published ones, but no cache holds them: rows are read from memory, none from storage.
#include <span>
#include <vector>

#include "ops/ngram_embed/ngram_embed.h"
#include "tests/support/token_bench.h"

namespace quern::ops {
namespace {

constexpr int64_t kHeads = 16, kWidth = 160, kShards = 128, kShardRows = 4096;

void bench_embed(benchmark::State& state, DType type, int64_t tokens, int threads) {
  static const std::vector<float> memory(kShards * kShardRows * kWidth, 1.0f);
  std::vector<NgramShard> shards;
  for (int64_t s = 0; s < kShards; s++) {
    shards.push_back({element_at(type, memory.data(), s * kShardRows * kWidth), kShardRows});
  }
  support::Random random(1);
  std::vector<int64_t> rows(size_t{1} << 20);
  for (auto& row : rows) row = random.below(kShards * kShardRows);
  std::vector<float> out(static_cast<size_t>(tokens * kHeads * kWidth));
  const auto count = static_cast<size_t>(tokens * kHeads);
  size_t first = 0;
  support::time_tokens(state, tokens, threads, [&](const Context& ctx) {
    // Other rows than last time.
    first = (first + count) % rows.size();
    return ngram_embed(ctx, {type, tokens, kHeads, kWidth}, {shards, std::span(rows).subspan(first, count), out.data()},
                       "bench");
  });
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  return quern::support::run_token_bench(argc, argv, "ngram_embed", &quern::ops::bench_embed);
}
