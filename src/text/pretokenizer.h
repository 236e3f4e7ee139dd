// SPDX-License-Identifier: Apache-2.0
// Owns the splitting of normalized text into pre-tokens by the regular expressions of a tokenizer file. Does not own
// the check that a pattern means here what it means in the reference (split_pattern.h), nor what happens to a
// pre-token.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::text {

// Stages run one after another; each splits every piece of the stage before, looked at as a text of its own. A match is
// a piece and so is what lies between two matches (the behaviour "Isolated"). Without stages a text is one piece. Const
// methods may run in several threads at once.
class PreTokenizer {
 public:
  PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // `where` is the JSON path for errors: unsupported (not expressible here, or may match nothing at all), bad_model (no
  // regular expression).
  Result<void> add_stage(const std::string& pattern, const std::string& where);

  // The pieces cover `text` (well-formed UTF-8) without gaps; none is empty. They point into `text`.
  // Errors: unsupported, when matching takes more steps than any published pattern needs.
  Result<std::vector<std::string_view>> split(std::string_view text) const;

 private:
  struct Stage;
  std::vector<std::unique_ptr<const Stage>> stages_;
};

}  // namespace quern::text
