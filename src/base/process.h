// SPDX-License-Identifier: Apache-2.0
// Owns the answer to whether something was made in this process. Does not own threads (cpu/pool.h), which is what a
// child of fork() lacks.
#pragma once

#include <unistd.h>

#include "base/error.h"

namespace quern {

// The process in which it was made; belongs into what computes with threads or locks of its own.
class Process {
 public:
  // Errors: unsupported in a child of fork(): threads stayed in the parent, and what they were doing is half done here.
  Result<void> check() const {
    if (::getpid() == id_) return {};
    return unsupported("fork",
                       "this model was opened before the process forked, and its threads stayed in the parent; "
                       "open it in the child (Python's multiprocessing: start method \"spawn\")");
  }

 private:
  pid_t id_ = ::getpid();
};

}  // namespace quern
