// SPDX-License-Identifier: Apache-2.0
// Owns giving the interpreter lock away while something is computed, and taking it. Up to Python 3.13 an interpreter
// that is ending answers a daemon thread that wants the lock with pthread_exit(), whose unwinding ends the whole
// process at the first noexcept function or destructor. Such a thread is put to sleep here for the rest of the process,
// as Python does since 3.14. nanobind's classes for the same purpose do not do that.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <utility>

namespace quern::python {

[[noreturn]] inline void sleep_for_good() {
  for (;;) ::pause();
}

// Calls what takes the lock or runs Python code. pthread_exit() passes as an exception that must neither be swallowed
// nor go on; others pass through.
template <class Call>
auto sleep_if_ended(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    sleep_for_good();
  }
}

// The state of this thread while it has given the lock away, else null.
inline thread_local PyThreadState* thread_without_lock = nullptr;

// The lock is given away for the life of this.
class LockReleased {
 public:
  LockReleased() : outer_(std::exchange(thread_without_lock, PyEval_SaveThread())) {}
  ~LockReleased() {
    sleep_if_ended([] { PyEval_RestoreThread(thread_without_lock); });
    thread_without_lock = outer_;
  }
  LockReleased(const LockReleased&) = delete;
  LockReleased& operator=(const LockReleased&) = delete;

 private:
  PyThreadState* outer_;
};

// The lock is held for the life of this, in a thread that gave it away. PyGILState_Ensure() would look for the state of
// the thread in an interpreter that may be gone; with its state the thread meets the end of the interpreter at any
// time.
class LockHeld {
 public:
  LockHeld() {
    sleep_if_ended([] { PyEval_RestoreThread(thread_without_lock); });
  }
  ~LockHeld() { PyEval_SaveThread(); }
  LockHeld(const LockHeld&) = delete;
  LockHeld& operator=(const LockHeld&) = delete;
};

}  // namespace quern::python
