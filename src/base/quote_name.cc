// SPDX-License-Identifier: Apache-2.0
// Escaping for error texts.
#include "base/quote_name.h"

#include <fmt/format.h>

namespace quern {

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

}  // namespace quern
