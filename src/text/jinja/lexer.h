// SPDX-License-Identifier: Apache-2.0
// Owns the tokens of a template: where text ends and code begins, what white space the tags take away, and the
// literals. Follows jinja2 with trim_blocks and lstrip_blocks, as chat templates are rendered. Does not own the
// grammar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::text::jinja {

enum class TokenKind : uint8_t {
  text,
  output_begin,
  output_end,
  tag_begin,
  tag_end,
  name,
  string,
  integer,
  real,
  sign,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 1;
  std::string text;  // text, name, decoded string, or the characters of a sign
  int64_t integer = 0;
  double real = 0;
};

// "line N", the place of every error about a template.
std::string at_line(int line);

// The last token has kind `end`. Errors: bad_model (tags, comments or strings that are not closed, characters that mean
// nothing), unsupported (literals that jinja2 knows and quern does not), with the line.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace quern::text::jinja
