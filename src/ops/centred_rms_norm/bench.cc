// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the norms of Qwen3.8-Flash-Next in bfloat16: the residual stream and the heads of a token.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/centred_rms_norm/centred_rms_norm.h"
#include "ops/element.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

struct Norm {
  const char* name;
  int64_t rows, n, group;  // for one token
};
constexpr Norm kNorms[] = {{"streams", 1, 10240, 2560}, {"q_heads", 24, 256, 256}};

void bench_norm(benchmark::State& state, const Norm& norm, int64_t tokens, cpu::Features features) {
  cpu::Pool pool(1);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  const int64_t rows = norm.rows * tokens;
  std::vector<uint16_t> x(static_cast<size_t>(rows * norm.n)), y(x.size()), weight(static_cast<size_t>(norm.n));
  support::Random random(1);
  for (auto* v : {&x, &weight}) {
    for (size_t i = 0; i < v->size(); i++) BrainElement::store(v->data(), static_cast<int64_t>(i), random.normal());
  }
  const RowLayout layout{1, 0, norm.n};
  for (auto _ : state) {
    const auto done = centred_rms_norm(ctx, {DType::bf16, rows, norm.n, norm.group, 1e-6f},
                                       {x.data(), layout, weight.data(), y.data(), layout}, "bench");
    QUERN_CHECK(done.ok(), "the norm runs");
    benchmark::DoNotOptimize(y.data());
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const Norm& norm : kNorms) {
    for (const int64_t tokens : {1, 64}) {
      for (const char* isa : {"scalar", "avx2"}) {
        const auto features = cpu::cap_features(cpu::detect_features(), isa);
        if (!features.ok()) continue;
        const std::string title = std::string(norm.name) + "/" + isa + "/tokens:" + std::to_string(tokens);
        benchmark::RegisterBenchmark(title.c_str(), bench_norm, norm, tokens, *features)
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
