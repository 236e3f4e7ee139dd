// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the norms of Qwen3-0.6B: hidden rows with and without a residual addition, and heads.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/kernel_list.h"
#include "ops/rms_norm/rms_norm.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

struct Norm {
  const char* name;
  int64_t rows, n;  // for one token
  bool skip;
};
constexpr Norm kNorms[] = {{"hidden", 1, 1024, false}, {"hidden_skip", 1, 1024, true}, {"q_heads", 16, 128, false}};

void bench_norm(benchmark::State& state, const Norm& norm, int64_t tokens, int threads, cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  const int64_t rows = norm.rows * tokens;
  std::vector<float> x(static_cast<size_t>(rows * norm.n)), skip(x.size()), y(x.size()), residual(x.size());
  std::vector<float> gamma(static_cast<size_t>(norm.n));
  support::Random random(1);
  for (auto* v : {&x, &skip, &gamma}) random.fill_normal(*v);
  RmsNormArgs args{x.data(), {1, 0, norm.n}, gamma.data(), nullptr, nullptr, y.data(), nullptr};
  if (norm.skip) {
    args.skip = skip.data();
    args.residual = residual.data();
  }
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const auto done = rms_norm(ctx, {rows, norm.n, 1e-6f, rows}, args, "bench");
    QUERN_CHECK(done.ok(), "the norm runs");
    benchmark::DoNotOptimize(y.data());
  }
  const double streams = norm.skip ? 4 : 2;
  state.counters["GB/s"] = benchmark::Counter(streams * static_cast<double>(x.size() * sizeof(float)) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const Norm& norm : kNorms) {
    for (int64_t tokens : {1, 512}) {
      for (int threads : {1, 2}) {
        for (const char* isa : {"scalar", "avx2"}) {
          const auto features = cpu::cap_features(cpu::detect_features(), isa);
          if (!features.ok()) continue;
          const std::string name = std::string(rms_norm_variant(*features)) + "/" + norm.name +
                                   "/tokens:" + std::to_string(tokens) + "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(name.c_str(), bench_norm, norm, tokens, threads, *features)
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
        }
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
