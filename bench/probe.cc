// SPDX-License-Identifier: Apache-2.0
// Measures what the machine can do at this moment: read bandwidth with four streams a thread and prefetch. Speaks on
// pipes so that it can stand beside the engines under test: one line in ("go"), one line out (GB/s).
// Usage: machine_probe THREADS
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "cpu/memory.h"

namespace {

constexpr size_t kBytes = size_t{256} << 20;  // well beyond the last-level cache
constexpr int kStreams = 4;
constexpr size_t kAhead = 1024;  // bytes of prefetch distance a stream

uint64_t read_streams(const uint64_t* data, size_t words) {
  const size_t part = words / kStreams;
  uint64_t sum[kStreams] = {};
  for (size_t i = 0; i < part; i += 8) {
    for (int s = 0; s < kStreams; s++) {
      const uint64_t* p = data + static_cast<size_t>(s) * part + i;
      __builtin_prefetch(reinterpret_cast<const char*>(p) + kAhead);
      for (int k = 0; k < 8; k++) sum[s] += p[k];
    }
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  auto buffer = quern::cpu::Buffer::allocate(kBytes, quern::cpu::MemoryTag::workspace);
  if (!buffer.ok() || threads < 1) return 1;
  auto* data = buffer->as<uint64_t>();
  const size_t words = kBytes / sizeof(uint64_t);
  for (size_t i = 0; i < words; i += 512) data[i] = i;
  volatile uint64_t sink = 0;
  std::string line;
  while (std::getline(std::cin, line)) {
    double best = 0;
    for (int repeat = 0; repeat < 3; repeat++) {
      const auto start = std::chrono::steady_clock::now();
      std::vector<std::thread> workers;
      for (int t = 0; t < threads; t++) {
        workers.emplace_back([&, t] {
          const size_t share = words / static_cast<size_t>(threads);
          sink = sink + read_streams(data + share * static_cast<size_t>(t), share);
        });
      }
      for (auto& w : workers) w.join();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      best = std::max(best, static_cast<double>(kBytes) / seconds / 1e9);
    }
    std::printf("%.2f\n", best);
    std::fflush(stdout);
  }
  return 0;
}
