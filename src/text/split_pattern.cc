// SPDX-License-Identifier: Apache-2.0
// The two engines differ in anchors, the dot, \w, \h, scripts, set operations in classes and full case folding.
// Patterns that use any of these are refused rather than translated: no published Qwen tokenizer needs them.
#include "text/split_pattern.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/quote_name.h"

namespace quern::text {
namespace {

// Published patterns have 100 to 500 bytes.
constexpr size_t kMaxPatternBytes = 4096;

constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
                                            "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                                            "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};

// Letter pairs to which a single character folds (as in U+FB01); the reference's engine matches them, PCRE2 does not.
constexpr std::string_view kFoldingPairs[] = {"ff", "fi", "fl", "ss", "st"};

bool is_ascii_alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_punctuation(char c) { return c > ' ' && c < '\x7F' && !is_ascii_alnum(c); }
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

class Scanner {
 public:
  Scanner(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  Result<void> scan() {
    if (pattern_.size() > kMaxPatternBytes) {
      return unsupported(
          where_, fmt::format("the pattern has {} bytes; at most {} are supported", pattern_.size(), kMaxPatternBytes));
    }
    while (at_ < pattern_.size()) QUERN_TRY_VOID(scan_one());
    return {};
  }

 private:
  Result<void> refuse(size_t offset, std::string_view construct) const {
    return unsupported(where_,
                       fmt::format("the pattern uses {} at byte {}, which is not supported", construct, offset));
  }

  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  Result<void> scan_one() {
    const char c = pattern_[at_];
    switch (c) {
      case '\\': literal_ = '\0'; return scan_escape();
      case '[': literal_ = '\0'; return scan_class();
      case '(': literal_ = '\0'; return open_group();
      case ')':
        literal_ = '\0';
        if (!caseless_.empty()) caseless_.pop_back();
        ++at_;
        return {};
      case '{': return scan_repeat();
      case '^':
      case '$':
      case '.': return refuse(at_, fmt::format("'{}'", c));
      default: return scan_literal(c);
    }
  }

  Result<void> scan_literal(char c) {
    if (is_caseless()) {
      if (static_cast<unsigned char>(c) >= 0x80) return refuse(at_, "a character outside ASCII in a caseless group");
      const std::array<char, 2> pair = {to_lower(literal_), to_lower(c)};
      for (const std::string_view folding : kFoldingPairs) {
        if (std::string_view(pair.data(), pair.size()) == folding) {
          return refuse(at_, fmt::format("the letters '{}' in a caseless group", folding));
        }
      }
    }
    literal_ = is_ascii_alnum(c) ? c : '\0';
    ++at_;
    return {};
  }

  // \r \n \t \s \S \d \D, a general category, or punctuation.
  Result<void> scan_escape() {
    const size_t start = at_;
    if (at_ + 1 == pattern_.size()) return refuse(start, "a backslash at the end");
    const char c = pattern_[at_ + 1];
    at_ += 2;
    if (is_ascii_punctuation(c)) return {};
    if (std::string_view("rntsSdD").find(c) != std::string_view::npos) return {};
    if (c != 'p' && c != 'P') return refuse(start, fmt::format("the escape {}", quote_name(pattern_.substr(start, 2))));
    if (is_caseless()) return refuse(start, "a property in a caseless group");
    const size_t close = pattern_.find('}', at_);
    if (!follows("{") || close == std::string_view::npos) return refuse(start, "a property without braces");
    const std::string_view name = pattern_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    for (const std::string_view category : kCategories) {
      if (name == category) return {};
    }
    return refuse(start, "a property that is not a general category");
  }

  Result<void> scan_class() {
    const size_t start = at_;
    ++at_;
    if (follows("^")) ++at_;
    if (follows("]")) return refuse(at_, "']' as the first member of a class");
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == ']') {
        ++at_;
        return {};
      }
      if (c == '[') return refuse(at_, "'[' in a class");
      if (follows("&&")) return refuse(at_, "'&&' in a class");
      if (c == '\\') {
        const bool is_set = at_ + 1 < pattern_.size() && is_ascii_alnum(pattern_[at_ + 1]);
        QUERN_TRY_VOID(scan_escape());
        const bool has_more = at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
        if (is_set && follows("-") && has_more) return refuse(at_, "a range that begins with an escape");
        continue;
      }
      if (is_caseless() && static_cast<unsigned char>(c) >= 0x80) {
        return refuse(at_, "a character outside ASCII in a caseless group");
      }
      ++at_;
    }
    return refuse(start, "a class without end");
  }

  Result<void> open_group() {
    const size_t start = at_;
    bool caseless = is_caseless();
    if (follows("(?i:")) {
      caseless = true;
      at_ += 4;
    } else if (follows("(?:") || follows("(?=") || follows("(?!")) {
      at_ += 3;
    } else if (follows("(?") || follows("(*")) {
      return refuse(start, fmt::format("the group {}", quote_name(pattern_.substr(start, 3))));
    } else {
      at_ += 1;
    }
    caseless_.push_back(caseless);
    return {};
  }

  // {n}, {n,} or {n,m}, greedy: the other forms, and what may follow the brace, differ between the engines.
  Result<void> scan_repeat() {
    const size_t start = at_;
    const auto skip_digits = [&] {
      const size_t from = at_;
      while (at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9') ++at_;
      return at_ > from;
    };
    ++at_;
    if (!skip_digits()) return refuse(start, "'{' without a count");
    if (follows(",")) {
      ++at_;
      skip_digits();
    }
    if (!follows("}")) return refuse(start, "'{' without a count");
    ++at_;
    if (follows("+") || follows("?") || follows("*")) return refuse(at_, "a quantifier after a counted repeat");
    return {};
  }

  bool is_caseless() const { return !caseless_.empty() && caseless_.back(); }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  char literal_ = '\0';         // the letter just before `at_`, if that was a plain one
  std::vector<bool> caseless_;  // one entry per open group
};

}  // namespace

Result<void> check_split_pattern(std::string_view pattern, const std::string& where) {
  return Scanner(pattern, where).scan();
}

std::string literal_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (is_ascii_punctuation(c)) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace quern::text
