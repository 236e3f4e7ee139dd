// SPDX-License-Identifier: Apache-2.0
// A signal handler may touch lock-free atomics and little else.
#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace quern::cli {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<bool> answered{false};  // somebody looks at `interrupted`
static_assert(std::atomic<bool>::is_always_lock_free, "used in a signal handler");

extern "C" void on_interrupt(int) {
  if (!answered.load() || interrupted.exchange(true)) _exit(kExitInterrupted);
}

}  // namespace

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = &on_interrupt;
  action.sa_flags = SA_RESTART;  // text on its way out is not lost
  sigaction(SIGINT, &action, nullptr);
}

engine::CancelFlag answer_interrupts() {
  interrupted.store(false);
  answered.store(true);
  return &interrupted;
}

void leave_on_interrupts() { answered.store(false); }

}  // namespace quern::cli
