// SPDX-License-Identifier: Apache-2.0
// Benchmarks of this room at the projection shapes of Qwen3-0.6B: whole operation (rows prepared and product), weights
// from memory for M = 1 and 4 (copies in turn, more than the last-level cache holds) and warm above.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
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

// What is multiplied with what, beside the shape.
struct Kind {
  const char* name;
  int64_t bits = 4, block = 32;
  NBitsZeros zeros = NBitsZeros::none;
  bool exact_scales = false;  // bf16 values, so that packing stores them compactly
  NBitsActivations activations = NBitsActivations::s8;
};
constexpr Kind kKinds[] = {
    {"u4b32"},
    {.name = "u4b32_bf16_scales", .exact_scales = true},
    {.name = "u4b32_zeros", .zeros = NBitsZeros::u8},
    {.name = "u4b128", .block = 128},
    {.name = "u8b32", .bits = 8},
    {.name = "u4b32_float_rows", .activations = NBitsActivations::f32},
};

PackedWeights random_packed(cpu::Pool& pool, int64_t k, int64_t n, const Kind& kind) {
  support::Random random(1);
  const auto blocks = static_cast<size_t>(n * (k / kind.block));
  std::vector<uint64_t> codes(static_cast<size_t>(k * n * kind.bits / 64));
  for (auto& word : codes) word = random.bits();
  std::vector<float> scales(blocks);
  random.fill_uniform(scales, -0.01f, 0.01f);
  if (kind.exact_scales) std::ranges::fill(scales, 0.0078125f);
  std::vector<uint8_t> zeros(kind.zeros == NBitsZeros::u8 ? blocks * static_cast<size_t>(kind.bits) / 8 : 0, 0x77);
  PackMatMulNBitsArgs args;
  args.form = {.k = k, .n = n, .bits = kind.bits, .block = kind.block, .zeros = kind.zeros};
  args.codes = std::as_bytes(std::span(codes));
  args.scales = std::as_bytes(std::span(scales));
  args.zero_points = std::as_bytes(std::span(zeros));
  auto packed = pack_matmul_nbits(pool, args);
  QUERN_CHECK(packed.ok(), "memory for the weights");
  return std::move(packed).value();
}

void bench_product(benchmark::State& state, const Projection& shape, const Kind& kind, int64_t rows, int threads,
                   cpu::Features features) {
  cpu::Pool pool(threads);
  cpu::Arena arena;
  Counters counters;
  const Context ctx{&pool, &arena, features, &counters};
  std::vector<PackedWeights> weights;
  weights.push_back(random_packed(pool, shape.k, shape.n, kind));
  const size_t copies = rows <= kColdRows ? kColdBytes / weights[0].bytes() + 1 : 1;
  while (weights.size() < copies) weights.push_back(random_packed(pool, shape.k, shape.n, kind));
  support::Random random(2);
  std::vector<float> x(static_cast<size_t>(rows * shape.k)), y(static_cast<size_t>(rows * shape.n));
  random.fill_normal(x);

  size_t turn = 0;
  const cpu::Pool::Pass pass(pool);
  for (auto _ : state) {
    const NBitsProduct product{&weights[turn], {}, y};
    const auto done = matmul_nbits(ctx, {.rows = rows, .activations = kind.activations}, {x, {&product, 1}});
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
        for (const ops::Kind& kind : ops::kKinds) {
          const std::string name = fmt::format("matmul_nbits/{}/{}/M:{}/threads:{}/{}", kind.name, shape.name, rows,
                                               threads, ops::matmul_nbits_variant(*features, kind.activations));
          benchmark::RegisterBenchmark(name.c_str(), ops::bench_product, shape, kind, rows, threads, *features)
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
