// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the n-gram layer of Qwen3.8-Flash-Next, for a token and for a prompt.
#include <vector>

#include "ops/ngram_ids/ngram_ids.h"
#include "tests/support/token_bench.h"

namespace quern::ops {
namespace {

constexpr NgramIdsParams kParams{3, 8, 248320, 248044};
constexpr int64_t kPast = 2;

void bench_ids(benchmark::State& state, int64_t tokens, int threads) {
  const auto hash = ngram_hash({3, 8, kParams.vocabulary, 20'000'000, 128, 1234, 0}, "bench");
  QUERN_CHECK(hash.ok(), "the published hash");
  support::Random random(1);
  std::vector<int32_t> ids(static_cast<size_t>(kPast + tokens));
  for (auto& id : ids) id = static_cast<int32_t>(random.below(kParams.vocabulary));
  std::vector<int64_t> rows(static_cast<size_t>(tokens) * hash->sizes.size());
  support::time_tokens(state, tokens, threads, [&](const Context& ctx) {
    return ngram_ids(ctx, kParams, {hash->multipliers, hash->sizes, hash->offsets, ids, kPast, rows}, "bench");
  });
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  return quern::support::run_token_bench(argc, argv, "ngram_ids", &quern::ops::bench_ids);
}
