// SPDX-License-Identifier: Apache-2.0
// Memory maps over POSIX mmap.
#include "base/file_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace quern {
namespace {

Error io_error(const std::filesystem::path& path, const char* action) {
  return {Errc::io, std::string("cannot ") + action + ": " + std::strerror(errno), path.string()};
}

// For the whole pages inside of the part. Advice: nothing depends on whether the system takes it.
void advise(std::span<const std::byte> part, int advice) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + part.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, advice);
}

}  // namespace

Result<FileMap> FileMap::open(const std::filesystem::path& path) {
  // Without O_NONBLOCK a FIFO would block here before it can be refused; regular files do not care.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return io_error(path, "open");
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    Error error = io_error(path, "stat");
    ::close(fd);
    return error;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error{Errc::io, "not a regular file", path.string()};
  }
  FileMap map;
  map.size_ = static_cast<size_t>(info.st_size);
  if (map.size_ > 0) {
    void* base = ::mmap(nullptr, map.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED) {
      Error error = io_error(path, "map");
      if (errno == ENOMEM) error.code = Errc::no_memory;
      ::close(fd);
      return error;
    }
    map.base_ = base;
  }
  map.fd_ = fd;
  return map;
}

FileMap::FileMap(FileMap&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

FileMap::~FileMap() {
  if (base_ != nullptr) ::munmap(base_, size_);
  if (fd_ >= 0) ::close(fd_);
}

void FileMap::drop_pages(std::span<const std::byte> part) const { advise(part, MADV_DONTNEED); }

Result<void> FileMap::copy(std::span<const std::byte> part, std::span<std::byte> out) const {
  auto at = static_cast<off_t>(part.data() - bytes().data());
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{Errc::io, std::string("cannot read: ") + std::strerror(errno), ""};
    if (got == 0) return Error{Errc::io, "cannot read: the file has become shorter", ""};
    out = out.subspan(static_cast<size_t>(got));
    at += got;
  }
  return {};
}

void FileMap::expect_random_reads(std::span<const std::byte> part) const { advise(part, MADV_RANDOM); }

}  // namespace quern
