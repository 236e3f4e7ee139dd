// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: its header is read or refused, and every tensor of a header that was read can be
// read to its last byte. Text that starts with '{' is an index instead.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "formats/safetensors/header.h"
#include "formats/safetensors/index.h"

namespace {

using namespace quern::formats;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_file(std::span<const std::byte> file) {
  const quern::Result<SafetensorsHeader> header = parse_safetensors_header(file, "fuzz");
  if (!header.ok()) return require(!header.error().what.empty() && !header.error().where.empty());
  size_t bytes = 0;
  volatile unsigned sum = 0;
  for (const SafetensorsTensor& t : header->tensors) {
    require(find_tensor(header->tensors, t.name) == &t && t.shape.size() <= kMaxSafetensorsRank);
    bytes += t.bytes.size();
    for (const std::byte b : t.bytes) sum = sum + static_cast<unsigned>(b);
  }
  require(bytes <= file.size());
}

void check_index(std::string_view text) {
  const quern::Result<SafetensorsIndex> index = parse_safetensors_index(text, "fuzz");
  if (!index.ok()) return require(!index.error().what.empty() && !index.error().where.empty());
  for (const auto& entry : index->tensors) {
    const std::string& file = index->files[static_cast<size_t>(entry.file)];
    require(!file.empty() && file != ".." && file.find('/') == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == '{') {
    check_index({reinterpret_cast<const char*>(data), size});
  } else {
    check_file({reinterpret_cast<const std::byte*>(data), size});
  }
  return 0;
}
