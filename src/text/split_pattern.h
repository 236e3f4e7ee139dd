// SPDX-License-Identifier: Apache-2.0
// Owns the decision which regular expressions of a tokenizer file mean the same to PCRE2 as to the reference's engine
// (Oniguruma with Ruby syntax). Does not compile or run them (pretokenizer.h).
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace quern::text {

// Errors: unsupported, naming the construct and its byte offset in the pattern. `where` is the JSON path of the
// pattern. Allowed: literals, classes without set operations, | ( ) (?: (?i: (?= (?!, the quantifiers, and the escapes
// \r \n \t \s \S \d \D \p{..} \P{..} with a general category, and escaped punctuation.
Result<void> check_split_pattern(std::string_view pattern, const std::string& where);

// The pattern that matches `text` literally.
std::string literal_pattern(std::string_view text);

}  // namespace quern::text
