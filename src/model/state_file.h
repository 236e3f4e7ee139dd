// SPDX-License-Identifier: Apache-2.0
// Owns the file that a timeline is saved to: its head and its checksum. Does not own what a model line puts behind the
// head (qwen3.cc), nor how a file appears whole or not at all (base/new_file.h).
//
// Little-endian: 8 bytes "QUERNST1"; uint32 bytes of JSON; the JSON, an object with what the line wants to compare
// before it reads on; uint64 count and int32 token ids; the line's payload; uint64 XXH3-64 of all that is before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_map.h"

namespace quern::model {

struct StateFileHead {
  nlohmann::json facts;  // strings and integers by name
  std::vector<int32_t> ids;
};

// Destroyed without finish() it leaves nothing behind, as base/new_file.h says.
class StateFileWriter {
 public:
  // Links are followed; what is there and is no regular file is not replaced. Errors: io, with the path.
  static Result<StateFileWriter> create(const std::filesystem::path& path, const StateFileHead& head);
  StateFileWriter(StateFileWriter&&) noexcept;
  StateFileWriter& operator=(StateFileWriter&&) noexcept;
  ~StateFileWriter();

  Result<void> write(std::span<const std::byte> bytes);
  Result<void> finish();

 private:
  struct File;
  explicit StateFileWriter(std::unique_ptr<File> file);
  std::unique_ptr<File> file_;
};

class StateFileReader {
 public:
  // Of a file with exactly these facts and at most so many ids; both are known before memory is taken for the ids.
  // Errors: io; bad_request for a file that is no saved timeline or ends too early, with the path and the place, and
  // for another fact, by name; too_long, with both numbers; no_memory.
  static Result<StateFileReader> open(const std::filesystem::path& path, const nlohmann::json& facts, int64_t most_ids);
  StateFileReader(StateFileReader&&) noexcept;
  StateFileReader& operator=(StateFileReader&&) noexcept;
  ~StateFileReader();

  const StateFileHead& head() const;
  // Fills `bytes`. What was read counts only once finish() has seen the checksum.
  Result<void> read(std::span<std::byte> bytes);
  Result<void> finish();

 private:
  struct File;
  explicit StateFileReader(std::unique_ptr<File> file);
  Result<void> read_head(const nlohmann::json& facts, int64_t most_ids);
  Result<void> expect(const nlohmann::json& facts) const;
  std::unique_ptr<File> file_;
};

// One number for the contents of a model's files: XXH3-64 over the sizes of all pieces, all bytes of those up to 64
// MiB, and of larger ones 4 KiB of every MiB and the last 4 KiB. Weights that were trained on differ everywhere.
uint64_t fingerprint(std::span<const std::span<const std::byte>> pieces);

// The same of pieces whose bytes are read by `copy`. Errors: its own.
Result<uint64_t> fingerprint(std::span<const std::span<const std::byte>> pieces, const CopyBytes& copy);

}  // namespace quern::model
