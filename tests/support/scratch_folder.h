// SPDX-License-Identifier: Apache-2.0
// Owns a folder of its own for one test. For test code only.
#pragma once

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace quern::test {

// Where files are in memory, if this machine has such a place: a disk takes milliseconds to make a file safe.
inline std::filesystem::path memory_files() {
  const std::filesystem::path shared = "/dev/shm";
  return std::filesystem::is_directory(shared) ? shared : std::filesystem::temp_directory_path();
}

// Removed at the end, with everything in it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name,
                         const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : path_(parent / (name + "." + std::to_string(std::random_device()()))) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void file(const std::string& name, const std::string& content) const { std::ofstream(path_ / name) << content; }

 private:
  std::filesystem::path path_;
};

}  // namespace quern::test
