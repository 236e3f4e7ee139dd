// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at projections of Qwen3.8-Flash-Next: one row (weights from memory, copies in turn) and more
// rows. The scalar reference is left out: it takes minutes.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/element.h"
#include "ops/kernel_list.h"
#include "ops/linear/linear.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

struct Projection {
  const char* name;
  int64_t n, k;
};
constexpr Projection kProjections[] = {{"in_proj_qkv", 10240, 2560}, {"mix_down", 320, 10240}, {"mix_up", 10240, 320}};
// More than the last-level cache holds.
constexpr size_t kColdBytes = size_t{96} << 20;

void bench_linear(benchmark::State& state, const Projection& shape, DType type, int64_t rows, int threads,
                  cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  const size_t count = static_cast<size_t>(shape.k * shape.n), bytes = count * static_cast<size_t>(bits_of(type) / 8);
  const size_t copies = rows == 1 ? kColdBytes / bytes + 1 : 1;
  support::Random random(1);
  const auto buffer = [&](size_t size) {
    auto made = cpu::Buffer::allocate(size, cpu::MemoryTag::weights);
    QUERN_CHECK(made.ok(), "memory for the benchmark");
    return std::move(made).value();
  };
  const cpu::Buffer w = buffer(bytes * copies), x = buffer(static_cast<size_t>(rows * shape.k) * 4),
                    y = buffer(static_cast<size_t>(rows * shape.n) * 4);
  with_element(type, [&](auto e) {
    for (size_t i = 0; i < count * copies; i++) e.store(w.data(), static_cast<int64_t>(i), random.uniform(-1, 1));
    for (int64_t i = 0; i < rows * shape.k; i++) e.store(x.data(), i, random.uniform(-1, 1));
  });
  size_t turn = 0;
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const auto done = linear(ctx, {type, type, rows, shape.n, shape.k},
                             {{x.data(), shape.k}, w.as<std::byte>() + turn * bytes, {y.data(), shape.n}}, "bench");
    QUERN_CHECK(done.ok(), "the projection runs");
    benchmark::DoNotOptimize(y.data());
    turn = (turn + 1) % copies;
  }
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(rows) * static_cast<double>(count), rate);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(bytes), rate);
}

void register_all() {
  for (const Projection& shape : kProjections) {
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const int64_t rows : {1, 4, 64, 512}) {
        for (const int threads : {1, 2}) {
          for (const char* isa : {"avx2", "avx512vnni"}) {
            const auto features = cpu::cap_features(cpu::detect_features(), isa);
            if (!features.ok()) continue;
            const std::string name = std::string(linear_variant(type, *features)) + "/" + shape.name +
                                     "/m:" + std::to_string(rows) + "/threads:" + std::to_string(threads);
            benchmark::RegisterBenchmark(name.c_str(), bench_linear, shape, type, rows, threads, *features)
                ->UseRealTime()
                ->Unit(benchmark::kMicrosecond);
          }
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
