// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the n-gram layer of Qwen3.8-Flash-Next in bfloat16, for a token and for a prompt.
#include <vector>

#include "ops/ple_gate/ple_gate.h"
#include "tests/support/token_bench.h"

namespace quern::ops {
namespace {

using support::brain_values;

constexpr int64_t kHidden = 2560, kWidth = 4 * kHidden;

void bench_gate(benchmark::State& state, int64_t tokens, int threads) {
  const auto key = brain_values(tokens * kWidth), query = brain_values(tokens * kWidth),
             value = brain_values(tokens * kHidden);
  auto gated = brain_values(tokens * kWidth);
  support::time_tokens(state, tokens, threads, [&](const Context& ctx) {
    return ple_gate(ctx, {DType::bf16, tokens, kHidden, 4},
                    {{key.data(), kWidth}, {query.data(), kWidth}, {value.data(), kHidden}, {gated.data(), kWidth}},
                    "bench");
  });
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  return quern::support::run_token_bench(argc, argv, "ple_gate", &quern::ops::bench_gate);
}
