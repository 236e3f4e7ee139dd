// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include "text/jinja/value.h"
#include "text/utf8.h"

namespace quern::text::jinja {
namespace {

// The start of the last character before `end`.
size_t previous_start(std::string_view text, size_t end) {
  size_t at = end - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

bool is_space(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

int64_t code_point_count(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

CodePoints::CodePoints(std::string_view text) : text_(text) {
  starts_.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts_.push_back(i);
  }
  starts_.push_back(text.size());
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> characters) {
  const auto goes = [&](std::string_view character) {
    if (characters) return characters->find(character) != std::string_view::npos;
    size_t at = 0;
    return is_space(next_code_point(character, at));
  };
  size_t begin = 0, end = text.size();
  while (side != Side::right && begin < end) {
    size_t next = begin;
    next_code_point(text, next);
    if (!goes(text.substr(begin, next - begin))) break;
    begin = next;
  }
  while (side != Side::left && begin < end) {
    const size_t last = previous_start(text, end);
    if (!goes(text.substr(last, end - last))) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t most) {
  std::vector<std::string_view> parts;
  const auto more = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (separator) {
    size_t begin = 0;
    for (size_t at; more() && (at = text.find(*separator, begin)) != std::string_view::npos;) {
      parts.push_back(text.substr(begin, at - begin));
      begin = at + separator->size();
    }
    parts.push_back(text.substr(begin));
    return parts;
  }
  std::string_view rest = strip(text, Side::left);
  while (!rest.empty()) {
    if (!more()) {
      parts.push_back(rest);
      break;
    }
    size_t end = 0;
    for (size_t next = 0; end < rest.size(); end = next) {
      if (is_space(next_code_point(rest, next))) break;
    }
    parts.push_back(rest.substr(0, end));
    rest = strip(rest.substr(end), Side::left);
  }
  return parts;
}

Result<std::string> replace(std::string_view text, std::string_view from, std::string_view to, int64_t most,
                            Budget& budget) {
  QUERN_TRY_VOID(budget.spend_search(text.size(), from.size()));
  std::string out;
  size_t begin = 0;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    size_t at = text.find(from, begin);
    if (from.empty() && count > 0) {  // once in front, then behind every character
      if (begin == text.size()) break;
      at = begin;
      next_code_point(text, at);
    }
    if (at == std::string_view::npos) break;
    out.append(text.substr(begin, at - begin)).append(to);
    begin = at + from.size();
    QUERN_TRY_VOID(budget.spend_text(to.size()));
  }
  out.append(text.substr(begin));
  return out;
}

Result<std::string> change_case(std::string_view text, Case wanted) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    if (c >= 0x80) {
      const utf8proc_category_t category = utf8proc_category(c);
      const bool cased = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
                         category == UTF8PROC_CATEGORY_LT || utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
      if (cased) return refuse(fmt::format("changing the letter case of U+{:04X} is not supported", c));
      out.append(text.substr(start, at - start));
      continue;
    }
    const bool upper = wanted == Case::upper || (wanted == Case::capitalized && start == 0);
    const auto letter = static_cast<char>(c);
    if (upper && letter >= 'a' && letter <= 'z') {
      out.push_back(static_cast<char>(letter - 'a' + 'A'));
    } else if (!upper && letter >= 'A' && letter <= 'Z') {
      out.push_back(static_cast<char>(letter - 'A' + 'a'));
    } else {
      out.push_back(letter);
    }
  }
  return out;
}

}  // namespace quern::text::jinja
