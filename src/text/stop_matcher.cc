// SPDX-License-Identifier: Apache-2.0
// Each stop string advances by itself, a byte at a time (Knuth, Morris, Pratt 1977). The longest match that is under
// way is what has to be held back; it starts at a character, because every stop string does.
#include "text/stop_matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace quern::text {

Result<StopMatcher> StopMatcher::make(std::vector<std::string> stops) {
  std::vector<Stop> list;
  for (std::string& text : stops) {
    const std::string where = fmt::format("stop string {}", list.size());
    if (text.empty()) return bad_request(where, "is empty, at least one character is needed");
    if (const auto bad = find_invalid_utf8(text)) {
      return bad_request(where, fmt::format("is not UTF-8 at byte {}", *bad));
    }
    Stop stop{std::move(text), {0, 0}, 0};
    for (size_t length = 2; length <= stop.text.size(); length++) {
      const char last = stop.text[length - 1];
      size_t border = stop.border[length - 1];
      while (border > 0 && stop.text[border] != last) border = stop.border[border];
      stop.border.push_back(stop.text[border] == last ? border + 1 : 0);
    }
    list.push_back(std::move(stop));
  }
  return StopMatcher(std::move(list));
}

std::string StopMatcher::push(std::string_view text) {
  for (size_t i = 0; i < text.size() && !stopped_; i++) {
    held_ += text[i];
    size_t found = 0;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != text[i]) stop.matched = stop.border[stop.matched];
      if (stop.text[stop.matched] == text[i]) stop.matched++;
      if (stop.matched == stop.text.size()) found = std::max(found, stop.matched);
    }
    if (found == 0) continue;
    stopped_ = true;
    held_.resize(held_.size() - found);
    return std::exchange(held_, {});
  }
  if (stopped_) return {};
  size_t under_way = 0;
  for (const Stop& stop : stops_) under_way = std::max(under_way, stop.matched);
  std::string certain = held_.substr(0, held_.size() - under_way);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::finish() {
  for (Stop& stop : stops_) stop.matched = 0;
  stopped_ = false;
  return std::exchange(held_, {});
}

}  // namespace quern::text
