// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/token_cursor.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"

namespace quern::text::jinja {
namespace {

std::string description(TokenKind kind) {
  switch (kind) {
    case TokenKind::text: return "text";
    case TokenKind::output_begin: return "'{{'";
    case TokenKind::output_end: return "'}}'";
    case TokenKind::tag_begin: return "'{%'";
    case TokenKind::tag_end: return "'%}'";
    case TokenKind::name: return "a name";
    case TokenKind::string: return "a string";
    case TokenKind::integer:
    case TokenKind::real: return "a number";
    case TokenKind::sign: return "a sign";
    case TokenKind::end: return "the end of the template";
  }
  return "";
}

}  // namespace

bool TokenCursor::is_name_of(std::initializer_list<std::string_view> names) const {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return is_name(name); });
}

const Token& TokenCursor::next() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenCursor::skip_sign(std::string_view text) {
  const bool there = is_sign(text);
  if (there) next();
  return there;
}

bool TokenCursor::skip_name(std::string_view text) {
  const bool there = is_name(text);
  if (there) next();
  return there;
}

Error TokenCursor::unexpected(std::string_view wanted) const {
  const Token& token = peek();
  const bool shown = token.kind == TokenKind::name || token.kind == TokenKind::sign;
  return bad_model(at_line(token.line), fmt::format("{} is expected here, not {}", wanted,
                                                    shown ? quote_name(token.text) : description(token.kind)));
}

Result<void> TokenCursor::expect(TokenKind kind) {
  if (!is(kind)) return unexpected(description(kind));
  next();
  return {};
}

Result<void> TokenCursor::expect_sign(std::string_view text) {
  if (!skip_sign(text)) return unexpected(quote_name(text));
  return {};
}

Result<void> TokenCursor::expect_name(std::string_view text) {
  if (!skip_name(text)) return unexpected(quote_name(text));
  return {};
}

Result<std::string> TokenCursor::expect_any_name() {
  if (!is(TokenKind::name)) return unexpected("a name");
  return next().text;
}

}  // namespace quern::text::jinja
