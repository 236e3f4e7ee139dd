// SPDX-License-Identifier: Apache-2.0
// Owns how a file is written that appears whole or not at all. Does not own what is in it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>

#include "base/error.h"

namespace quern {

// Writes beside the path and renames at the end; destroyed without finish() it leaves nothing behind, and what was
// there stays. The file is its owner's alone (mode 0600): it holds a conversation.
class NewFile {
 public:
  // Links are followed; what is there and is no regular file is not replaced. Errors: io, with the path.
  static Result<NewFile> create(const std::filesystem::path& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  Result<void> write(std::span<const std::byte> bytes);
  // On the disk, then in place. Nothing is written afterwards.
  Result<void> finish();

 private:
  NewFile() = default;

  std::filesystem::path path_;
  std::filesystem::path part_;
  std::FILE* stream_ = nullptr;
};

}  // namespace quern
