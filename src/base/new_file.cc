// SPDX-License-Identifier: Apache-2.0
#include "base/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/quote_name.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

Error io_error(const fs::path& path, std::string_view what) {
  return {Errc::io, fmt::format("{}: {}", what, std::strerror(errno)), path_place(path.string())};
}

// The file that `path` names, through links. Only what is not there yet or a regular file is replaced.
Result<fs::path> target_of(const fs::path& path) {
  std::error_code failed;
  constexpr int kMostLinks = 40;
  fs::path target = path;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, failed)); links++) {
    if (links == kMostLinks) return Error{Errc::io, "leads through too many links", path_place(path.string())};
    target = target.parent_path() / fs::read_symlink(target, failed);
  }
  const fs::file_status status = fs::status(target, failed);
  if (!path.has_filename() || (fs::exists(status) && !fs::is_regular_file(status))) {
    return Error{Errc::io, "is not a regular file", path_place(path.string())};
  }
  return target;
}

}  // namespace

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)), part_(std::move(other.part_)), stream_(std::exchange(other.stream_, nullptr)) {}

NewFile::~NewFile() {
  if (stream_ == nullptr) return;
  std::fclose(stream_);
  std::error_code ignored;
  fs::remove(part_, ignored);
}

Result<NewFile> NewFile::create(const fs::path& path) {
  NewFile file;
  QUERN_TRY(file.path_, target_of(path));
  // A name that nobody else has: other threads, and runs that were killed before they could remove theirs.
  std::string part = file.path_.string() + ".XXXXXX.part";
  const int descriptor = ::mkostemps(part.data(), 5, O_CLOEXEC);
  if (descriptor < 0) return io_error(path, "a file beside it cannot be created");
  file.part_ = part;
  file.stream_ = ::fdopen(descriptor, "wb");
  QUERN_CHECK(file.stream_ != nullptr, "a stream over a descriptor that was just opened for writing");
  return file;
}

Result<void> NewFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty() || std::fwrite(bytes.data(), 1, bytes.size(), stream_) == bytes.size()) return {};
  return io_error(part_, "cannot be written");
}

Result<void> NewFile::finish() {
  if (std::fflush(stream_) != 0 || ::fsync(::fileno(stream_)) != 0) return io_error(part_, "cannot be written");
  if (std::rename(part_.c_str(), path_.c_str()) != 0) {
    return io_error(path_, fmt::format("its new content in {} cannot be put in place", part_.string()));
  }
  std::fclose(std::exchange(stream_, nullptr));
  return {};
}

}  // namespace quern
