// SPDX-License-Identifier: Apache-2.0
// Owns test memory that ends at an unreadable page, so that a kernel that touches one byte past the end crashes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace quern::support {

// QEMU 7.2 reads the lanes that a masked load leaves out, which a processor does not; under it the environment variable
// QUERN_READABLE_GUARDS makes the page behind the array readable.
inline int guard_protection() {
  return std::getenv("QUERN_READABLE_GUARDS") != nullptr ? PROT_READ | PROT_WRITE : PROT_NONE;
}

// `count` zeroed elements; the byte after the last one cannot be read or written. Elements are aligned as T needs, and
// no better, unless count * sizeof(T) happens to be a multiple of more.
template <class T>
class GuardedArray {
 public:
  explicit GuardedArray(size_t count) : count_(count) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (count * sizeof(T) + page - 1) / page * page;
    mapped_ = body + page;
    base_ = static_cast<uint8_t*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + body, page, guard_protection()) != 0) std::abort();
    data_ = reinterpret_cast<T*>(base_ + body - count * sizeof(T));
  }
  ~GuardedArray() { munmap(base_, mapped_); }
  GuardedArray(const GuardedArray&) = delete;
  GuardedArray& operator=(const GuardedArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return count_; }
  std::span<T> span() const { return {data_, count_}; }
  T& operator[](size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + count_; }

 private:
  size_t count_, mapped_ = 0;
  uint8_t* base_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace quern::support
