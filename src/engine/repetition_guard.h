// SPDX-License-Identifier: Apache-2.0
// Owns the question whether generated tokens go round in a circle for ever. Does not own what follows from that.
#pragma once

#include <array>
#include <cstdint>

namespace quern::engine {

// A circle is the same cycle of tokens `times` times in a row, with at least `times` * kMinTokens tokens in all, up to
// the last token. Looked for are cycles of at most kMaxTokens. For one thread; allocates nothing.
class RepetitionGuard {
 public:
  static constexpr int32_t kMinTokens =
      10;  // shorter cycles count as this long: rules and rows of equal cells are text
  static constexpr int32_t kMaxTokens = 256;  // a long paragraph
  // Above what tables of equal rows hold: 256 elements, 8 in a row, have 32.
  static constexpr int32_t kDefaultTimes = 40;

  // 0: never.
  explicit RepetitionGuard(int32_t times) : times_(times) {}

  // Takes the next token. Returns the tokens of the shortest cycle that goes round, or 0.
  int32_t push(int32_t id);

 private:
  int32_t times_;
  int64_t count_ = 0;
  std::array<int32_t, kMaxTokens> last_{};     // token n at n % kMaxTokens
  std::array<int32_t, kMaxTokens + 1> run_{};  // by cycle: how many tokens in a row equal the one a cycle before
};

}  // namespace quern::engine
