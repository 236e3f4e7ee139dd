// SPDX-License-Identifier: Apache-2.0
// Owns turning ids into text one at a time. Does not own stop strings or the parts of an answer.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace quern::text {

// The concatenation of all returned texts is Tokenizer::decode of the same ids in one call. Every returned text is
// well-formed UTF-8: a character that is spread over several ids comes with the last of them. For one thread.
class StreamDetokenizer {
 public:
  // Special tokens give no text if `skip_special`.
  explicit StreamDetokenizer(Tokenizer tokenizer, bool skip_special = false)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  std::string push(int32_t id);
  // Ends the text: what is left of an incomplete character becomes one U+FFFD. Afterwards a new text may begin.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::string pending_;  // the start of an incomplete character, at most 3 bytes
};

}  // namespace quern::text
