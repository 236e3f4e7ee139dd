// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the heads of Qwen3.8-Flash-Next: one token and a chunk of a prompt, dense at the budget
// and with a full choice of blocks in a long context.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/element.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int32_t kHeads = 24, kKvHeads = 2, kSize = 256, kRatio = 4, kBudget = 512;

void bench_attention(benchmark::State& state, DType type, int64_t past, int64_t tokens, int threads,
                     cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  support::Random random(1);
  const auto rows = [&](int64_t count) {
    std::vector<uint8_t> bytes(*storage_bytes(type, count * kSize));
    with_element(type, [&](auto e) {
      for (int64_t i = 0; i < count * kSize; i++) e.store(bytes.data(), i, random.normal());
    });
    return bytes;
  };
  const int64_t capacity = past + tokens;
  const auto q = rows(tokens * kHeads), kv = rows(tokens * kKvHeads);
  auto keys = rows(capacity * kKvHeads), values = rows(capacity * kKvHeads), out = rows(tokens * kHeads);
  std::vector<int32_t> blocks(static_cast<size_t>(tokens * kBudget)), counts(static_cast<size_t>(tokens), kAllBlocks);
  int64_t attended = 0;
  for (int64_t t = 0; t < tokens; t++) {
    const int64_t seen = past + t + 1, complete = seen / kRatio;
    attended += std::min<int64_t>(complete, kBudget) * kRatio + seen % kRatio;
    if (complete <= kBudget) continue;
    counts[static_cast<size_t>(t)] = kBudget;
    for (int64_t i = 0; i < kBudget; i++) {
      blocks[static_cast<size_t>(t * kBudget + i)] = static_cast<int32_t>(i * complete / kBudget);
    }
  }
  SparseAttentionArgs args;
  args.q = args.gate = {q.data(), kHeads * kSize, kSize};
  args.k = args.v = {kv.data(), kKvHeads * kSize, kSize};
  args.cache.keys = keys.data();
  args.cache.values = values.data();
  args.cache.dtype = type;
  args.cache.head_stride = capacity * kSize;
  args.cache.row_stride = kSize;
  args.cache.capacity = capacity;
  args.selection = {blocks.data(), kBudget, counts.data()};
  args.out = {out.data(), kHeads * kSize};
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const auto done = sparse_attention(ctx, {type, kHeads, kKvHeads, kSize, tokens, past, kRatio, 1.0f / 16}, args, "");
    QUERN_CHECK(done.ok(), "attention runs");
    benchmark::DoNotOptimize(out.data());
  }
  const double row_bytes = static_cast<double>(2 * kKvHeads * kSize * bits_of(type) / 8);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(attended) * row_bytes * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = benchmark::Counter(static_cast<double>(attended) * kHeads * kSize * 4 * 1e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  struct Case {
    int64_t past, tokens;
  };
  for (const char* isa : {"scalar", "avx2", "avx512vnni"}) {
    const auto features = cpu::cap_features(cpu::detect_features(), isa);
    if (!features.ok()) continue;
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const Case& c : {Case{2047, 1}, Case{16384, 1}, Case{1024, 64}}) {
        if (c.tokens > 1 && std::string(isa) == "scalar") continue;
        for (const int threads : {1, 2}) {
          const std::string name = std::string(isa) + "/" + std::string(dtype_name(type)) +
                                   "/past:" + std::to_string(c.past) + "/tokens:" + std::to_string(c.tokens) +
                                   "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(name.c_str(), bench_attention, type, c.past, c.tokens, threads, *features)
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
