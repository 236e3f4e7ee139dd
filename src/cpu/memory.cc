// SPDX-License-Identifier: Apache-2.0
// Owns the page mappings, their process-wide counters, and the chain of blocks behind an Arena.
#include "cpu/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/checked.h"

#if defined(__SANITIZE_ADDRESS__)
#define QUERN_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUERN_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(QUERN_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace quern::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kArenaAlignment = 64;
constexpr size_t kFirstBlockBytes = size_t{1} << 20;
// Blocks double up to this size: enough to make growth rare, and little next to the weights when it is not needed.
constexpr size_t kLargestSpareBlockBytes = size_t{32} << 20;

// Of SharedPages. What stays untouched at the end of a stretch costs addresses, not memory.
constexpr size_t kStretchBytes = size_t{128} << 20;
constexpr size_t kLargestPieceBytes = kStretchBytes / 4;

constinit thread_local SharedPages* shared_pages = nullptr;
constinit std::mutex usage_mutex;
constinit MemoryUsage usage;
// A fork while another thread counts must not leave the child with a mutex that nobody unlocks.
[[maybe_unused]] const int fork_handlers =
    ::pthread_atfork([] { usage_mutex.lock(); }, [] { usage_mutex.unlock(); }, [] { usage_mutex.unlock(); });

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Error no_memory(size_t bytes, MemoryTag tag, const char* reason) {
  return {Errc::no_memory, fmt::format("cannot allocate {} bytes for {}: {}", bytes, memory_tag_name(tag), reason), ""};
}

void count_use(size_t bytes, MemoryTag tag) {
  const auto i = static_cast<size_t>(tag);
  usage.current[i] += bytes;
  usage.peak[i] = std::max(usage.peak[i], usage.current[i]);
}

void count_allocation(size_t mapped, MemoryTag tag) {
  const std::lock_guard lock(usage_mutex);
  count_use(mapped, tag);
  usage.allocations[static_cast<size_t>(tag)] += 1;
  if (tag == MemoryTag::weights) usage.largest_weights_bytes = std::max(usage.largest_weights_bytes, mapped);
}

void count_release(size_t mapped, MemoryTag tag) {
  const std::lock_guard lock(usage_mutex);
  usage.current[static_cast<size_t>(tag)] -= mapped;
}

