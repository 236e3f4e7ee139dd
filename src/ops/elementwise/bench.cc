// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the gate of Qwen3-0.6B: the sigmoid and the product over 3,072 channels a token.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/elementwise/elementwise.h"
#include "ops/kernel_list.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int64_t kChannels = 3072;

void bench_gate(benchmark::State& state, ElementwiseOp op, int64_t tokens, int threads, cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  std::vector<float> a(static_cast<size_t>(tokens * kChannels)), b(a.size()), y(a.size());
  support::Random random(1);
  random.fill_normal(a, 4);
  random.fill_normal(b);
  const Shape shape{tokens, kChannels};
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    if (op == ElementwiseOp::sigmoid) {
      sigmoid(ctx, a, y.data());
    } else {
      const auto done = binary(ctx, {op, DType::f32, shape, shape}, {a.data(), b.data(), y.data()}, "bench");
      QUERN_CHECK(done.ok(), "the operator runs");
    }
    benchmark::DoNotOptimize(y.data());
  }
  const double streams = op == ElementwiseOp::sigmoid ? 2 : 3;
  state.counters["GB/s"] = benchmark::Counter(streams * static_cast<double>(a.size() * sizeof(float)) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (ElementwiseOp op : {ElementwiseOp::sigmoid, ElementwiseOp::mul}) {
    for (int64_t tokens : {1, 512}) {
      for (int threads : {1, 2}) {
        for (const char* isa : {"scalar", "avx2", "avx512vnni"}) {
          const auto features = cpu::cap_features(cpu::detect_features(), isa);
          if (!features.ok()) continue;
          const std::string name = std::string(elementwise_variant(op, DType::f32, *features)) +
                                   "/tokens:" + std::to_string(tokens) + "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(name.c_str(), bench_gate, op, tokens, threads, *features)
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
