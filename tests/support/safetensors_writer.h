// SPDX-License-Identifier: Apache-2.0
// Owns writing safetensors files for tests, also ones that no library would write. For test code only.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace quern::test {

// The file with this header text and payload; `claimed` instead of the text's length where a test wants another.
inline std::string safetensors_bytes(std::string_view header, std::string_view payload, uint64_t claimed) {
  std::string file(sizeof(claimed), '\0');
  std::memcpy(file.data(), &claimed, sizeof(claimed));
  return file.append(header).append(payload);
}
inline std::string safetensors_bytes(std::string_view header, std::string_view payload) {
  return safetensors_bytes(header, payload, header.size());
}

// The same from what stands between the braces of the header.
inline std::string safetensors_file(std::string_view members, std::string_view payload) {
  return safetensors_bytes(fmt::format("{{{}}}", members), payload);
}

// A member of the header: "name":{...}.
inline std::string tensor_text(std::string_view name, std::string_view dtype, std::string_view shape, uint64_t begin,
                               uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace quern::test
