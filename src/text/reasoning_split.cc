// SPDX-License-Identifier: Apache-2.0
// Held back is only what later text could still make part of a tag, or of the white space in front of one.
#include "text/reasoning_split.h"

#include <algorithm>

namespace quern::text {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kSpace = " \t\r\n";

std::string_view trimmed_end(std::string_view text) { return text.substr(0, text.find_last_not_of(kSpace) + 1); }

// Without what at its end may be the start of white space and a closing tag.
std::string_view certain_of(std::string_view text) {
  for (size_t length = std::min(text.size(), kClose.size() - 1); length > 0; length--) {
    if (text.ends_with(kClose.substr(0, length))) return trimmed_end(text.substr(0, text.size() - length));
  }
  return trimmed_end(text);
}

}  // namespace

bool ReasoningSplit::is_open_at_end_of(std::string_view prompt) { return trimmed_end(prompt).ends_with(kOpen); }

ReasoningSplit::Parts ReasoningSplit::push(std::string_view text) {
  held_ += text;
  Parts parts;
  while (step(parts, false)) {
  }
  return parts;
}

ReasoningSplit::Parts ReasoningSplit::finish() {
  Parts parts;
  while (step(parts, true)) {
  }
  return parts;
}

// Moves text out of held_ and may enter the next place, which is then looked at with what is left.
bool ReasoningSplit::step(Parts& parts, bool last) {
  const auto enter = [&](Place place, size_t consumed) {
    place_ = place;
    held_.erase(0, consumed);
    return true;
  };
  const size_t text = std::min(held_.find_first_not_of(kSpace), held_.size());
  const std::string_view behind_space = std::string_view(held_).substr(text);
  switch (place_) {
    case Place::start:
      if (behind_space.starts_with(kOpen)) return enter(Place::in_front_of_reasoning, text + kOpen.size());
      if (!last && kOpen.starts_with(behind_space)) return false;
      return enter(Place::answer, 0);
    case Place::in_front_of_reasoning:
    case Place::behind_reasoning:
      held_.erase(0, text);
      if (held_.empty()) return false;
      return enter(place_ == Place::behind_reasoning ? Place::answer : Place::reasoning, 0);
    case Place::reasoning: {
      const size_t close = held_.find(kClose);
      const std::string_view certain = close != std::string::npos
                                           ? trimmed_end(std::string_view(held_).substr(0, close))
                                       : last ? trimmed_end(held_)
                                              : certain_of(held_);
      parts.reasoning += certain;
      if (close != std::string::npos) return enter(Place::behind_reasoning, close + kClose.size());
      held_.erase(0, last ? held_.size() : certain.size());
      return false;
    }
    case Place::answer:
      parts.answer += held_;
      held_.clear();
      return false;
  }
  return false;
}

}  // namespace quern::text
