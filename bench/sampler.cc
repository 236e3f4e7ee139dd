// SPDX-License-Identifier: Apache-2.0
// What choosing a token costs over the vocabulary of Qwen3, by what is asked of the choice, and what looking for
// circles of tokens adds.
#include "engine/sampler.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "engine/repetition_guard.h"
#include "tests/support/random.h"

namespace quern::engine {
namespace {

constexpr size_t kVocab = 151'936;

void sample(benchmark::State& state, const SamplingOptions& options) {
  std::vector<float> logits(kVocab);
  support::Random random(1);
  random.fill_normal(logits, 3);
  Sampler sampler(options);
  for (auto _ : state) QUERN_CHECK(sampler.sample(logits).ok(), "the row is finite");
}

SamplingOptions options_with(void (*change)(SamplingOptions&)) {
  SamplingOptions options;
  change(options);
  return options;
}

BENCHMARK_CAPTURE(sample, greedy, options_with([](SamplingOptions& o) { o.greedy = true; }));
BENCHMARK_CAPTURE(sample, temperature, options_with([](SamplingOptions& o) { o.temperature = 0.6f; }));
BENCHMARK_CAPTURE(sample, qwen3, options_with([](SamplingOptions& o) {
                    o.temperature = 0.6f;
                    o.top_k = 20;
                    o.top_p = 0.95f;
                  }));
BENCHMARK_CAPTURE(sample, qwen3_with_penalty, options_with([](SamplingOptions& o) {
                    o.temperature = 0.6f;
                    o.top_k = 20;
                    o.top_p = 0.95f;
                    o.repetition_penalty = 1.1f;
                  }));
BENCHMARK_CAPTURE(sample, min_p, options_with([](SamplingOptions& o) { o.min_p = 0.05f; }));

void guard(benchmark::State& state) {
  RepetitionGuard guard(RepetitionGuard::kDefaultTimes);
  int32_t id = 0;
  for (auto _ : state) benchmark::DoNotOptimize(guard.push(id++ % 1000));
}
BENCHMARK(guard);

}  // namespace
}  // namespace quern::engine

BENCHMARK_MAIN();
