// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the index heads of Qwen3.8-Flash-Next: one token and a chunk of a prompt beyond the
// budget.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/block_index/block_index.h"
#include "ops/element.h"
#include "ops/partial_rope/partial_rope.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int32_t kHeads = 4, kSize = 128, kRotary = 64, kRatio = 4, kBudget = 512;

void bench_index(benchmark::State& state, int64_t past, int64_t tokens, int threads, cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  support::Random random(1);
  const auto numbers = [&](int64_t count) {
    std::vector<uint16_t> v(static_cast<size_t>(count));
    for (auto& x : v) x = float_to_brain(random.normal());
    return v;
  };
  const int64_t end = past + tokens, width = (kHeads + 1) * kSize;
  const auto z = numbers(tokens * width), weight = numbers(kSize);
  std::vector<float> frequencies(kRotary / 2);
  rope_frequencies(1e7, frequencies);
  auto keys = numbers(end / kRatio * kSize), open = numbers((kRatio - 1) * kSize);
  std::vector<int32_t> blocks(static_cast<size_t>(tokens * kBudget)), counts(static_cast<size_t>(tokens));
  BlockIndexArgs args;
  args.z = {z.data(), width};
  args.q_weight = args.k_weight = weight.data();
  args.frequencies = frequencies;
  args.state = {keys.data(), end / kRatio, open.data()};
  args.selection = {blocks.data(), kBudget, counts.data()};
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const auto done =
        block_index(ctx, {DType::bf16, kHeads, kSize, kRatio, kBudget, tokens, past, 1e-6f}, args, "bench");
    QUERN_CHECK(done.ok(), "the index runs");
    benchmark::DoNotOptimize(blocks.data());
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(tokens * (end / kRatio) * kSize * 2) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  struct Case {
    int64_t past, tokens;
  };
  for (const char* isa : {"scalar", "avx2", "avx512vnni"}) {
    const auto features = cpu::cap_features(cpu::detect_features(), isa);
    if (!features.ok()) continue;
    for (const Case& c : {Case{4096, 1}, Case{65536, 1}, Case{4096, 64}}) {
      for (const int threads : {1, 2}) {
        const std::string name = std::string(isa) + "/bf16/past:" + std::to_string(c.past) +
                                 "/tokens:" + std::to_string(c.tokens) + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(), bench_index, c.past, c.tokens, threads, *features)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  quern::ops::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
