// SPDX-License-Identifier: Apache-2.0
// Owns what Python's str does with characters: blanks, stripping, splitting, replacing, letter case, places counted in
// code points. All texts are well-formed UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::text::jinja {

class Budget;

// str.isspace() of one character; also \s of Python's regular expressions.
bool is_space(char32_t code_point);

int64_t code_point_count(std::string_view text);

// The code points of a text by their number.
class CodePoints {
 public:
  explicit CodePoints(std::string_view text);
  size_t size() const { return starts_.size() - 1; }
  // From code point `begin` up to, not including, `end`.
  std::string_view part(size_t begin, size_t end) const {
    return text_.substr(starts_[begin], starts_[end] - starts_[begin]);
  }

 private:
  std::string_view text_;
  std::vector<size_t> starts_;  // byte offsets; the last one is the size
};

enum class Side : uint8_t { left, right, both };
// str.strip, lstrip and rstrip: without `characters`, blanks go.
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> characters = std::nullopt);

// str.split(separator, most); `most` below 0 is no limit, no separator splits at runs of blanks. Precondition: the
// separator is not empty.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t most);

// str.replace(from, to, most), also for an empty `from`; `most` below 0 is no limit.
Result<std::string> replace(std::string_view text, std::string_view from, std::string_view to, int64_t most,
                            Budget& budget);

// Upper, lower, or the first character upper and the rest lower. Errors: letters outside ASCII that have a case.
enum class Case : uint8_t { upper, lower, capitalized };
Result<std::string> change_case(std::string_view text, Case wanted);

}  // namespace quern::text::jinja
