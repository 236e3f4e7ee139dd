// SPDX-License-Identifier: Apache-2.0
// Measures what the machine can do at this moment: read bandwidth of memory, and the integer and floating-point
// throughput of the instruction sets that QUERN_ISA allows. Speaks on pipes so that it can stand beside the engines
// under test: one line in ("go"), one line of JSON out. Sleeps in between.
// Usage: machine_probe THREADS
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cpu/features.h"
#include "cpu/memory.h"
#include "cpu/pool.h"
#include "cpu/read_bandwidth.h"

namespace {

using quern::cpu::Features;
using quern::cpu::Pool;

// ---- Reading ----
// The forms beside the one of cpu/read_bandwidth.h.

using quern::cpu::kReadAhead;
using quern::cpu::kReadLine;
using quern::cpu::kReadPieceBytes;
using quern::cpu::kReadStreamBytes;
using quern::cpu::kReadStreams;

constexpr size_t kBufferBytes = size_t{256} << 20;  // well beyond the last-level cache
constexpr int64_t kPieces = kBufferBytes / kReadPieceBytes;
constexpr int kToSecondLevel = 2;  // locality argument of __builtin_prefetch
constexpr int kReadRepeats = 2;

using Reader = uint64_t (*)(const std::byte* piece);

#if defined(__x86_64__)
template <bool Prefetch>
__attribute__((target("avx2"))) uint64_t read_32(const std::byte* piece) {
  __m256i seen[kReadStreams] = {};
  for (size_t i = 0; i < kReadStreamBytes; i += kReadLine) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kReadStreams; s++) {
      const std::byte* line = piece + s * kReadStreamBytes + i;
      if (Prefetch) __builtin_prefetch(line + kReadAhead, 0, kToSecondLevel);
      const auto* halves = reinterpret_cast<const __m256i*>(line);
      seen[s] = _mm256_or_si256(seen[s], _mm256_or_si256(_mm256_load_si256(halves), _mm256_load_si256(halves + 1)));
    }
  }
  uint64_t lanes[kReadStreams];
  for (int s = 0; s < kReadStreams; s++) lanes[s] = static_cast<uint64_t>(_mm256_extract_epi64(seen[s], 0));
  return lanes[0] | lanes[1] | lanes[2] | lanes[3];
}

__attribute__((target("avx512f"))) uint64_t read_64(const std::byte* piece) {
  __m512i seen[kReadStreams] = {};
  for (size_t i = 0; i < kReadStreamBytes; i += kReadLine) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kReadStreams; s++) {
      const std::byte* line = piece + s * kReadStreamBytes + i;
      __builtin_prefetch(line + kReadAhead, 0, kToSecondLevel);
      seen[s] = _mm512_or_si512(seen[s], _mm512_load_si512(line));
    }
  }
  const __m512i all = _mm512_or_si512(_mm512_or_si512(seen[0], seen[1]), _mm512_or_si512(seen[2], seen[3]));
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, all);
  return lanes[0] | lanes[1] | lanes[2] | lanes[3] | lanes[4] | lanes[5] | lanes[6] | lanes[7];
}
#endif

// ---- Throughput in registers ----
// Twelve accumulators, so that latency (4 or 5 cycles, at up to two a cycle) does not count, and so that the registers
// of every instruction set suffice.

constexpr int64_t kRounds = 30'000;
constexpr int64_t kAccumulators = 12;
constexpr int64_t kTasksAThread = 16;
constexpr int kPeakRepeats = 3;

using Spinner = void (*)(int64_t rounds);

#if defined(__x86_64__)
#define QUERN_VECTOR "+x"
#else
#define QUERN_VECTOR "+w"
#endif

// What every machine has: a product and a sum.
template <class Vector>
void spin_portable(int64_t rounds) {
  Vector sum[kAccumulators] = {};
  Vector x = {};
  for (int64_t i = 0; i < rounds; i++) {
    __asm__ volatile("" : QUERN_VECTOR(x));
#pragma GCC unroll 12
    for (Vector& s : sum) {
      s = s + s * x;
      __asm__ volatile("" : QUERN_VECTOR(s));
    }
  }
}
using Shorts = int16_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));

#if defined(__x86_64__)
#define QUERN_TWELVE(op)                                                                                      \
  op " %12, %12, %0\n" op " %12, %12, %1\n" op " %12, %12, %2\n" op " %12, %12, %3\n" op " %12, %12, %4\n" op \
     " %12, %12, %5\n" op " %12, %12, %6\n" op " %12, %12, %7\n" op " %12, %12, %8\n" op " %12, %12, %9\n" op \
     " %12, %12, %10\n" op " %12, %12, %11\n"
#define QUERN_SPINNER(name, isa, Vector, op)                                                                       \
  __attribute__((target(isa))) void name(int64_t rounds) {                                                         \
    Vector a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {}, i = {}, j = {}, k = {}, l = {};         \
    Vector x = {};                                                                                                 \
    for (int64_t n = 0; n < rounds; n++) {                                                                         \
      __asm__ volatile(QUERN_TWELVE(op)                                                                            \
                       : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g), "+x"(h), "+x"(i), "+x"(j), \
                         "+x"(k), "+x"(l)                                                                          \
                       : "x"(x));                                                                                  \
    }                                                                                                              \
  }
