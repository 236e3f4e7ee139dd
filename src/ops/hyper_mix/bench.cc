// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the residual stream of Qwen3.8-Flash-Next in bfloat16.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/element.h"
#include "ops/hyper_mix/hyper_mix.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int32_t kStreams = 4;
constexpr int64_t kHidden = 2560, kWidth = kStreams * kHidden, kRank = 320;

void bench_part(benchmark::State& state, char part, int64_t rows, cpu::Features features) {
  cpu::Pool pool(1);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  support::Random random(1);
  const auto filled = [&](int64_t count) {
    std::vector<uint16_t> v(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; i++) BrainElement::store(v.data(), i, random.uniform(-1, 1));
    return v;
  };
  auto x = filled(rows * kWidth), u = filled(rows * kHidden);
  const auto logits = filled(rows * kWidth);
  const HyperMixParams params{DType::bf16, rows, kHidden, kStreams};
  for (auto _ : state) {
    const auto done =
        part == 'g' ? hyper_gate(ctx, {DType::bf16, rows, kRank, kStreams}, {u.data(), kHidden}, "bench")
        : part == 'm'
            ? hyper_mix(ctx, params, {{x.data(), kWidth}, {logits.data(), kWidth}, {u.data(), kHidden}}, "bench")
            : hyper_scatter(ctx, params, {{x.data(), kWidth}, {u.data(), kHidden}, {logits.data(), kWidth}}, "bench");
    QUERN_CHECK(done.ok(), "the part runs");
  }
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(rows), benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const auto& [part, name] : {std::pair{'g', "gate"}, {'m', "mix"}, {'s', "scatter"}}) {
    for (const int64_t rows : {1, 64}) {
      for (const char* isa : {"scalar", "avx2"}) {
        const auto features = cpu::cap_features(cpu::detect_features(), isa);
        if (!features.ok()) continue;
        const std::string title = std::string(name) + "/" + isa + "/rows:" + std::to_string(rows);
        benchmark::RegisterBenchmark(title.c_str(), bench_part, part, rows, *features)
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
