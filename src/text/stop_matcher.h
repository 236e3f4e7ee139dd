// SPDX-License-Identifier: Apache-2.0
// Owns the search for stop strings in text that comes in pieces. Does not own where the pieces come from, nor stop ids.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::text {

// Text ends in front of the stop string that is complete first; of several that are complete at the same byte, in front
// of the longest. How the text is cut into pieces does not matter. For one thread.
class StopMatcher {
 public:
  // Errors: bad_request (a stop string that is empty or not UTF-8, by position). No stop string at all is fine.
  static Result<StopMatcher> make(std::vector<std::string> stops);

  // Takes the next piece, whole characters of well-formed UTF-8, and returns what has become certain: whole characters,
  // without the end that may be the start of a stop string. Once a stop string was found, nothing is taken or returned.
  std::string push(std::string_view text);
  bool stopped() const { return stopped_; }

  // Ends the text: what was held back. Afterwards a new text may begin.
  std::string finish();

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // by length: the longest proper prefix of text[0, length) that is also its suffix
    size_t matched = 0;          // how long a prefix of it the text so far ends with
  };
  explicit StopMatcher(std::vector<Stop> stops) : stops_(std::move(stops)) {}

  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace quern::text
