// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the widths of Qwen3.8-Flash-Next, with 32 of its 512 experts: one token, whose experts are
// read from memory, and prompts.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/element.h"
#include "ops/moe_matmul/moe_matmul.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int64_t kHidden = 2560, kWidth = 640;
constexpr int32_t kExperts = 32, kChosen = 10;

void bench_mixture(benchmark::State& state, int64_t tokens, int threads, cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  support::Random random(1);
  const int64_t matrix = kWidth * kHidden;
  const auto memory =
      cpu::Buffer::allocate(static_cast<size_t>((kExperts + 1) * 3 * matrix + kHidden) * 2, cpu::MemoryTag::weights);
  QUERN_CHECK(memory.ok(), "memory for the experts");
  auto* weights = memory->as<uint16_t>();
  for (int64_t i = 0; i < (kExperts + 1) * 3 * matrix + kHidden; i++) {
    weights[i] = float_to_brain(random.uniform(-0.03f, 0.03f));
  }
  std::vector<ExpertWeights> experts;
  for (int64_t e = 0; e <= kExperts; e++) {
    const uint16_t* at = weights + e * 3 * matrix;
    experts.push_back({at, at + matrix, at + 2 * matrix});
  }
  const ExpertWeights shared = experts.back();
  experts.pop_back();
  std::vector<uint16_t> x(static_cast<size_t>(tokens * kHidden)), out(x.size());
  for (auto& v : x) v = float_to_brain(random.normal());
  std::vector<int32_t> chosen(static_cast<size_t>(tokens * kChosen));
  const std::vector<float> chosen_weights(chosen.size(), 0.1f);
  const MoeMatmulArgs args{
      {x.data(), kHidden},  experts, shared, weights + (kExperts + 1) * 3 * matrix, chosen, chosen_weights,
      {out.data(), kHidden}};
  const cpu::Pool::Pass pass(pool);
  int32_t first = 0;
  for (auto _ : state) {
    // Other experts than last time: their weights come from memory.
    for (size_t i = 0; i < chosen.size(); i++) chosen[i] = (first + static_cast<int32_t>(i) * 3) % kExperts;
    first += 1;
    const auto done = moe_matmul(ctx, {DType::bf16, tokens, kHidden, kWidth, kWidth, kChosen}, args, "bench");
    QUERN_CHECK(done.ok(), "the mixture runs");
    benchmark::DoNotOptimize(out.data());
  }
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(counters.weight_bytes_read) * 1e-9, benchmark::Counter::kIsRate);
  const double products = static_cast<double>(tokens * (kChosen + 1) * 3 * matrix);
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * products, benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const char* isa : {"scalar", "avx2", "avx512vnni"}) {
    const auto features = cpu::cap_features(cpu::detect_features(), isa);
    if (!features.ok()) continue;
    for (const int64_t tokens : {1, 64}) {
      if (tokens > 1 && std::string(isa) == "scalar") continue;
      for (const int threads : {1, 2}) {
        const std::string name =
            std::string(isa) + "/bf16/tokens:" + std::to_string(tokens) + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(), bench_mixture, tokens, threads, *features)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
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
