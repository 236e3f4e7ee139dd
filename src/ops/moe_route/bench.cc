// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the router of Qwen3.8-Flash-Next, for a token and for a prompt.
#include <vector>

#include "ops/moe_route/moe_route.h"
#include "tests/support/token_bench.h"

namespace quern::ops {
namespace {

constexpr int32_t kExperts = 512, kChosen = 10;

void bench_route(benchmark::State& state, DType type, int64_t tokens, int threads) {
  const auto scores = support::values(type, tokens * kExperts);
  std::vector<int32_t> experts(static_cast<size_t>(tokens * kChosen));
  std::vector<float> weights(experts.size());
  support::time_tokens(state, tokens, threads, [&](const Context& ctx) {
    return moe_route(ctx, {type, tokens, kExperts, kChosen},
                     {{scores.data(), kExperts}, experts.data(), weights.data()}, "bench");
  });
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  return quern::support::run_token_bench(argc, argv, "moe_route", &quern::ops::bench_route);
}
