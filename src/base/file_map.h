// SPDX-License-Identifier: Apache-2.0
// Owns read-only memory maps of files. The map lives as long as the FileMap; views into it must not outlive it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

#include "base/error.h"

namespace quern {

// Fills `out` with the bytes of `part`, which lie in a map or are named by their place in it; FileMap::copy() is one.
using CopyBytes = std::function<Result<void>(std::span<const std::byte> part, std::span<std::byte> out)>;

// Move-only. Safe to read from any number of threads.
class FileMap {
 public:
  // Maps the whole file. An empty file gives an empty span. Errors: io (missing, unreadable, not a regular file),
  // with the path as `where`.
  static Result<FileMap> open(const std::filesystem::path& path);

  FileMap() = default;
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;
  ~FileMap();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(base_), size_}; }

  // Tells the kernel that `part` (inside bytes()) will not be needed soon, so that its pages stop counting as resident.
  // Only whole pages inside the part are dropped; the content stays readable.
  void drop_pages(std::span<const std::byte> part) const;

  // Copies `part` (inside bytes()) through the file, so that a sample of a large map makes none of its pages resident.
  // `out` has the same size. Errors: io, with no place.
  Result<void> copy(std::span<const std::byte> part, std::span<std::byte> out) const;

  // Tells the kernel that reads of `part` (inside bytes()) come in no order, so that it reads no more than the pages
  // that are touched. Only whole pages inside the part are affected.
  void expect_random_reads(std::span<const std::byte> part) const;

 private:
  void* base_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace quern
