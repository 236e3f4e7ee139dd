// SPDX-License-Identifier: Apache-2.0
// Owns an opened safetensors checkpoint: one file or many with their index, mapped, every tensor's place proved.
// Does not own which tensors a model needs (model/ does) nor the configuration beside them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/safetensors/header.h"

namespace quern::formats {

inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndexFile = "model.safetensors.index.json";

// The folder holds one of the two files above, if only a link that leads nowhere.
bool has_safetensors(const std::filesystem::path& folder);

// Move-only. Const calls may run on any number of threads. All views handed out live as long as the checkpoint, also
// across moves of it.
class SafetensorsCheckpoint {
 public:
  // Opens model.safetensors, or model.safetensors.index.json and every file that it names. A folder with both is
  // refused: which one counts would be a guess. Index and files must agree on every tensor. No payload is read.
  // Errors: bad_model and unsupported (see parse_safetensors_header and parse_safetensors_index), io.
  static Result<SafetensorsCheckpoint> open(const std::filesystem::path& folder);

  SafetensorsCheckpoint(SafetensorsCheckpoint&&) noexcept;
  SafetensorsCheckpoint& operator=(SafetensorsCheckpoint&&) noexcept;
  ~SafetensorsCheckpoint();

  // All tensors of all files, ascending by name in byte order.
  std::span<const SafetensorsTensor> tensors() const;
  // Null when there is none of this name.
  const SafetensorsTensor* find(std::string_view name) const { return find_tensor(tensors(), name); }

  size_t file_count() const;
  size_t payload_bytes() const;  // of all tensors

  // The path of the file that holds a tensor of this checkpoint, for error texts.
  std::string file_of(const SafetensorsTensor& tensor) const;

  // Says that `part` of a tensor's bytes will not be needed soon (for example because its repacked form is used from
  // now on), so that it stops counting as resident. It stays readable.
  void drop_pages(std::span<const std::byte> part) const;
  // FileMap::copy() of `part` of a tensor's bytes. Errors: io, with the file.
  Result<void> copy(std::span<const std::byte> part, std::span<std::byte> out) const;
  // Says that `part` of a tensor's bytes will be read in no order: FileMap::expect_random_reads().
  void expect_random_reads(std::span<const std::byte> part) const;

 private:
  struct State;
  explicit SafetensorsCheckpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quern::formats
