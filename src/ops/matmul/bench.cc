// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the projections of Qwen3-0.6B, as a float32 export has them: one row (weights from memory,
// copies in turn) and prefill. The scalar reference is left out: it takes minutes.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/kernel_list.h"
#include "ops/matmul/matmul.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

struct Projection {
  const char* name;
  int64_t k, n;
};
constexpr Projection kProjections[] = {{"qkv", 1024, 4096}, {"down", 3072, 1024}};
// More than the last-level cache holds.
constexpr size_t kColdBytes = size_t{96} << 20;

void bench_product(benchmark::State& state, const Projection& shape, int64_t rows, int threads,
                   cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  const size_t count = static_cast<size_t>(shape.k * shape.n);
  const size_t copies = rows == 1 ? kColdBytes / (count * sizeof(float)) + 1 : 1;
  std::vector<float> a(static_cast<size_t>(rows * shape.k)), b(count * copies), y(static_cast<size_t>(rows * shape.n));
  support::Random random(1);
  random.fill_normal(a);
  random.fill_uniform(b, -1, 1);
  size_t turn = 0;
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const auto done =
        matmul(ctx, {{rows, shape.k}, {shape.k, shape.n}}, {a.data(), b.data() + turn * count, y.data()}, "bench");
    QUERN_CHECK(done.ok(), "the product runs");
    benchmark::DoNotOptimize(y.data());
    turn = (turn + 1) % copies;
  }
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(rows) * static_cast<double>(count), rate);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(count * sizeof(float)), rate);
}

void register_all() {
  for (const Projection& shape : kProjections) {
    for (int64_t rows : {1, 4, 32, 512}) {
      for (int threads : {1, 2}) {
        for (const char* isa : {"avx2", "avx512vnni"}) {
          const auto features = cpu::cap_features(cpu::detect_features(), isa);
          if (!features.ok()) continue;
          const std::string name = std::string(matmul_variant(*features)) + "/" + shape.name +
                                   "/m:" + std::to_string(rows) + "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(name.c_str(), bench_product, shape, rows, threads, *features)
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
