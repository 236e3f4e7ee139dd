// SPDX-License-Identifier: Apache-2.0
// Times the attention entry at the geometry of the 0.6B model (Nq = 16, Nk = 8, D = 128): prompts as GFLOP/s, single
// tokens at a depth as GB/s of cache read. One layer; every iteration reads another layer's cache, as a model does.
#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "ops/gqa_attention/gqa_attention.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int32_t kQueryHeads = 16, kKvHeads = 8, kHeadSize = 128;

struct Layers {
  Layers(int64_t layers, int64_t tokens, int64_t past) : capacity(tokens + past) {
    support::Random random(1);
    const auto fill = [&](std::vector<float>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      for (size_t i = 0; i < x.size(); i++) x[i] = i < 65536 ? random.normal() : x[i - 65536];
    };
    fill(q, tokens * kQueryHeads * kHeadSize);
    fill(kv, tokens * kKvHeads * kHeadSize);
    fill(table, capacity * kHeadSize / 2);
    fill(keys, layers * layer_floats());
    fill(values, layers * layer_floats());
    out.resize(q.size());
  }
  int64_t layer_floats() const { return kKvHeads * capacity * kHeadSize; }

  int64_t capacity;
  std::vector<float> q, kv, table, keys, values, out;
};

// Arguments: new tokens, past tokens, threads, instruction set (0 the best, 1 AVX2, 2 scalar).
void attention_layer(benchmark::State& state) {
  const int64_t tokens = state.range(0), past = state.range(1);
  const int64_t layers = tokens == 1 ? 28 : 2;
  Layers x(layers, tokens, past);
  cpu::Pool pool(static_cast<int>(state.range(2)));
  cpu::Arena arena;
  cpu::Features features = cpu::detect_features();
  if (state.range(3) >= 1) features.avx512vnni = false;
  if (state.range(3) >= 2) features = {};
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  AttentionParams p;
  p.query_heads = kQueryHeads;
  p.kv_heads = kKvHeads;
  p.head_size = kHeadSize;
  p.tokens = tokens;
  p.scale = 1 / std::sqrt(static_cast<float>(kHeadSize));
  p.rotary = kHeadSize;
  AttentionSequence s;
  s.cache.head_stride = x.capacity * kHeadSize;
  s.cache.row_stride = kHeadSize;
  s.cache.capacity = x.capacity;
  s.past = past;
  s.valid = past + tokens;
  AttentionArgs a;
  a.sequences = {&s, 1};
  a.q = x.q.data();
  a.k = a.v = x.kv.data();
  a.q_rows.outer_stride = kQueryHeads * kHeadSize;
  a.k_rows.outer_stride = a.v_rows.outer_stride = kKvHeads * kHeadSize;
  a.cos = a.sin = x.table.data();
  a.table_rows = x.capacity;
  a.out = x.out.data();
  cpu::Pool::Pass pass(pool);
  int64_t layer = 0;
  for (auto _ : state) {
    s.cache.keys = x.keys.data() + layer * x.layer_floats();
    s.cache.values = x.values.data() + layer * x.layer_floats();
    if (!attention(ctx, p, a, "bench").ok()) state.SkipWithError("refused");
    layer = (layer + 1) % layers;
  }
  const double pairs = static_cast<double>(tokens) * static_cast<double>(past) +
                       static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GFLOP/s"] = benchmark::Counter(pairs * kQueryHeads * kHeadSize * 4 * 1e-9, rate);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(2 * x.layer_floats()) * sizeof(float) * 1e-9, rate);
}
BENCHMARK(attention_layer)
    ->ArgNames({"tokens", "past", "threads", "isa"})
    ->ArgsProduct({{512}, {0}, {1, 2}, {0, 1}})
    ->ArgsProduct({{128}, {2048}, {2}, {0}})
    ->ArgsProduct({{1}, {128, 1024, 4096}, {1, 2}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quern::ops

BENCHMARK_MAIN();
