// SPDX-License-Identifier: Apache-2.0
// Owns the count of heap allocations of a test binary: replaces operator new. Include it in one source file of a
// binary.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace quern::support {

inline std::atomic<int64_t> heap_allocations{0};

template <class F>
int64_t allocations_in(F&& f) {
  const int64_t before = heap_allocations;
  f();
  return heap_allocations - before;
}

}  // namespace quern::support

// The array forms of the library call these. So does its nothrow form, but a sanitizer's would not.
// Not inlined, or g++ sees malloc() meet operator delete and warns.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  quern::support::heap_allocations++;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  std::abort();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
