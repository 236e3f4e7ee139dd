// SPDX-License-Identifier: Apache-2.0
// A trie over bytes. The order of the rules about stripping and skipping is that of the reference, also where matches
// touch: stripped white space may be claimed by two tokens.
#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace quern::text {
namespace {

// The Unicode property White_Space, stable since version 6.3.
bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// The start of the white space that ends at `end`, not before `begin`.
size_t white_space_start(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t at = start;
    if (!is_white_space(next_code_point(text, at))) break;
    end = start;
  }
  return end;
}

size_t white_space_end(std::string_view text, size_t begin) {
  for (size_t at = begin; at < text.size(); begin = at) {
    if (!is_white_space(next_code_point(text, at))) break;
  }
  return begin;
}

}  // namespace

void AddedTokenMatcher::add(std::string_view pattern, const AddedToken* token) {
  starts_[static_cast<unsigned char>(pattern.front())] = true;
  size_t node = 0;
  for (const char byte : pattern) {
    auto& children = nodes_[node].children;
    const auto child = std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.first == byte; });
    if (child != children.end()) {
      node = static_cast<size_t>(child->second);
      continue;
    }
    const size_t fresh = nodes_.size();
    children.emplace_back(byte, static_cast<int32_t>(fresh));
    nodes_.emplace_back();
    node = fresh;
  }
  if (nodes_[node].token == nullptr) nodes_[node].token = token;
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_at(std::string_view text) const {
  Match match;
  size_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& children = nodes_[node].children;
    const auto child =
        std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.first == text[i]; });
    if (child == children.end()) break;
    node = static_cast<size_t>(child->second);
    if (nodes_[node].token != nullptr) match = {nodes_[node].token, i + 1};
  }
  return match;
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special, std::vector<Segment>& out) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !empty();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest_at(text.substr(at));
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    const size_t match_end = at + match.bytes;
    if (match.token->special && !parse_special) {
      at = match_end;
      continue;
    }
    // `done` may lie behind `at` if the token before stripped the white space with which this one begins.
    size_t begin = at;
    if (match.token->strip_left) begin = done < at ? white_space_start(text, done, at) : done;
    const size_t end = match.token->strip_right ? white_space_end(text, match_end) : match_end;
    if (done < begin) out.push_back({nullptr, text.substr(done, begin - done)});
    out.push_back({match.token, {}});
    done = end;
    at = match_end;
  }
  if (done < text.size()) out.push_back({nullptr, text.substr(done)});
}

}  // namespace quern::text