QUERN_SPINNER(spin_maddubs_ymm, "avx2", __m256i, "vpmaddubsw")
QUERN_SPINNER(spin_fma_ymm, "avx2,fma", __m256, "vfmadd231ps")
QUERN_SPINNER(spin_dpbusd_ymm, "avx2", __m256i, "%{vex%} vpdpbusd")
QUERN_SPINNER(spin_dpbusd_zmm, "avx512f", __m512i, "vpdpbusd")
QUERN_SPINNER(spin_fma_zmm, "avx512f", __m512, "vfmadd231ps")
#undef QUERN_SPINNER
#undef QUERN_TWELVE
#endif

// ---- Choice and report ----

template <class Function>
struct Form {
  const char* name;
  Function run;
  double operations = 0;  // of one accumulation
};

struct Forms {
  std::vector<Form<Reader>> read;
  std::vector<Form<Spinner>> int8, fp32;
};

// All that the machine has; the best of each list counts. `usable` caps what is computed with, not what is read with.
Forms list_forms(const Features& usable) {
  constexpr double kOps = 2;  // a product and a sum
  Forms forms;
#if defined(__x86_64__)
  const Features machine = quern::cpu::detect_features();
  if (machine.avx512vnni) forms.read.push_back({"64-byte loads, prefetch", read_64});
  if (machine.avx2) {
    forms.read.push_back({"32-byte loads", read_32<false>});
    forms.read.push_back({"32-byte loads, prefetch", read_32<true>});
  }
  if (usable.avx512vnni) {
    forms.int8.push_back({"vpdpbusd zmm", spin_dpbusd_zmm, 64 * kOps});
    forms.fp32.push_back({"vfmadd231ps zmm", spin_fma_zmm, 16 * kOps});
  }
  if (usable.avxvnni) forms.int8.push_back({"vpdpbusd ymm", spin_dpbusd_ymm, 32 * kOps});
  if (usable.avx2) {
    forms.int8.push_back({"vpmaddubsw ymm", spin_maddubs_ymm, 32 * kOps});
    forms.fp32.push_back({"vfmadd231ps ymm", spin_fma_ymm, 8 * kOps});
  }
#endif
  if (forms.read.empty()) forms.read.push_back({"16-byte loads, prefetch", quern::cpu::read_piece});
  if (forms.int8.empty()) forms.int8.push_back({"16-bit product and sum, 16 bytes", spin_portable<Shorts>, 8 * kOps});
  if (forms.fp32.empty()) forms.fp32.push_back({"product and sum, 16 bytes", spin_portable<Floats>, 4 * kOps});
  return forms;
}

struct Best {
  double giga = 0;  // a second
  const char* name = "";
};

// The quickest of `repeats` parallel sections of `count` tasks in each form.
template <class Function, class Work>
Best best_of(Pool& pool, const std::vector<Form<Function>>& forms, int repeats, int64_t count, Work work) {
  Best best;
  const Pool::Pass pass(pool);
  for (int repeat = 0; repeat < repeats; repeat++) {
    for (const Form<Function>& form : forms) {
      const auto start = std::chrono::steady_clock::now();
      pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) work(form, i);
      });
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      // A throughput form says how much a task does; reading always does a piece.
      const double task = form.operations > 0 ? form.operations * kRounds * kAccumulators : kReadPieceBytes;
      const double giga = static_cast<double>(count) * task / seconds / 1e9;
      if (giga > best.giga) best = {giga, form.name};
    }
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const auto usable = quern::cpu::usable_features();
  if (!usable.ok()) {
    std::fprintf(stderr, "%s\n", usable.error().message().c_str());
    return 2;
  }
  auto buffer = quern::cpu::Buffer::allocate(kBufferBytes, quern::cpu::MemoryTag::workspace);
  if (!buffer.ok() || threads < 1) return 2;
  std::memset(buffer->data(), 1, kBufferBytes);  // untouched pages would all be one page of zeros
  const Forms forms = list_forms(*usable);
  Pool pool(threads);
  volatile uint64_t sink = 0;
  const auto read = [&](const Form<Reader>& form, int64_t i) {
    sink = form.run(buffer->as<std::byte>() + static_cast<size_t>(i) * kReadPieceBytes);
  };
  const auto spin = [](const Form<Spinner>& form, int64_t) { form.run(kRounds); };
  std::string line;
  while (std::getline(std::cin, line)) {
    const Best bandwidth = best_of(pool, forms.read, kReadRepeats, kPieces, read);
    const Best int8 = best_of(pool, forms.int8, kPeakRepeats, kTasksAThread * threads, spin);
    const Best fp32 = best_of(pool, forms.fp32, kPeakRepeats, kTasksAThread * threads, spin);
    std::printf(
        R"({"read_gbps": %.2f, "read_form": "%s", "int8_gops": %.1f, "int8_form": "%s", "fp32_gflops": %.1f, "fp32_form": "%s"})"
        "\n",
        bandwidth.giga, bandwidth.name, int8.giga, int8.name, fp32.giga, fp32.name);
    std::fflush(stdout);
  }
  return 0;
}
