// SPDX-License-Identifier: Apache-2.0
// Escaping for error texts.
#include "base/quote_name.h"

#include <fmt/format.h>

namespace quern {
namespace {

// The bytes of the printable character that `text` starts with, 0 where it starts with none. `text` is not empty.
// Ranges of the second byte as in Unicode, table 3-7: no overlong forms, surrogates or code points above U+10FFFF. The
// control characters U+0080 to U+009F are C2 80 to C2 9F.
size_t printable_character(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const int lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const int least = lead == 0xc2 || lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const int most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < bytes; i++) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return bytes;
}

}  // namespace

std::string quote_name(std::string_view name) {
  constexpr size_t kLongest = 120;
  std::string text = "'";
  for (char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x20 && byte < 0x7f && c != '\'' && c != '\\';
    text += plain ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  if (name.size() > kLongest) text += "...";
  return text + "'";
}

std::string path_name(std::string_view name) {
  const std::string quoted = quote_name(name);
  const bool same = std::string_view(quoted).substr(1, quoted.size() - 2) == name;
  return same ? std::string(name) : quoted;
}

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const size_t bytes = printable_character(text);
    if (bytes == 0) line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    line += text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return line;
}

std::string path_place(std::string_view path) { return path.empty() ? quote_name(path) : std::string(path); }

}  // namespace quern
