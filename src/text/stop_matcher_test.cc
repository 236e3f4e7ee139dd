// SPDX-License-Identifier: Apache-2.0
// Stop strings against plain search in the whole text, however it is cut.
#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace quern::text {
namespace {

StopMatcher matcher(const std::vector<std::string>& stops) { return StopMatcher::make(stops).value(); }

// All pieces given out, and whether a stop string ended them.
std::pair<std::string, bool> stream(StopMatcher matcher, const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) {
    const std::string got = matcher.push(piece);
    EXPECT_FALSE(find_invalid_utf8(got).has_value());
    out += got;
  }
  const bool stopped = matcher.stopped();
  return {out + matcher.finish(), stopped};
}

TEST(StopMatcher, StopStringSplitAcrossTokens) {
  auto m = matcher({"</end>"});
  EXPECT_EQ(m.push("abc <"), "abc ");
  EXPECT_EQ(m.push("/e"), "");
  EXPECT_EQ(m.push("nd"), "");
  EXPECT_FALSE(m.stopped());
  EXPECT_EQ(m.push("> more"), "");
  EXPECT_TRUE(m.stopped());
  EXPECT_EQ(m.push("and more"), "");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, TextThatOnlyLooksLikeTheStartIsGivenOut) {
  auto m = matcher({"</end>"});
  EXPECT_EQ(m.push("a</e"), "a");
  EXPECT_EQ(m.push("</en"), "</e");
  EXPECT_EQ(m.push("x"), "</enx");
  EXPECT_EQ(m.push("<"), "");
  EXPECT_EQ(m.finish(), "<");
  EXPECT_EQ(m.push("/end>"), "/end>");  // a new text
}

TEST(StopMatcher, FirstToBeCompleteWinsThenTheLongest) {
  EXPECT_EQ(stream(matcher({"abcd", "bc"}), {"xabcdy"}), std::pair(std::string("xa"), true));
  EXPECT_EQ(stream(matcher({"c", "abc"}), {"xabcy"}), std::pair(std::string("x"), true));
  EXPECT_EQ(stream(matcher({"abc", "c"}), {"xab", "cy"}), std::pair(std::string("x"), true));
}

// Behind "aabaaa" the b continues the "aa" that starts four bytes later.
TEST(StopMatcher, MatchMayStartInsideOneThatFails) {
  EXPECT_EQ(stream(matcher({"aabaaac"}), {"aabaaab", "aaac"}), std::pair(std::string("aaba"), true));
}

TEST(StopMatcher, WholeCharactersAreHeldBack) {
  auto m = matcher({"é!"});  // its first byte also begins "è"
  EXPECT_EQ(m.push("è"), "è");
  EXPECT_EQ(m.push("aé"), "a");
  EXPECT_EQ(m.push("é"), "é");
  EXPECT_EQ(m.push("!"), "");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, NoStopStringHoldsNothingBack) {
  EXPECT_EQ(stream(matcher({}), {"a", "b"}), std::pair(std::string("ab"), false));
}

TEST(StopMatcher, CutsOfTheTextDoNotMatter) {
  std::mt19937 random(11);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  const auto word = [&](int least, int most) {
    std::string text;
    for (int n = draw(least, most); n > 0; n--)
      text += std::array<std::string, 4>{"a", "a", "b", "é"}[static_cast<size_t>(draw(0, 3))];
    return text;
  };
  for (int round = 0; round < 3000; round++) {
    std::vector<std::string> stops, pieces;
    for (int n = draw(1, 3); n > 0; n--) stops.push_back(word(1, 9));
    std::string text;
    for (int n = draw(0, 40); n > 0; n--) text += pieces.emplace_back(word(0, 3));
    // The end of the match that ends first, and the start of the longest that ends there.
    size_t end = std::string::npos, start = text.size();
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < end) start = at;
      if (at + stop.size() == end) start = std::min(start, at);
      end = std::min(end, at + stop.size());
    }
    const auto [out, stopped] = stream(matcher(stops), pieces);
    ASSERT_EQ(stopped, end != std::string::npos) << text;
    ASSERT_EQ(out, text.substr(0, start)) << text;
  }
}

TEST(StopMatcher, StringsThatCannotBeFoundAreRefusedByPosition) {
  for (const std::string& bad : {std::string(), std::string("a\xC3"), std::string("\x80")}) {
    const auto made = StopMatcher::make({"fine", bad});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, Errc::bad_request);
    EXPECT_EQ(made.error().where, "stop string 1");
  }
}

}  // namespace
}  // namespace quern::text
