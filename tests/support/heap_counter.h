// SPDX-License-Identifier: Apache-2.0
// Owns the counting of heap allocations in a test binary: include it in exactly one source file of the binary, it
// replaces the global operator new. Under a sanitizer, which has its own, nothing is counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace quern::support {

inline std::atomic<uint64_t> heap_allocations{0};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsHeap = false;
#else
inline constexpr bool kCountsHeap = true;
#endif

}  // namespace quern::support

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
[[gnu::noinline]] void* operator new(size_t bytes) {
  quern::support::heap_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
// Not inlined, or the compiler takes the pair of malloc and free behind new and delete for a mistake.
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { operator delete(p); }
void operator delete(void* p, size_t) noexcept { operator delete(p); }
void operator delete[](void* p, size_t) noexcept { operator delete(p); }
#endif
