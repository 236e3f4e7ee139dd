// SPDX-License-Identifier: Apache-2.0
// Holds cpu/pool.h to its contract: exact cover, inline rules, no lost wake-up, no idle burning. Most useful when also
// built with the thread sanitizer.
#include "cpu/pool.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace quern::cpu {
namespace {

struct Range {
  int64_t begin;
  int64_t end;
  int worker;
};

std::vector<Range> ranges_of(Pool& pool, int64_t count, int64_t chunk) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.parallel_for(count, chunk, [&](int64_t begin, int64_t end, int worker) {
    const std::lock_guard lock(mutex);
    ranges.push_back({begin, end, worker});
  });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

void expect_exact_cover(const std::vector<Range>& ranges, int64_t count, int64_t chunk, int threads) {
  int64_t next = 0;
  for (const Range& range : ranges) {
    ASSERT_EQ(range.begin, next);
    ASSERT_EQ(range.begin % chunk, 0);
    ASSERT_GT(range.end, range.begin);
    ASSERT_LE(range.end - range.begin, chunk);
    ASSERT_GE(range.worker, 0);
    ASSERT_LT(range.worker, threads);
    next = range.end;
  }
  ASSERT_EQ(next, count);
}

// Every thread must come, or the threads that came wait in vain: a lost wake-up shows as a timeout.
bool all_threads_meet(Pool& pool) {
  constexpr int64_t kPatienceNs = 20'000'000'000;
  const int threads = pool.threads();
  std::atomic<int> arrived{0};
  std::atomic<bool> late{false};
  const int64_t start = now_ns();
  pool.parallel_for(threads, 1, [&](int64_t, int64_t, int) {
    arrived.fetch_add(1);
    while (arrived.load() < threads && !late.load()) {
      std::this_thread::yield();
      if (now_ns() - start > kPatienceNs) late.store(true);
    }
  });
  return !late.load();
}

// Ends a repetition early on a machine so busy that threads wait long for a processor.
class Budget {
 public:
  bool left() const { return ms_since(start_) < 3'000; }

 private:
  const int64_t start_ = now_ns();
};

double process_cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

TEST(Pool, RangesCoverTheCountExactlyOnce) {
  for (int threads : {1, 2, 3, 5}) {
    Pool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    ASSERT_TRUE(all_threads_meet(pool));
    for (int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{64}, INT64_MAX}) {
      for (int64_t count : {0, 1, 2, 3, 4, 63, 64, 65, 1000}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, chunk " << chunk << ", count " << count);
        expect_exact_cover(ranges_of(pool, count, chunk), count, chunk, threads);
      }
    }
  }
}

TEST(Pool, CountsNearTheLargestNumberDoNotOverflow) {
  Pool pool(2);
  const int64_t chunk = INT64_MAX / 2;
  expect_exact_cover(ranges_of(pool, INT64_MAX, chunk), INT64_MAX, chunk, 2);
}

TEST(Pool, NegativeCountCallsNothing) {
  Pool pool(2);
  EXPECT_TRUE(ranges_of(pool, -5, 1).empty());
}

TEST(Pool, OneChunkRunsOnTheCallingThread) {
  Pool pool(3);
  for (int i = 0; i < 100; ++i) {
    std::thread::id ran;
    int by = -1;
    pool.parallel_for(8, 8, [&](int64_t, int64_t, int worker) {
      ran = std::this_thread::get_id();
      by = worker;
    });
    ASSERT_EQ(ran, std::this_thread::get_id());
    ASSERT_EQ(by, 0);
  }
}

TEST(Pool, EveryThreadTakesPartWhenEachHasWorkOutsideOfAPass) {
  Pool pool(4);
  const Budget budget;
  for (int i = 0; i < 1000 && budget.left(); ++i) ASSERT_TRUE(all_threads_meet(pool)) << "section " << i;
}

TEST(Pool, EveryThreadTakesPartWhenEachHasWorkInsideAPass) {
  Pool pool(4);
  const Pool::Pass pass(pool);
  const Budget budget;
  for (int i = 0; i < 1000 && budget.left(); ++i) ASSERT_TRUE(all_threads_meet(pool)) << "section " << i;
}

// The pauses are spread around the time after which a spinning worker goes to sleep.
TEST(Pool, NoWakeUpIsLostWhileWorkersFallAsleep) {
  Pool pool(2);
  const Budget budget;
  for (int i = 0; i < 1000 && budget.left(); ++i) {
    const Pool::Pass pass(pool);
    const int64_t until = now_ns() + 60'000 + (i % 50) * 1'000;
    while (now_ns() < until) {
    }
    ASSERT_TRUE(all_threads_meet(pool)) << "section " << i;
  }
}

// Outside of a pass a worker goes to sleep right after a section, just when the next one may open.
TEST(Pool, NoWakeUpIsLostBetweenSectionsInQuickSuccession) {
  Pool pool(2);
  const Budget budget;
  for (int i = 0; i < 20'000 && budget.left(); ++i) {
    const int64_t until = now_ns() + i % 16 * 50;
    while (now_ns() < until) {
    }
    ASSERT_TRUE(all_threads_meet(pool)) << "section " << i;
  }
}

// The sums are not atomic: a worker that ran a range of a section that is over, or with the function of another one,
// would spoil them (and the thread sanitizer would see it).
void many_tiny_sections(Pool& pool, int sections) {
  std::vector<int64_t> values(64);
  for (int i = 0; i < sections; ++i) {
    const int64_t count = 2 + i % 62;
    const int64_t chunk = 1 + i % 3;
    pool.parallel_for(count, chunk, [&values, i](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) values[static_cast<size_t>(j)] += i;
    });
    for (int64_t j = 0; j < count; ++j) {
      ASSERT_EQ(values[static_cast<size_t>(j)], i) << "section " << i;
      values[static_cast<size_t>(j)] = 0;
    }
  }
}

