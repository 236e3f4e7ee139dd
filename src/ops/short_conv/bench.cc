// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the convolution of a Gated DeltaNet layer of Qwen3.8-Flash-Next in bfloat16, for a token
// and for a prompt.
#include <vector>

#include "ops/short_conv/short_conv.h"
#include "tests/support/token_bench.h"

namespace quern::ops {
namespace {

using support::brain_values;

constexpr int64_t kChannels = 10240;
constexpr int32_t kTaps = 4;

void bench_conv(benchmark::State& state, int64_t tokens, int threads) {
  const auto x = brain_values(tokens * kChannels), weight = brain_values(kChannels * kTaps);
  auto conv_state = brain_values(short_conv_past(kTaps, 1) * kChannels), y = brain_values(tokens * kChannels);
  support::time_tokens(state, tokens, threads, [&](const Context& ctx) {
    return short_conv(ctx, {DType::bf16, tokens, kChannels, kTaps, 1},
                      {{x.data(), kChannels}, weight.data(), conv_state.data(), {y.data(), kChannels}}, "bench");
  });
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  return quern::support::run_token_bench(argc, argv, "short_conv", &quern::ops::bench_conv);
}
