// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the projection shapes of Qwen3-0.6B: whole operation (quantization and product), weights
// from memory for M = 1 and 4 (copies in turn, more than the last-level cache holds) and warm above.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "ops/matmul_nbits/matmul_nbits.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr size_t kColdBytes = size_t{96} << 20;
constexpr int64_t kColdRows = 4;

struct Projection {
  const char* name;
  int64_t k, n;
};
constexpr Projection kProjections[] = {
    {"qkv", 1024, 4096}, {"o", 2048, 1024}, {"gate_up", 1024, 3072}, {"down", 3072, 1024}, {"lm_head", 1024, 151936}};

PackedWeights random_packed(cpu::Pool& pool, int64_t k, int64_t n) {
  support::Random random(1);
  std::vector<uint64_t> codes(static_cast<size_t>(k * n / 16));
  for (auto& word : codes) word = random.bits();
  std::vector<float> scales(static_cast<size_t>(k * n / 32));
  random.fill_uniform(scales, -0.01f, 0.01f);
  PackMatMulNBitsArgs args;
  args.k = k;
  args.n = n;
  args.codes = std::as_bytes(std::span(codes));
  args.scales = std::as_bytes(std::span(scales));
  auto packed = pack_matmul_nbits(pool, args);
  QUERN_CHECK(packed.ok(), "memory for the weights");
  return std::move(packed).value();
}

void bench_product(benchmark::State& state, const Projection& shape, int64_t rows, int threads,
                   cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  std::vector<PackedWeights> weights;
  weights.push_back(random_packed(pool, shape.k, shape.n));
  const size_t copies = rows <= kColdRows ? kColdBytes / weights[0].bytes() + 1 : 1;
  while (weights.size() < copies) weights.push_back(random_packed(pool, shape.k, shape.n));
  support::Random random(2);
  std::vector<float> x(static_cast<size_t>(rows * shape.k)), y(static_cast<size_t>(rows * shape.n));
  random.fill_normal(x);

  size_t turn = 0;
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const auto done = matmul_nbits(ctx, {.rows = rows}, {x, &weights[turn], y});
    QUERN_CHECK(done.ok(), "the product runs");
    benchmark::DoNotOptimize(y.data());
    turn = (turn + 1) % weights.size();
  }
  using benchmark::Counter;
  const double iterations = static_cast<double>(state.iterations());
  const double operations = 2.0 * static_cast<double>(rows * shape.k * shape.n);
  state.counters["GOP/s"] = Counter(operations * iterations / 1e9, Counter::kIsRate);
  state.counters["GB/s"] = Counter(static_cast<double>(weights[0].bytes()) * iterations / 1e9, Counter::kIsRate);
}

}  // namespace
}  // namespace quern::ops

int main(int argc, char** argv) {
  using namespace quern;
  const auto features = cpu::usable_features();
  if (!features.ok()) {
    fprintf(stderr, "%s\n", features.error().message().c_str());
    return 2;
  }
  for (const int threads : {1, 2}) {
    for (const int64_t rows : {1, 4, 16, 128}) {
      for (const ops::Projection& shape : ops::kProjections) {
        const std::string name = std::string("matmul_nbits/") + shape.name + "/M:" + std::to_string(rows) +
                                 "/threads:" + std::to_string(threads) + "/" +
                                 std::string(ops::matmul_nbits_variant(*features));
        benchmark::RegisterBenchmark(name.c_str(), ops::bench_product, shape, rows, threads, *features)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
