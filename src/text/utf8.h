// SPDX-License-Identifier: Apache-2.0
// Owns UTF-8: validation, lossy decoding, and single code points. Does not own Unicode properties (nfc.h,
// unicode_patch.inc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quern::text {

// The offset of the first byte that is not part of well-formed UTF-8 (no overlong forms, no surrogates, nothing above
// U+10FFFF), or nothing if all of it is well-formed.
std::optional<size_t> find_invalid_utf8(std::string_view bytes);

// Appends `bytes` to `out`; every maximal ill-formed part becomes one U+FFFD, as Python's errors="replace" and Rust's
// from_utf8_lossy do it. Stops before a sequence at the end that more bytes could still complete (at most 3 bytes) and
// returns how many bytes it consumed.
size_t append_lossy(std::string_view bytes, std::string& out);

// The same for bytes that nothing follows: an incomplete sequence at the end becomes one U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

void append_utf8(char32_t code_point, std::string& out);

// Reads the code point at `offset` of well-formed UTF-8 and moves `offset` behind it. Precondition: well-formed, and
// `offset` is the start of a character before the end.
inline char32_t next_code_point(std::string_view utf8, size_t& offset) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(utf8[offset + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    offset += 1;
    return lead;
  }
  char32_t code_point = 0;
  if (lead < 0xE0) {
    code_point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    offset += 2;
  } else if (lead < 0xF0) {
    code_point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    offset += 3;
  } else {
    code_point = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    offset += 4;
  }
  return code_point;
}

}  // namespace quern::text
