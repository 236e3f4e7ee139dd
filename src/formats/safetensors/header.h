// SPDX-License-Identifier: Apache-2.0
// Owns the header of one safetensors file: 8 bytes with the length of the JSON text (little-endian), the text, then the
// payloads without gaps. Does not own mapping files nor which tensors a model needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace quern::formats {

// One tensor of a file. The views live as long as the header and the file's bytes.
struct SafetensorsTensor {
  std::string_view name;  // the file's bytes, valid UTF-8
  DType dtype = DType::f32;
  std::span<const int64_t> shape;    // row-major, at most kMaxSafetensorsRank extents, each >= 0; empty for a scalar
  std::span<const std::byte> bytes;  // little-endian, exactly the size of type and shape; starts at any address
};

// Above every published tensor; it bounds the memory that a byte of header can take.
inline constexpr size_t kMaxSafetensorsRank = 8;
// The limit of the format's own library. The header of 152,089 tensors takes a fifth of it.
inline constexpr size_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Move-only: the tensors point into the other two.
struct SafetensorsHeader {
  std::vector<char> names;
  std::vector<int64_t> extents;
  std::vector<SafetensorsTensor> tensors;  // ascending by name, in byte order; no name twice

  SafetensorsHeader() = default;
  SafetensorsHeader(SafetensorsHeader&&) = default;
  SafetensorsHeader& operator=(SafetensorsHeader&&) = default;
};

// `file` is the whole file; only the header is read. Checked: the payloads fill the rest of the file without overlap or
// gap, each has the size that type and shape need, no key is there twice. `where` heads the places of errors. Errors:
// bad_model; unsupported (an element type that quern does not have).
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, std::string_view where);

// The tensor of this name in a list that ascends by name; null when there is none.
const SafetensorsTensor* find_tensor(std::span<const SafetensorsTensor> tensors, std::string_view name);

}  // namespace quern::formats
