// SPDX-License-Identifier: Apache-2.0
// Owns the place in a list of tokens: looking ahead, stepping on, and the errors about what was expected.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/jinja/lexer.h"

namespace quern::text::jinja {

class TokenCursor {
 public:
  // Precondition: the last token has kind `end`.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  int line() const { return peek().line; }
  bool is(TokenKind kind) const { return peek().kind == kind; }
  bool is_sign(std::string_view text, size_t ahead = 0) const { return is(TokenKind::sign, text, ahead); }
  bool is_name(std::string_view text, size_t ahead = 0) const { return is(TokenKind::name, text, ahead); }
  bool is_name_of(std::initializer_list<std::string_view> names) const;

  // Steps behind the token. The end is never passed.
  const Token& next();
  bool skip_sign(std::string_view text);
  bool skip_name(std::string_view text);

  // Errors: bad_model, with what is there instead.
  Result<void> expect(TokenKind kind);
  Result<void> expect_sign(std::string_view text);
  Result<void> expect_name(std::string_view text);
  Result<std::string> expect_any_name();
  Error unexpected(std::string_view wanted) const;

 private:
  bool is(TokenKind kind, std::string_view text, size_t ahead) const {
    return peek(ahead).kind == kind && peek(ahead).text == text;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace quern::text::jinja
