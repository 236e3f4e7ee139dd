// SPDX-License-Identifier: Apache-2.0
// Owns what benchmarks of rooms over rows of tokens share: their values, the loop over one call, and the runs for a
// token and for a prompt on one and two threads. For benchmark code only.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/context.h"
#include "ops/element.h"
#include "tests/support/random.h"

namespace quern::support {

// Values within [-1, 1) of type f32 or bf16.
inline std::vector<std::byte> values(DType type, int64_t count) {
  Random random(1);
  std::vector<std::byte> v(static_cast<size_t>(count * bits_of(type) / 8));
  ops::with_element(type, [&](auto element) {
    for (int64_t i = 0; i < count; i++) decltype(element)::store(v.data(), i, random.uniform(-1, 1));
  });
  return v;
}
inline std::vector<std::byte> brain_values(int64_t count) { return values(DType::bf16, count); }

// Times call(ctx), a Result<void>, and reports tokens per second.
template <class Call>
void time_tokens(benchmark::State& state, int64_t tokens, int threads, Call call) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  ops::Counters counters;
  const ops::Context ctx{&pool, &arena, cpu::detect_features(), &counters};
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) QUERN_CHECK(call(ctx).ok(), "the room runs");
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}

// Registers bench(state, tokens, threads) under "<title>/tokens:N/threads:T".
template <class Bench>
void register_token_bench(const std::string& title, Bench bench) {
  for (const int64_t tokens : {1, 64}) {
    for (const int threads : {1, 2}) {
      const std::string name = title + "/tokens:" + std::to_string(tokens) + "/threads:" + std::to_string(threads);
      benchmark::RegisterBenchmark(name.c_str(), bench, tokens, threads)->UseRealTime()->Unit(benchmark::kMicrosecond);
    }
  }
}

// The body of main().
inline int run_token_bench(int argc, char** argv, const std::string& room,
                           void (*bench)(benchmark::State& state, int64_t tokens, int threads)) {
  benchmark::Initialize(&argc, argv);
  register_token_bench(room, bench);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

// The same for a room of two element types: bench(state, type, tokens, threads) under "<room>/<type>/..".
inline int run_token_bench(int argc, char** argv, const std::string& room,
                           void (*bench)(benchmark::State& state, DType type, int64_t tokens, int threads)) {
  benchmark::Initialize(&argc, argv);
  for (const DType type : {DType::f32, DType::bf16}) {
    register_token_bench(room + "/" + std::string(dtype_name(type)),
                         [=](benchmark::State& s, int64_t tokens, int threads) { bench(s, type, tokens, threads); });
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace quern::support
