// SPDX-License-Identifier: Apache-2.0
// Owns the protocol between the thread that opens a section (the caller of parallel_for) and the workers that help it.
// The caller can finish a section alone; workers join while it is open. So a sleeping or descheduled worker never
// delays a section that it has not entered, and a missed wake-up could cost speed but not correctness.
#include "cpu/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"

namespace quern::cpu {
namespace {

// The gate is one 32-bit word, so that entering, leaving and closing are single atomic steps and the kernel can wait on
// it: | epoch | caller sleeps | tickets | active |.
// tickets: how many workers may still enter the open section, 0 when it is closed. active: how many are inside.
constexpr int kFieldBits = 10;
constexpr uint32_t kFieldMask = (1u << kFieldBits) - 1;
constexpr uint32_t kOneActive = 1;
constexpr uint32_t kOneTicket = 1u << kFieldBits;
constexpr uint32_t kTicketsMask = kFieldMask << kFieldBits;
constexpr uint32_t kCallerSleeps = 1u << (2 * kFieldBits);
constexpr uint32_t kOneEpoch = 1u << (2 * kFieldBits + 1);
constexpr uint32_t kEpochMask = ~(kOneEpoch - 1);
// The caller is not counted in either field.
constexpr int kMaxThreads = 1 << kFieldBits;

// How long a thread spins before it sleeps: longer than the serial pieces between the sections of a forward pass, and
// about what one sleep and wake-up costs, so that a wrong guess at most doubles the price.
constexpr int64_t kSpinNs = 80'000;
// Reading the clock costs about as much as one pause; it is read once in this many.
constexpr int kPausesPerClock = 32;

constexpr size_t kCacheLine = 64;

// Asked for between two looks at the gate; 2 and 32 lines made no difference.
constexpr uintptr_t kAskedAtOnce = 8 * kCacheLine;

uint32_t active_of(uint32_t gate) { return gate & kFieldMask; }
uint32_t tickets_of(uint32_t gate) { return (gate & kTicketsMask) >> kFieldBits; }
uint32_t epoch_of(uint32_t gate) { return gate & kEpochMask; }

void spin_hint() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` holds `expected`; may return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int sleepers) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, sleepers, nullptr, nullptr, 0);
}

void run_inline(int64_t count, int64_t chunk, const RangeFunction& f) {
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = begin + std::min(chunk, count - begin);
    f(begin, end, 0);
    begin = end;
  }
}

}  // namespace

struct Pool::State {
  // Written by the caller while the gate is closed and nobody is inside; read by workers that have entered.
  struct Section {
    const RangeFunction* f = nullptr;
    int64_t count = 0;
    int64_t chunk = 1;
    int64_t chunks = 0;
  };

  int threads = 1;
  std::vector<std::thread> workers;
  const pid_t process = ::getpid();

  alignas(kCacheLine) std::atomic<uint32_t> gate{0};
  Section section;
  alignas(kCacheLine) std::atomic<int64_t> next_chunk{0};
  // Which calling thread owns the workers.
  alignas(kCacheLine) std::atomic<bool> owned{false};
  // The word that idle workers sleep on; ringing is changing it.
  alignas(kCacheLine) std::atomic<uint32_t> bell{0};
  std::atomic<int> sleepers{0};
  std::atomic<int> passes{0};
  std::atomic<bool> stopping{false};
  // Addresses of what is still to be asked for. Read and replaced without order: prefetches of a wrong address do
  // nothing.
  alignas(kCacheLine) std::atomic<uintptr_t> ahead{0};
  std::atomic<uintptr_t> ahead_end{0};

  // Passes a moment of waiting.
  void pause() {
    const uintptr_t end = ahead_end.load(std::memory_order_relaxed);
    if (ahead.load(std::memory_order_relaxed) >= end) return spin_hint();
    const uintptr_t first = ahead.fetch_add(kAskedAtOnce, std::memory_order_relaxed);
    for (uintptr_t line = first; line < std::min(first + kAskedAtOnce, end); line += kCacheLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
    }
  }

  void run_chunks(int worker) {
    for (;;) {
      const int64_t index = next_chunk.fetch_add(1, std::memory_order_relaxed);
      if (index >= section.chunks) return;
      const int64_t begin = index * section.chunk;
      (*section.f)(begin, begin + std::min(section.chunk, section.count - begin), worker);
    }
  }

  // Takes a ticket of the section in `seen`; false when it has none left or the gate changed meanwhile. An equal gate
  // value of a later section is no hazard: what is read after entering belongs to the section that was entered.
  bool enter(uint32_t& seen) {
    return tickets_of(seen) > 0 && gate.compare_exchange_weak(seen, seen - kOneTicket + kOneActive,
                                                              std::memory_order_acquire, std::memory_order_relaxed);
  }

  void leave() {
    const uint32_t before = gate.fetch_sub(kOneActive, std::memory_order_release);
    if (active_of(before) == 1 && (before & kCallerSleeps) != 0) futex_wake(gate, 1);
  }

  void ring(int how_many) {
    bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(bell, how_many);
  }

  // The increment of `sleepers` and the look at the gate mirror open() (gate, then `sleepers`), all sequentially
  // consistent: either this thread sees the open gate or the caller sees the sleeper and rings.
  void sleep(uint32_t done_epoch) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t heard = bell.load(std::memory_order_seq_cst);
    const uint32_t seen = gate.load(std::memory_order_seq_cst);
    const bool joinable = tickets_of(seen) > 0 && epoch_of(seen) != done_epoch;
    if (!joinable && !stopping.load(std::memory_order_seq_cst)) futex_wait(bell, heard);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  void work(int worker) {
    // The epoch this worker last took part in: entering it again would only find it empty.
    uint32_t done_epoch = epoch_of(gate.load(std::memory_order_relaxed)) - kOneEpoch;
    uint32_t spun_epoch = done_epoch;
    int64_t spin_until = 0;
    int pauses = 0;
    while (!stopping.load(std::memory_order_relaxed)) {
      uint32_t seen = gate.load(std::memory_order_relaxed);
      while (tickets_of(seen) > 0 && epoch_of(seen) != done_epoch) {
        if (!enter(seen)) continue;
        done_epoch = epoch_of(seen);
        run_chunks(worker);
        leave();
        seen = gate.load(std::memory_order_relaxed);
      }
      if (passes.load(std::memory_order_relaxed) == 0) {
        sleep(done_epoch);
        spin_until = 0;
        continue;
      }
      // Every section that comes by, even one without a ticket for this worker, is a sign that more will follow.
      if (spin_until == 0 || epoch_of(seen) != spun_epoch) {
        spun_epoch = epoch_of(seen);
        spin_until = now_ns() + kSpinNs;
        pauses = 0;
      }
      pause();
      if (++pauses < kPausesPerClock) continue;
      pauses = 0;
      if (now_ns() < spin_until) continue;
      sleep(done_epoch);
      spin_until = 0;
    }
  }

  void open(const RangeFunction& f, int64_t count, int64_t chunk, int64_t chunks) {
    section = {&f, count, chunk, chunks};
    next_chunk.store(0, std::memory_order_relaxed);
    const int helpers = static_cast<int>(std::min<int64_t>(threads - 1, chunks - 1));
    const uint32_t epoch = epoch_of(gate.load(std::memory_order_relaxed)) + kOneEpoch;
    gate.store(epoch | static_cast<uint32_t>(helpers) * kOneTicket, std::memory_order_seq_cst);
    const int asleep = sleepers.load(std::memory_order_seq_cst);
    const int awake = threads - 1 - asleep;
    if (asleep > 0 && helpers > awake) ring(helpers - awake);
  }

  // After this nobody can enter, and everybody who entered has left.
  void close() {
    uint32_t seen = gate.fetch_and(~kTicketsMask, std::memory_order_acquire);
    if (active_of(seen) == 0) return;
    int64_t spin_until = 0;
    for (int pauses = 0;; ++pauses) {
      if (active_of(gate.load(std::memory_order_acquire)) == 0) return;
      pause();
      if (pauses % kPausesPerClock != 0) continue;
      const int64_t now = now_ns();
      if (spin_until == 0) spin_until = now + kSpinNs;
      if (now >= spin_until) break;
    }
    seen = gate.fetch_or(kCallerSleeps, std::memory_order_acquire) | kCallerSleeps;
    while (active_of(seen) != 0) {
      futex_wait(gate, seen);
      seen = gate.load(std::memory_order_acquire);
    }
  }
};

Pool::Pool(int threads) : state_(std::make_unique<State>()) {
  QUERN_CHECK(threads >= 1, "a pool needs at least the calling thread");
  State& state = *state_;
  const int wanted = std::min(threads, kMaxThreads);
  state.workers.reserve(static_cast<size_t>(wanted - 1));
  // Workers inherit this mask: signals are for the threads of the program, which know what to do with them.
  sigset_t every;
  sigset_t before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  try {
    for (int worker = 1; worker < wanted; ++worker) {
      state.workers.emplace_back([&state, worker] { state.work(worker); });
      pthread_setname_np(state.workers.back().native_handle(), ("quern-" + std::to_string(worker)).c_str());
    }
  } catch (const std::system_error&) {
    // The system's limit on threads: the pool is correct with any number of workers, and threads() tells.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  state.threads = 1 + static_cast<int>(state.workers.size());
}

Pool::~Pool() {
  if (::getpid() != state_->process) {
    // A child of fork() has this memory but not the workers: there is nothing to join, and a std::thread that looks
    // joinable must not be destroyed.
    static_cast<void>(state_.release());
    return;
  }
  state_->stopping.store(true, std::memory_order_seq_cst);
  state_->ring(INT_MAX);
  for (std::thread& worker : state_->workers) worker.join();
}

int Pool::threads() const { return state_->threads; }

void Pool::parallel_for(int64_t count, int64_t chunk, RangeFunction f) {
  QUERN_DCHECK(chunk >= 1, "chunk of a parallel_for is below 1");
  State& state = *state_;
  if (count <= chunk || state.threads == 1) return run_inline(count, chunk, f);
  // Owned already: either this call is inside of a section, or another thread's section is running.
  if (state.owned.load(std::memory_order_relaxed) || state.owned.exchange(true, std::memory_order_acquire)) {
    return run_inline(count, chunk, f);
  }
  state.open(f, count, chunk, ceil_div(count, chunk));
  state.run_chunks(0);
  state.close();
  state.owned.store(false, std::memory_order_release);
}

void Pool::read_ahead(std::span<const std::byte> bytes) {
  State& state = *state_;
  const auto first = reinterpret_cast<uintptr_t>(bytes.data());
  state.ahead_end.store(0, std::memory_order_relaxed);
  state.ahead.store(first, std::memory_order_relaxed);
  state.ahead_end.store(first + bytes.size(), std::memory_order_relaxed);
}

Pool::Pass::Pass(Pool& pool) : pool_(pool) {
  State& state = *pool_.state_;
  // Waking now hides the wake-up behind the serial work before the first section.
  if (state.passes.fetch_add(1, std::memory_order_seq_cst) == 0 && state.sleepers.load(std::memory_order_seq_cst) > 0) {
    state.ring(INT_MAX);
  }
}

Pool::Pass::~Pass() { pool_.state_->passes.fetch_sub(1, std::memory_order_seq_cst); }

}  // namespace quern::cpu
