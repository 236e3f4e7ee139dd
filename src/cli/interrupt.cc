// SPDX-License-Identifier: Apache-2.0
// A signal handler may touch lock-free atomics, read the clock, and little else.
#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>

#include "base/clock.h"

namespace quern::cli {
namespace {

// Twice the time between two quick presses of a key.
constexpr int64_t kQuickNs = 500'000'000;

std::atomic<bool> interrupted{false};
std::atomic<bool> answered{false};      // somebody looks at `interrupted`
std::atomic<bool> ignored{false};       // and further interrupts do nothing
std::atomic<int64_t> ignored_until{0};  // the same once nobody looks any more
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "used in a signal handler");

extern "C" void on_interrupt(int) {
  const bool ends = answered.load() ? interrupted.exchange(true) && !ignored.load() : now_ns() >= ignored_until.load();
  if (ends) _exit(kExitInterrupted);
}

}  // namespace

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = &on_interrupt;
  action.sa_flags = SA_RESTART;  // text on its way out is not lost
  sigaction(SIGINT, &action, nullptr);
}

engine::CancelFlag answer_interrupts(FurtherInterrupts further) {
  ignored.store(further == FurtherInterrupts::are_ignored);
  interrupted.store(false);
  answered.store(true);
  return &interrupted;
}

void leave_on_interrupts() {
  const bool was_interrupted = interrupted.exchange(false);
  ignored_until.store(was_interrupted && ignored.load() ? now_ns() + kQuickNs : 0);
  answered.store(false);
}

}  // namespace quern::cli
