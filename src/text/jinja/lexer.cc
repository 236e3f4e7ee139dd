// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/quote_name.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace quern::text::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Line ends become \n, and one at the very end goes.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) QUERN_TRY_VOID(next_text());
    push(TokenKind::end, at_);
    return std::move(tokens_);
  }

 private:
  char peek(size_t offset = 0) const { return at_ + offset < source_.size() ? source_[at_ + offset] : '\0'; }
  bool looking_at(std::string_view text) const { return std::string_view(source_).substr(at_, text.size()) == text; }

  // Tokens come in order, so lines are counted once; only an error may look back.
  int line_at(size_t offset) {
    if (offset < counted_) {
      counted_ = 0;
      line_ = 1;
    }
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
    counted_ = offset;
    return line_;
  }

  Token& push(TokenKind kind, size_t offset, std::string text = {}) {
    tokens_.push_back({kind, line_at(offset), std::move(text)});
    return tokens_.back();
  }

  void skip_blanks() {
    const std::string_view rest = std::string_view(source_).substr(at_);
    at_ += rest.size() - strip(rest, Side::left).size();
  }

  // What ends a tag: "+%}" keeps the line end behind, "-%}" takes all blanks away, "%}" one line end. False if the tag
  // does not end here.
  bool end_of_tag(std::string_view closing, bool takes_line_end) {
    const bool plus = takes_line_end && peek() == '+';
    const bool minus = peek() == '-';
    const size_t sign = plus || minus ? 1 : 0;
    if (std::string_view(source_).substr(std::min(at_ + sign, source_.size()), closing.size()) != closing) return false;
    at_ += sign + closing.size();
    if (minus) {
      skip_blanks();
    } else if (!plus && takes_line_end && peek() == '\n') {
      ++at_;
    }
    return true;
  }

  // Text up to a tag, less the white space that the tag takes away in front of it.
  void push_text(size_t begin, size_t end, char sign, bool whole_lines) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      text = strip(text, Side::right);
    } else if (sign != '+' && whole_lines) {
      const size_t line = text.rfind('\n') + 1;  // 0 when there is none
      const bool starts_line = line > 0 || begin == 0 || source_[begin - 1] == '\n';
      if (starts_line && strip(text.substr(line), Side::left).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) push(TokenKind::text, begin, std::string(text));
  }

  char take_sign() {
    const char sign = peek();
    if (sign != '-' && sign != '+') return '\0';
    ++at_;
    return sign;
  }

  Result<void> next_text() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        at_ = source_.size();
        push(TokenKind::text, begin, source_.substr(begin));
        return {};
      }
      if (source_[tag + 1] == '{' || source_[tag + 1] == '%' || source_[tag + 1] == '#') break;
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    const char sign = take_sign();
    push_text(begin, tag, sign, kind != '{');
    if (kind == '#') return comment(tag);
    if (kind == '%' && begins_raw()) return raw(tag);
    push(kind == '{' ? TokenKind::output_begin : TokenKind::tag_begin, tag);
    return code(tag, kind == '{');
  }

  Result<void> comment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) {
      return bad_model(at_line(line_at(tag)), "the comment that starts here is not closed");
    }
    const char before = end > at_ ? source_[end - 1] : '\0';
    at_ = before == '+' || before == '-' ? end - 1 : end;
    end_of_tag("#}", true);
    return {};
  }

  // Moves behind "raw %}" if that is what follows.
  bool begins_raw() {
    const size_t start = at_;
    skip_blanks();
    if (looking_at("raw")) {
      at_ += 3;
      skip_blanks();
      const bool minus = peek() == '-';
      if (std::string_view(source_).substr(at_ + (minus ? 1 : 0), 2) == "%}") {
        at_ += minus ? 3 : 2;
        if (minus) skip_blanks();
        return true;
      }
    }
    at_ = start;
    return false;
  }

  Result<void> raw(size_t tag) {
    const size_t begin = at_;
    for (size_t end = source_.find("{%", begin); end != std::string::npos; end = source_.find("{%", end + 1)) {
      at_ = end + 2;
      const char sign = take_sign();
      skip_blanks();
      if (!looking_at("endraw")) continue;
      at_ += 6;
      skip_blanks();
      const size_t behind = at_;
      if (!end_of_tag("%}", true)) continue;
      const size_t next = at_;
      at_ = behind;
      push_text(begin, end, sign, true);
      at_ = next;
      return {};
    }
    return bad_model(at_line(line_at(tag)), "the raw block that starts here is not closed");
  }

  Result<void> code(size_t tag, bool output) {
    std::string open;  // brackets
    for (;;) {
      if (open.empty() && end_of_tag(output ? "}}" : "%}", !output)) {
        push(output ? TokenKind::output_end : TokenKind::tag_end, at_ - 1);
        return {};
      }
      skip_blanks();
      if (at_ == source_.size()) return bad_model(at_line(line_at(tag)), "the tag that starts here is not closed");
      if (open.empty() && end_of_tag(output ? "}}" : "%}", !output)) {
        push(output ? TokenKind::output_end : TokenKind::tag_end, at_ - 1);
        return {};
      }
      QUERN_TRY_VOID(code_token(open));
    }
  }

  Result<void> code_token(std::string& open) {
    const char c = peek();
    if (is_digit(c)) return number();
    if (is_name_start(c)) {
      const size_t begin = at_;
      while (is_name_part(peek())) ++at_;
      push(TokenKind::name, begin, source_.substr(begin, at_ - begin));
      return {};
    }
    if (c == '\'' || c == '"') return string(c);
    return sign(open);
  }

  // A run of digits with single underscores between; empty if there is none.
  std::string digits() {
    std::string out;
    while (is_digit(peek()) || (peek() == '_' && !out.empty() && is_digit(peek(1)))) {
      if (peek() != '_') out.push_back(peek());
      ++at_;
    }
    return out;
  }

  Result<void> number() {
    const size_t begin = at_;
    const std::string where = at_line(line_at(begin));
    if (peek() == '0' && std::string_view("xXbBoO").find(peek(1)) != std::string_view::npos && peek(1) != '\0') {
      return unsupported(where, "integers that are not decimal are not supported");
    }
    std::string text = digits();
    const bool behind_dot = begin > 0 && source_[begin - 1] == '.';
    bool real = false;
    if (!behind_dot && peek() == '.' && is_digit(peek(1))) {
      ++at_;
      text += '.';
      text += digits();
      real = true;
    }
    const size_t exponent_sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if (!behind_dot && (peek() == 'e' || peek() == 'E') && is_digit(peek(1 + exponent_sign))) {
      text += 'e';
      if (peek(1) == '-') text += '-';
      at_ += 1 + exponent_sign;
      text += digits();
      real = true;
    }
    Token& token = push(real ? TokenKind::real : TokenKind::integer, begin);
    const char* end = text.data() + text.size();
    if (real) {
      if (std::from_chars(text.data(), end, token.real).ec == std::errc()) return {};
    } else {
      if (text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos) {
        return bad_model(where, fmt::format("the integer {} starts with 0", quote_name(text)));
      }
      if (std::from_chars(text.data(), end, token.integer).ec == std::errc()) return {};
    }
    return unsupported(where, fmt::format("the number {} does not fit", quote_name(text)));
  }

  Result<void> string(char quote) {
    const size_t begin = at_;
    std::string out;
    for (++at_; at_ < source_.size(); ++at_) {
      const char c = source_[at_];
      if (c == quote) {
        ++at_;
        push(TokenKind::string, begin, std::move(out));
        return {};
      }
      if (c != '\\') {
        out.push_back(c);
      } else {
        ++at_;
        QUERN_TRY_VOID(escape(begin, out));
      }
    }
    return bad_model(at_line(line_at(begin)), "the string that starts here is not closed");
  }

  // The escapes of Python's string literals; at_ is behind the backslash, and stays on the last character.
  Result<void> escape(size_t begin, std::string& out) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = peek();
    if (const size_t place = kLetters.find(c); place != std::string_view::npos && at_ < source_.size()) {
      out.push_back(kMeanings[place]);
    } else if (c == '\n') {
      // A line end behind a backslash joins two lines.
    } else if (c >= '0' && c <= '7') {
      char32_t value = 0;
      size_t count = 0;
      for (; count < 3 && peek(count) >= '0' && peek(count) <= '7'; ++count) {
        value = value * 8 + static_cast<char32_t>(peek(count) - '0');
      }
      at_ += count - 1;
      append_utf8(value, out);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return hexadecimal(begin, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    } else if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
      return unsupported(at_line(line_at(begin)),
                         "an escape by name, or of a character outside ASCII, is not supported");
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
    return {};
  }

  Result<void> hexadecimal(size_t begin, size_t count, std::string& out) {
    uint32_t value = 0;
    const char* first = source_.data() + std::min(at_ + 1, source_.size());
    const char* last = source_.data() + std::min(at_ + 1 + count, source_.size());
    const auto [end, error] = std::from_chars(first, last, value, 16);
    if (error != std::errc() || end != first + count) {
      return bad_model(at_line(line_at(begin)),
                       fmt::format("an escape of the string needs {} hexadecimal digits", count));
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      return unsupported(at_line(line_at(begin)), fmt::format("the escape of U+{:04X} is not supported", value));
    }
    at_ += count;
    append_utf8(value, out);
    return {};
  }

  Result<void> sign(std::string& open) {
    static constexpr std::array<std::string_view, 6> kDouble = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
    const size_t begin = at_;
    for (const std::string_view text : kDouble) {
      if (!looking_at(text)) continue;
      at_ += 2;
      push(TokenKind::sign, begin, std::string(text));
      return {};
    }
    const char c = peek();
    const std::string where = at_line(line_at(begin));
    if (kSingle.find(c) == std::string_view::npos) {
      const bool ascii = static_cast<unsigned char>(c) < 0x80;
      const std::string what = fmt::format("the character {} means nothing here", quote_name(std::string(1, c)));
      return ascii ? bad_model(where, what) : unsupported(where, "names outside ASCII are not supported");
    }
    constexpr std::string_view kOpening = "([{", kClosing = ")]}";
    if (kOpening.find(c) != std::string_view::npos) open.push_back(kClosing[kOpening.find(c)]);
    if (kClosing.find(c) != std::string_view::npos) {
      if (open.empty() || open.back() != c) {
        return bad_model(where, fmt::format("the bracket '{}' closes none that is open", c));
      }
      open.pop_back();
    }
    ++at_;
    push(TokenKind::sign, begin, std::string(1, c));
    return {};
  }

  const std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t counted_ = 0;
  int line_ = 1;
};

}  // namespace

std::string at_line(int line) { return fmt::format("line {}", line); }

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(normalized(source)).run(); }

}  // namespace quern::text::jinja
