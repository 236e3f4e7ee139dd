// SPDX-License-Identifier: Apache-2.0
// Owns model.safetensors.index.json: which file of a checkpoint holds which tensor. Does not open those files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::formats {

struct SafetensorsIndex {
  struct Entry {
    std::string tensor;
    int32_t file = 0;  // index into `files`
  };
  std::vector<std::string> files;  // names without any folder; each holds a tensor
  std::vector<Entry> tensors;      // ascending by tensor, in byte order; none twice
};

// An index of 152,089 tensors takes a seventh of it.
inline constexpr size_t kMaxSafetensorsIndexBytes = 100'000'000;

// Errors: bad_model ("<where>@<byte>" or "<where>: <key>" as the place): not JSON, no weight_map, a key twice, a file
// name that would lead out of the folder. Members other than weight_map are passed over, because writers differ in
// them.
Result<SafetensorsIndex> parse_safetensors_index(std::string_view json, std::string_view where);

}  // namespace quern::formats
