// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the heads of a Gated DeltaNet layer of Qwen3.8-Flash-Next in bfloat16, for a token and for
// a prompt.
#include <vector>

#include "ops/gated_norm/gated_norm.h"
#include "tests/support/token_bench.h"

namespace quern::ops {
namespace {

using support::brain_values;

constexpr int64_t kHeads = 48, kSize = 128;

void bench_norm(benchmark::State& state, int64_t tokens, int threads) {
  const int64_t rows = tokens * kHeads;
  const auto x = brain_values(rows * kSize), z = brain_values(rows * kSize), weight = brain_values(kSize);
  auto y = brain_values(rows * kSize);
  const RowLayout layout{1, 0, kSize};
  support::time_tokens(state, tokens, threads, [&](const Context& ctx) {
    return gated_norm(ctx, {DType::bf16, rows, kSize, 1e-6f, Activation::sigmoid},
                      {x.data(), layout, z.data(), layout, weight.data(), y.data(), layout}, "bench");
  });
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  return quern::support::run_token_bench(argc, argv, "gated_norm", &quern::ops::bench_norm);
}
