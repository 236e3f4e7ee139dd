// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at a Gated DeltaNet layer of Qwen3.8-Flash-Next in bfloat16: one token (states from memory,
// copies in turn, as the layers of a token bring them) and a chunk, in both forms.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "ops/element.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int32_t kKeyHeads = 16, kValueHeads = 48, kSize = 128;
constexpr int64_t kWidth = int64_t{2} * kKeyHeads * kSize + int64_t{kValueHeads} * kSize;
constexpr size_t kStateFloats = size_t{kValueHeads} * kSize * kSize;
// More than the last-level cache holds.
constexpr size_t kStates = 36;

void bench_rule(benchmark::State& state, DeltaForm form, int64_t tokens, int threads, cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  support::Random random(1);
  const auto filled = [&](int64_t count) {
    std::vector<uint16_t> v(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; i++) BrainElement::store(v.data(), i, random.uniform(-1, 1));
    return v;
  };
  const auto qkv = filled(tokens * kWidth), b = filled(tokens * kValueHeads), a = filled(tokens * kValueHeads);
  const auto a_log = filled(kValueHeads), dt_bias = filled(kValueHeads);
  auto out = filled(tokens * kValueHeads * kSize);
  auto states = cpu::Buffer::allocate(kStates * kStateFloats * sizeof(float), cpu::MemoryTag::cache);
  QUERN_CHECK(states.ok(), "memory for the benchmark");
  size_t turn = 0;
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const auto done = gated_delta_rule(ctx, {DType::bf16, form, tokens, kKeyHeads, kValueHeads, kSize, kSize},
                                       {{qkv.data(), kWidth},
                                        {b.data(), kValueHeads},
                                        {a.data(), kValueHeads},
                                        a_log.data(),
                                        dt_bias.data(),
                                        states->as<float>() + turn * kStateFloats,
                                        {out.data(), int64_t{kValueHeads} * kSize}},
                                       "bench");
    QUERN_CHECK(done.ok(), "the rule runs");
    turn = (turn + 1) % kStates;
  }
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  // A state is read and written once a call.
  state.counters["GB/s"] = benchmark::Counter(2e-9 * static_cast<double>(kStateFloats * sizeof(float)), rate);
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), rate);
}

void register_all() {
  for (const auto& [form, name] : {std::pair{DeltaForm::recurrent, "recurrent"}, {DeltaForm::chunked, "chunked"}}) {
    for (const int64_t tokens : {1, 64}) {
      for (const int threads : {1, 2}) {
        for (const char* isa : {"scalar", "avx2", "avx512vnni"}) {
          const auto features = cpu::cap_features(cpu::detect_features(), isa);
          if (!features.ok()) continue;
          const std::string title = std::string(name) + "/" + isa + "/tokens:" + std::to_string(tokens) +
                                    "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(title.c_str(), bench_rule, form, tokens, threads, *features)
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
