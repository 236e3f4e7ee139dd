// SPDX-License-Identifier: Apache-2.0
// Streaming is lossy decoding that holds back what later bytes could still complete.
#include "text/detokenizer.h"

#include "text/utf8.h"

namespace quern::text {

std::string StreamDetokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_.is_special(id)) return text;
  pending_.append(tokenizer_.bytes_of(id));
  pending_.erase(0, append_lossy(pending_, text));
  return text;
}

std::string StreamDetokenizer::finish() {
  std::string text = to_valid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace quern::text
