// SPDX-License-Identifier: Apache-2.0
// Owns the one place where a failed allocation of the standard library becomes an error value.
#pragma once

#include <new>
#include <stdexcept>

#include "base/error.h"

namespace quern::engine {

// The Result of `work`, or no_memory.
template <class Work>
auto or_no_memory(const char* where, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Error{Errc::no_memory, "the memory needed is not available", where};
  } catch (const std::length_error&) {
    return Error{Errc::no_memory, "more memory is needed than a container can have", where};
  }
}

}  // namespace quern::engine
