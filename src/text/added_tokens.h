// SPDX-License-Identifier: Apache-2.0
// Owns the added tokens of a tokenizer file: which they are and how they are cut out of a text before anything else
// happens to it. Does not own their ids' place in the vocabulary (tokenizer.cc).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quern::text {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;
  bool strip_left = false;   // takes the white space before it along
  bool strip_right = false;  // takes the white space behind it along
  bool normalized = false;   // looked for in the normalized text
};

// A stretch of text: an added token, or what lies between two.
struct Segment {
  const AddedToken* token = nullptr;  // null: ordinary text
  std::string_view text;              // empty for a token
};

// Finds the leftmost longest matches of a fixed set of texts. Time is the text's length times that of the longest
// token. Const methods may run in several threads at once; the tokens given must outlive the matcher.
class AddedTokenMatcher {
 public:
  // `pattern` is the text to look for: that of the token or its normalized form; not empty.
  void add(std::string_view pattern, const AddedToken* token);
  bool empty() const { return nodes_.size() == 1; }

  // Splits `text` (well-formed UTF-8) in order; ordinary stretches are not empty. Without `parse_special`, a match of a
  // special token stays ordinary text.
  void split(std::string_view text, bool parse_special, std::vector<Segment>& out) const;

 private:
  struct Node {
    const AddedToken* token = nullptr;
    std::vector<std::pair<char, int32_t>> children;
  };
  struct Match {
    const AddedToken* token = nullptr;
    size_t bytes = 0;
  };
  Match longest_at(std::string_view text) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};
};

}  // namespace quern::text
