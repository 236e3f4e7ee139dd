// SPDX-License-Identifier: Apache-2.0
// Owns every large allocation of quern: whole pages from the system, tagged by purpose and counted, so that memory can
// be accounted for and gates can look at one kind of it. Small objects use the ordinary heap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace quern::cpu {

enum class MemoryTag : uint8_t { weights, cache, workspace, logits };
inline constexpr int kMemoryTags = 4;
std::string_view memory_tag_name(MemoryTag tag);

// Move-only block of zeroed memory, page aligned, on huge pages where the system grants them. Counted under its tag
// from allocation to destruction.
class Buffer {
 public:
  // Errors: no_memory, with the size and the tag. Zero bytes give an empty buffer with data() == nullptr.
  static Result<Buffer> allocate(size_t bytes, MemoryTag tag);

  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  MemoryTag tag_ = MemoryTag::workspace;
  std::shared_ptr<const void> pages_;  // where the memory is a piece of SharedPages: what keeps it mapped
};

// While one lives, Buffers of its tag that its thread allocates lie one behind the other on common huge pages: many
// that are smaller than a huge page get those too. Such a Buffer counts as always, outlives the SharedPages, and its
// memory goes back to the system with the last Buffer of the same stretch. Do not nest.
class SharedPages {
 public:
  explicit SharedPages(MemoryTag tag);
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

 private:
  friend class Buffer;
  struct Stretch;
  // Null when the system gives no new stretch, or for a size that needs no company.
  void* take(size_t mapped, std::shared_ptr<const void>& pages);

  MemoryTag tag_;
  std::shared_ptr<Stretch> stretch_;
  size_t used_ = 0;
};

// In bytes of whole pages.
struct MemoryUsage {
  std::array<size_t, kMemoryTags> current{};
  std::array<size_t, kMemoryTags> peak{};
  std::array<uint64_t, kMemoryTags> allocations{};  // how many Buffers were made under the tag, Reservations not
  size_t largest_weights_bytes = 0;                 // the largest single weights allocation so far
};

// Process-wide counters; safe from any thread.
MemoryUsage memory_usage();

// Move-only stretch of addresses, far larger than what will be used of it: memory for what grows in place. A page of it
// becomes memory when it is first touched, and is zero then.
class Reservation {
 public:
  // Of the stretch. Huge ones, where the system grants them, are for what grows in one piece: of many growing pieces
  // each would take two megabytes for its first byte.
  enum class Pages : uint8_t { ordinary, huge };

  // Errors: no_memory, with the size and the tag (the address space is full, or the system commits addresses as if they
  // were memory). Zero bytes give an empty reservation with data() == nullptr.
  static Result<Reservation> make(size_t bytes, MemoryTag tag, Pages pages = Pages::ordinary);

  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // From now on `bytes` of the stretch count as in use under its tag; that many are wanted soon.
  void count(size_t bytes);
  size_t counted() const { return counted_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t counted_ = 0;
  MemoryTag tag_ = MemoryTag::workspace;
};

// Bump allocator for the scratch memory of one forward pass. Grows by whole buffers, keeps them between passes, and so
// allocates nothing in the steady state. Not thread-safe: the thread that runs the pass takes memory, workers only use
// it.
class Arena {
 public:
  explicit Arena(MemoryTag tag = MemoryTag::workspace);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned, not zeroed, valid until the enclosing Scope ends. Errors: no_memory.
  Result<void*> take(size_t bytes);
  template <class T>
  Result<T*> take(size_t count) {
    const auto bytes = checked_mul(count, sizeof(T));
    // The largest size asks for more than any system has, so the error is the ordinary one.
    auto p = take(bytes.value_or(SIZE_MAX));
    if (!p.ok()) return std::move(p).error();
    return static_cast<T*>(*p);
  }

  // Everything taken after the construction of a Scope is given back at its end.
  class Scope {
   public:
    explicit Scope(Arena& arena);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_;
    size_t offset_;
  };

  size_t capacity_bytes() const;
  size_t peak_bytes() const;  // the most that was in use at once, each piece rounded up to its alignment

 private:
  struct State;
  State* state_;
  friend class Scope;
};

}  // namespace quern::cpu