void* map_pages(size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

// A mapping that starts on a huge page: mapped too large by one, then trimmed. `bytes` is a multiple of the page size.
void* map_huge_pages(size_t bytes) {
  const size_t slack = kHugePage - page_bytes();
  void* base = map_pages(bytes + slack);
  if (base == nullptr) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = round_up(begin, kHugePage);
  const size_t head = aligned - begin;
  if (head > 0) ::munmap(base, head);
  void* data = reinterpret_cast<void*>(aligned);
  if (slack > head) ::munmap(static_cast<std::byte*>(data) + bytes, slack - head);
  // Only a wish: without huge pages the memory is slower, not wrong.
  ::madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

// Under AddressSanitizer the bytes of an arena that nobody holds are poisoned, so that a use after the end of a Scope
// or past the end of a piece is reported. Elsewhere these do nothing.
void poison(const void* data, size_t bytes) {
#if defined(QUERN_ADDRESS_SANITIZER)
  if (bytes > 0) __asan_poison_memory_region(data, bytes);
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

void unpoison(const void* data, size_t bytes) {
#if defined(QUERN_ADDRESS_SANITIZER)
  if (bytes > 0) __asan_unpoison_memory_region(data, bytes);
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace

std::string_view memory_tag_name(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::weights: return "weights";
    case MemoryTag::cache: return "cache";
    case MemoryTag::workspace: return "workspace";
    case MemoryTag::logits: return "logits";
  }
  return "?";
}

Result<Buffer> Buffer::allocate(size_t bytes, MemoryTag tag) {
  Buffer buffer;
  buffer.tag_ = tag;
  if (bytes == 0) return buffer;
  // Leaves room for the rounding below and for the slack of alignment.
  if (bytes > SIZE_MAX - 2 * kHugePage) return no_memory(bytes, tag, "larger than the address space");
  const size_t mapped = round_up(bytes, page_bytes());
  void* data = nullptr;
  if (shared_pages != nullptr && shared_pages->tag_ == tag) data = shared_pages->take(mapped, buffer.pages_);
  if (data == nullptr) data = bytes >= kHugePage ? map_huge_pages(mapped) : map_pages(mapped);
  if (data == nullptr) return no_memory(bytes, tag, std::strerror(errno));
  buffer.data_ = data;
  buffer.size_ = bytes;
  count_allocation(mapped, tag);
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      tag_(other.tag_),
      pages_(std::move(other.pages_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    // The old memory goes now, not with `other`: its pages may be wanted at once.
    Buffer old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    tag_ = other.tag_;
    pages_ = std::move(other.pages_);
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  const size_t mapped = round_up(size_, page_bytes());
  if (pages_ == nullptr) ::munmap(data_, mapped);
  count_release(mapped, tag_);
}

struct SharedPages::Stretch {
  Stretch() = default;
  ~Stretch() {
    if (data != nullptr) ::munmap(data, kStretchBytes);
  }
  Stretch(const Stretch&) = delete;
  Stretch& operator=(const Stretch&) = delete;

  std::byte* data = nullptr;
};

SharedPages::SharedPages(MemoryTag tag) : tag_(tag) {
  QUERN_CHECK(shared_pages == nullptr, "one at a time on a thread");
  shared_pages = this;
}

SharedPages::~SharedPages() { shared_pages = nullptr; }

void* SharedPages::take(size_t mapped, std::shared_ptr<const void>& pages) {
  if (mapped > kLargestPieceBytes) return nullptr;
  if (stretch_ == nullptr || mapped > kStretchBytes - used_) {
    auto stretch = std::make_shared<Stretch>();
    stretch->data = static_cast<std::byte*>(map_huge_pages(kStretchBytes));
    if (stretch->data == nullptr) return nullptr;
    stretch_ = std::move(stretch);
    used_ = 0;
  }
  pages = stretch_;
  return stretch_->data + std::exchange(used_, used_ + mapped);
}

MemoryUsage memory_usage() {
  const std::lock_guard lock(usage_mutex);
  return usage;
}

Result<Reservation> Reservation::make(size_t bytes, MemoryTag tag, Pages pages) {
  Reservation reservation;
  reservation.tag_ = tag;
  if (bytes == 0) return reservation;
  if (bytes > SIZE_MAX - page_bytes()) return no_memory(bytes, tag, "larger than the address space");
  const size_t mapped = round_up(bytes, page_bytes());
  void* data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return no_memory(bytes, tag, std::strerror(errno));
  ::madvise(data, mapped, pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  reservation.data_ = static_cast<std::byte*>(data);
  reservation.size_ = mapped;
  return reservation;
}

Reservation::Reservation(Reservation&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      counted_(std::exchange(other.counted_, 0)),
      tag_(other.tag_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    const Reservation old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    counted_ = std::exchange(other.counted_, 0);
    tag_ = other.tag_;
  }
  return *this;
}

Reservation::~Reservation() {
  if (data_ == nullptr) return;
  ::munmap(data_, size_);
  if (counted_ > 0) count_release(counted_, tag_);
}

void Reservation::count(size_t bytes) {
  QUERN_CHECK(bytes <= size_, "no more than there is");
  const std::lock_guard lock(usage_mutex);
  usage.current[static_cast<size_t>(tag_)] -= std::exchange(counted_, bytes);
  count_use(bytes, tag_);
}

// Blocks before `block` are in use, `block` is up to `offset`, later ones are free. A block that was too small for a
// request is stepped over and serves again after the Scope.
struct Arena::State {
  struct Block {
    Buffer buffer;
    size_t used_before = 0;  // bytes in use in earlier blocks when this one was entered
  };

  MemoryTag tag;
  std::vector<Block> blocks;
  size_t block = 0;
  size_t offset = 0;
  size_t peak = 0;

  size_t used() const { return blocks.empty() ? 0 : blocks[block].used_before + offset; }

  size_t capacity() const {
    size_t sum = 0;
    for (const Block& b : blocks) sum += b.buffer.size();
    return sum;
  }

  void clear() {
    for (const Block& b : blocks) unpoison(b.buffer.data(), b.buffer.size());
    blocks.clear();
    block = 0;
    offset = 0;
  }

  // A larger block is a convenience (fewer blocks later); one of the size asked for is enough.
  Result<void> add_block(size_t preferred, size_t needed) {
    Result<Buffer> buffer = Buffer::allocate(std::max(preferred, needed), tag);
    if (!buffer.ok() && preferred > needed) buffer = Buffer::allocate(needed, tag);
    if (!buffer.ok()) return std::move(buffer).error();
    poison(buffer->data(), buffer->size());
    blocks.push_back({*std::move(buffer), 0});
    return {};
  }

  // Makes blocks[block] from `offset` hold `bytes`. Nothing changes on failure but the blocks that are free.
  Result<void> reserve(size_t bytes) {
    if (blocks.size() > 1 && used() == 0) {
      const size_t total = capacity();
      clear();
      QUERN_TRY_VOID(add_block(total, bytes));
    }
    if (blocks.empty()) QUERN_TRY_VOID(add_block(kFirstBlockBytes, bytes));
    if (bytes <= blocks[block].buffer.size() - offset) return {};
    size_t later = block + 1;
    while (later < blocks.size() && blocks[later].buffer.size() < bytes) ++later;
    if (later == blocks.size()) {
      const size_t last = std::min(blocks.back().buffer.size(), kLargestSpareBlockBytes / 2);
      QUERN_TRY_VOID(add_block(2 * last, bytes));
    }
    const size_t before = used();
    for (size_t i = block + 1; i <= later; ++i) blocks[i].used_before = before;
    block = later;
    offset = 0;
    return {};
  }

  void rewind(size_t to_block, size_t to_offset) {
    const size_t touched = std::min(block + 1, blocks.size());
    for (size_t i = to_block; i < touched; ++i) {
      const size_t from = i == to_block ? to_offset : 0;
      poison(blocks[i].buffer.as<std::byte>() + from, blocks[i].buffer.size() - from);
    }
    block = to_block;
    offset = to_offset;
  }
};

Arena::Arena(MemoryTag tag) : state_(new State{tag, {}}) {}

Arena::~Arena() {
  state_->clear();
  delete state_;
}

Result<void*> Arena::take(size_t bytes) {
  if (bytes > SIZE_MAX - kArenaAlignment) return no_memory(bytes, state_->tag, "larger than the address space");
  const size_t taken = round_up(std::max(bytes, size_t{1}), kArenaAlignment);
  QUERN_TRY_VOID(state_->reserve(taken));
  std::byte* data = state_->blocks[state_->block].buffer.as<std::byte>() + state_->offset;
  unpoison(data, bytes);
  state_->offset += taken;
  state_->peak = std::max(state_->peak, state_->used());
  return static_cast<void*>(data);
}

Arena::Scope::Scope(Arena& arena) : arena_(arena), block_(arena.state_->block), offset_(arena.state_->offset) {}

Arena::Scope::~Scope() { arena_.state_->rewind(block_, offset_); }

size_t Arena::capacity_bytes() const { return state_->capacity(); }

size_t Arena::peak_bytes() const { return state_->peak; }

}  // namespace quern::cpu
