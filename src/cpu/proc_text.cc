// SPDX-License-Identifier: Apache-2.0
// The readers of proc_text.h.
#include "cpu/proc_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

namespace quern::cpu {

std::string read_proc_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t at = std::min(text.find(separator), text.size());
    parts.emplace_back(trimmed(text.substr(0, at)));
    text.remove_prefix(std::min(at + 1, text.size()));
  }
  return parts;
}

std::optional<int64_t> leading_number(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::string> proc_field(const std::string& text, std::string_view key) {
  for (const std::string& line : split_text(text, '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || trimmed(std::string_view(line).substr(0, colon)) != key) continue;
    return std::string(trimmed(std::string_view(line).substr(colon + 1)));
  }
  return std::nullopt;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  // Above what Linux can be built for; bounds what a damaged file can make us store.
  constexpr int64_t kMaxProcessors = 1 << 16;
  std::set<int> found;
  for (const std::string& part : split_text(text, ',')) {
    const std::optional<int64_t> first = leading_number(part);
    if (!first) continue;
    const size_t dash = part.find('-');
    const std::optional<int64_t> last = dash == std::string::npos ? first : leading_number(part.substr(dash + 1));
    if (!last || *first < 0 || *last >= kMaxProcessors) continue;
    for (int64_t i = *first; i <= *last; ++i) found.insert(static_cast<int>(i));
  }
  return {found.begin(), found.end()};
}

}  // namespace quern::cpu
