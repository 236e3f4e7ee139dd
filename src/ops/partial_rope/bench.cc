// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the query heads of Qwen3.8-Flash-Next in bfloat16, for a token and for a prompt.
#include <vector>

#include "ops/partial_rope/partial_rope.h"
#include "tests/support/token_bench.h"

namespace quern::ops {
namespace {

using support::brain_values;

constexpr int32_t kHeads = 24, kSize = 256, kRotary = 64;

void bench_rope(benchmark::State& state, int64_t tokens, int threads) {
  const auto x = brain_values(tokens * kHeads * kSize);
  auto y = brain_values(tokens * kHeads * kSize);
  const std::vector<float> cos(static_cast<size_t>(tokens * kRotary / 2), 0.5f), sin(cos);
  const RowLayout layout{1, 0, kSize};
  support::time_tokens(state, tokens, threads, [&](const Context& ctx) {
    return partial_rope(ctx, {DType::bf16, tokens, kHeads, kSize, kRotary},
                        {x.data(), layout, cos.data(), sin.data(), y.data(), layout}, "bench");
  });
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  return quern::support::run_token_bench(argc, argv, "partial_rope", &quern::ops::bench_rope);
}