TEST(Pool, ManyTinySectionsWithSpinningWorkers) {
  for (int threads : {2, 4}) {
    Pool pool(threads);
    ASSERT_TRUE(all_threads_meet(pool));  // else the sections are over before the workers have started
    const Pool::Pass pass(pool);
    many_tiny_sections(pool, 20'000);
  }
}

TEST(Pool, ManyTinySectionsWithSleepingWorkers) {
  for (int threads : {2, 4}) {
    Pool pool(threads);
    ASSERT_TRUE(all_threads_meet(pool));
    many_tiny_sections(pool, 5'000);
  }
}

TEST(Pool, ScratchOfOneWorkerIsNeverSharedInASection) {
  Pool pool(4);
  ASSERT_TRUE(all_threads_meet(pool));
  const Pool::Pass pass(pool);
  for (int i = 0; i < 500; ++i) {
    std::vector<int64_t> per_worker(4);  // not atomic on purpose
    pool.parallel_for(200, 1, [&](int64_t begin, int64_t end, int worker) {
      per_worker[static_cast<size_t>(worker)] += end - begin;
    });
    int64_t sum = 0;
    for (int64_t n : per_worker) sum += n;
    ASSERT_EQ(sum, 200);
  }
}

TEST(Pool, NestedCallsRunInlineOnTheThreadThatMakesThem) {
  Pool pool(3);
  ASSERT_TRUE(all_threads_meet(pool));
  const Pool::Pass pass(pool);
  for (int i = 0; i < 300; ++i) {
    std::atomic<int64_t> sum{0};
    std::atomic<int> elsewhere{0};
    pool.parallel_for(16, 1, [&](int64_t, int64_t, int) {
      const std::thread::id outer = std::this_thread::get_id();
      int64_t local = 0;  // not atomic: inline means one thread
      int64_t next = 0;
      pool.parallel_for(100, 7, [&](int64_t begin, int64_t end, int worker) {
        if (std::this_thread::get_id() != outer || worker != 0 || begin != next) ++elsewhere;
        next = end;
        local += end - begin;
      });
      sum += local;
    });
    ASSERT_EQ(sum.load(), 1600);
    ASSERT_EQ(elsewhere.load(), 0);
  }
}

TEST(Pool, TwoCallersAtOnceBothGetTheirWorkDone) {
  Pool pool(3);
  ASSERT_TRUE(all_threads_meet(pool));
  const auto caller = [&pool] {
    for (int round = 0; round < 20; ++round) {
      const Pool::Pass pass(pool);
      many_tiny_sections(pool, 200);
    }
  };
  std::thread other(caller);
  caller();
  other.join();
}

TEST(Pool, CallerSleepsWhileALongRangeOfAWorkerEnds) {
  Pool pool(2);
  ASSERT_TRUE(all_threads_meet(pool));
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> worker_began{false};
  const double cpu_before = process_cpu_ms();
  pool.parallel_for(2, 1, [&](int64_t, int64_t, int) {
    if (std::this_thread::get_id() == caller) {
      while (!worker_began.load()) std::this_thread::yield();
    } else {
      worker_began.store(true);
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
  });
  EXPECT_LT(process_cpu_ms() - cpu_before, 40);
}

// The time that the process computes for sections with long pauses between them.
double cpu_ms_of_rare_sections(Pool& pool) {
  const double before = process_cpu_ms();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(all_threads_meet(pool));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return process_cpu_ms() - before;
}

TEST(Pool, WorkersSpinAfterASectionOnlyInsideAPass) {
  Pool pool(3);
  ASSERT_TRUE(all_threads_meet(pool));
  double outside = 0;
  double inside = 0;
  // On a busy machine threads that spin lose their processors, and those that sleep come late: a few attempts.
  for (int attempt = 0; attempt < 5 && outside >= 0.75 * inside; ++attempt) {
    outside = inside = 0;
    for (int i = 0; i < 3; ++i) {
      outside += cpu_ms_of_rare_sections(pool);
      const Pool::Pass pass(pool);
      inside += cpu_ms_of_rare_sections(pool);
    }
  }
  EXPECT_LT(outside, 0.75 * inside);
}

TEST(Pool, AHintOfWhatWillBeReadDecidesNothing) {
  Pool pool(3);
  const Pool::Pass pass(pool);
  const std::vector<std::byte> there(1 << 16);
  const auto at = [](uintptr_t address, size_t bytes) {
    return std::span(reinterpret_cast<const std::byte*>(address), bytes);
  };
  const std::span<const std::byte> hints[] = {
      {}, there, at(64, 1 << 20), at(UINTPTR_MAX - 100, 100), at(UINTPTR_MAX - 100, 1000)};
  for (int round = 0; round < 2000; round++) {
    pool.read_ahead(hints[static_cast<size_t>(round) % std::size(hints)]);
    expect_exact_cover(ranges_of(pool, 20, 3), 20, 3, pool.threads());
  }
}

TEST(Pool, IdleWorkersUseNoCpuOutsideOfAPass) {
  Pool pool(3);
  ASSERT_TRUE(all_threads_meet(pool));
  {
    const Pool::Pass pass(pool);
    many_tiny_sections(pool, 100);
  }
  const double before = process_cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(process_cpu_ms() - before, 50);
}

TEST(Pool, IdleWorkersSoonStopSpinningInsideAPass) {
  Pool pool(3);
  ASSERT_TRUE(all_threads_meet(pool));
  const Pool::Pass pass(pool);
  many_tiny_sections(pool, 100);
  const double before = process_cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(process_cpu_ms() - before, 50);
}

TEST(Pool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 200; ++i) {
    Pool pool(1 + i % 4);
    if (i % 3 == 0) const Pool::Pass pass(pool);
  }
}

}  // namespace
}  // namespace quern::cpu
