// SPDX-License-Identifier: Apache-2.0
// Owns telling the reasoning of an answer from the answer itself, in text that comes in pieces: what stands between
// <think> and </think> at its start. Does not own what becomes of the two (engine/chat.h).
#pragma once

#include <string>
#include <string_view>

namespace quern::text {

// The tags and the white space around them belong to neither part. Tags further behind are text. How the text is cut
// into pieces does not matter. For one thread.
class ReasoningSplit {
 public:
  struct Parts {
    std::string reasoning, answer;
  };

  // Whether a prompt ends within reasoning that the text behind it goes on with.
  static bool is_open_at_end_of(std::string_view prompt);

  explicit ReasoningSplit(bool open) : place_(open ? Place::in_front_of_reasoning : Place::start) {}

  // Takes the next piece, whole characters, and returns what has become certain.
  Parts push(std::string_view text);
  // Ends the text: what was held back.
  Parts finish();

 private:
  enum class Place { start, in_front_of_reasoning, reasoning, behind_reasoning, answer };
  bool step(Parts& parts, bool last);

  Place place_;
  std::string held_;
};

}  // namespace quern::text
