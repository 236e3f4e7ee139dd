// SPDX-License-Identifier: Apache-2.0
// Times the attention entry at the geometry of the 0.6B model (Nq = 16, Nk = 8, D = 128) over every type of cache:
// prompts as GFLOP/s, single tokens at a depth as GB/s of cache read. One layer; every iteration reads another layer's
// cache, as a model does.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "cpu/memory.h"
#include "ops/gqa_attention/gqa_attention.h"
#include "tests/support/random.h"

namespace quern::ops {
namespace {

constexpr int32_t kQueryHeads = 16, kKvHeads = 8, kHeadSize = 128;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8};

struct Layers {
  Layers(int64_t layers, int64_t tokens, int64_t past, DType kept) : type(kept), capacity(tokens + past) {
    support::Random random(1);
    const auto fill = [&](std::vector<float>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      for (size_t i = 0; i < x.size(); i++) x[i] = i < kRepeat ? random.normal() : x[i - kRepeat];
    };
    fill(q, tokens * kQueryHeads * kHeadSize);
    fill(kv, tokens * kKvHeads * kHeadSize);
    fill(table, capacity * kHeadSize / 2);
    scales.assign(static_cast<size_t>(kKvHeads * capacity), kCodeUnit);
    for (cpu::Buffer* half : {&keys, &values}) {
      auto buffer = cpu::Buffer::allocate(static_cast<size_t>(layers * layer_bytes()), cpu::MemoryTag::cache);
      if (!buffer.ok()) std::abort();
      *half = std::move(*buffer);
      write_pattern(half->as<char>(), layers * layer_elements());
    }
    out.resize(q.size());
  }
  int64_t element_bytes() const { return bits_of(type) / 8; }
  int64_t layer_elements() const { return kKvHeads * capacity * kHeadSize; }
  int64_t layer_bytes() const { return layer_elements() * element_bytes(); }
  // The numbers of q over and over; what is written already is copied, since gigabytes are filled.
  void write_pattern(char* base, int64_t elements) const {
    const int64_t first = std::min(elements, static_cast<int64_t>(q.size()));
    for (int64_t i = 0; i < first; i++) write(base, i, q[static_cast<size_t>(i)]);
    for (int64_t done = first; done < elements;) {
      const int64_t count = std::min(done, elements - done);
      std::memcpy(base + done * element_bytes(), base, static_cast<size_t>(count * element_bytes()));
      done += count;
    }
  }
  void write(char* base, int64_t i, float x) const {
    char* to = base + i * element_bytes();
    const uint16_t half = float_to_half(x), brain = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
    const auto code = static_cast<int8_t>(x / kCodeUnit);
    if (type == DType::f32) std::memcpy(to, &x, sizeof(x));
    if (type == DType::f16) std::memcpy(to, &half, sizeof(half));
    if (type == DType::bf16) std::memcpy(to, &brain, sizeof(brain));
    if (type == DType::i8) std::memcpy(to, &code, sizeof(code));
  }

  static constexpr size_t kRepeat = 65536;
  static constexpr float kCodeUnit = 0.05f;  // numbers lie within +-6
  DType type;
  int64_t capacity;
  std::vector<float> q, kv, table, scales, out;
  cpu::Buffer keys, values;
};

// Arguments: new tokens, past tokens, threads, instruction set (0 the best, 1 AVX2, 2 scalar, 3 AVX-512 without BF16),
// index into kTypes.
void attention_layer(benchmark::State& state) {
  const int64_t tokens = state.range(0), past = state.range(1);
  const int64_t layers = tokens == 1 ? 28 : 2;
  Layers x(layers, tokens, past, kTypes[state.range(4)]);
  state.SetLabel(std::string(dtype_name(x.type)));
  cpu::Pool pool(static_cast<int>(state.range(2)));
  cpu::Arena arena;
  cpu::Features features = cpu::detect_features();
  if (state.range(3) == 1) features = {.avx2 = true};
  if (state.range(3) == 2) features = {};
  if (state.range(3) == 3) features = {.avx2 = true, .avx512vnni = true};
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
  s.cache.dtype = x.type;
  s.cache.key_scales = s.cache.value_scales = x.scales.data();
  s.cache.scale_head_stride = x.capacity;
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
    s.cache.keys = x.keys.as<char>() + layer * x.layer_bytes();
    s.cache.values = x.values.as<char>() + layer * x.layer_bytes();
    if (!attention(ctx, p, a, "bench").ok()) state.SkipWithError("refused");
    layer = (layer + 1) % layers;
  }
  const double pairs = static_cast<double>(tokens) * static_cast<double>(past) +
                       static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GFLOP/s"] = benchmark::Counter(pairs * kQueryHeads * kHeadSize * 4 * 1e-9, rate);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(2 * x.layer_bytes()) * 1e-9, rate);
}
BENCHMARK(attention_layer)
    ->ArgNames({"tokens", "past", "threads", "isa", "type"})
    ->ArgsProduct({{128, 512, 4096}, {0}, {1, 2}, {0, 1}, {0}})
    ->ArgsProduct({{512, 4096}, {0}, {2}, {0}, {1, 2, 3}})
    ->ArgsProduct({{128}, {2048}, {2}, {0}, {0, 1, 2, 3}})
    ->ArgsProduct({{1}, {128, 1024, 4096}, {1, 2}, {0, 1}, {0, 1, 2, 3}})
    ->ArgsProduct({{512, 4096}, {0}, {1, 2}, {3}, {2}})
    ->ArgsProduct({{1}, {128, 1024, 4096}, {1, 2}, {3}, {2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quern::ops

BENCHMARK_MAIN();
