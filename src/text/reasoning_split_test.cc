// SPDX-License-Identifier: Apache-2.0
// Reasoning and answer by hand-written cases, whole, cut at every place, and a byte at a time.
#include "text/reasoning_split.h"

#include <gtest/gtest.h>

#include <vector>

namespace quern::text {
namespace {

struct Case {
  bool open;
  std::string text, reasoning, answer;
};

const std::vector<Case> kCases = {
    {false, "", "", ""},
    {false, "Hello.", "", "Hello."},
    {false, "  Hello. \n", "", "  Hello. \n"},
    {false, "<think>\nHm, so.\n\nYes.\n</think>\n\nFour.\n", "Hm, so.\n\nYes.", "Four.\n"},
    {false, "<think>\n\n</think>\n\nFour.", "", "Four."},
    {false, "\n<think>Hm</think>Four", "Hm", "Four"},
    {false, "<think>no end <", "no end <", ""},
    {false, "<think>no end \n </thin", "no end \n </thin", ""},
    {false, "<think>a </ b </think> c", "a </ b", "c"},
    {false, "<think>a <</think>c", "a <", "c"},
    {false, "<thinking> is a word", "", "<thinking> is a word"},
    {false, "<th", "", "<th"},
    {false, "The tag <think> is text </think> here", "", "The tag <think> is text </think> here"},
    {false, "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"},
    {false, "<think>a <think> b</think>c", "a <think> b", "c"},
    {true, "Hm.\n</think>\n\nFour.", "Hm.", "Four."},
    {true, "\nHm", "Hm", ""},
    {true, "</think>Four.", "", "Four."},
    {true, "", "", ""},
};

void expect(const Case& c, const std::vector<std::string>& pieces) {
  ReasoningSplit split(c.open);
  std::string reasoning, answer;
  const auto take = [&](const ReasoningSplit::Parts& parts) {
    EXPECT_TRUE(parts.reasoning.empty() || answer.empty()) << "reasoning behind the answer";
    reasoning += parts.reasoning;
    answer += parts.answer;
  };
  for (const std::string& piece : pieces) take(split.push(piece));
  take(split.finish());
  EXPECT_EQ(reasoning, c.reasoning) << c.text;
  EXPECT_EQ(answer, c.answer) << c.text;
}

TEST(ReasoningSplit, PartsAreTheSameHoweverTheTextIsCut) {
  for (const Case& c : kCases) {
    expect(c, {c.text});
    std::vector<std::string> bytes;
    for (size_t i = 0; i < c.text.size(); i++) {
      expect(c, {c.text.substr(0, i), c.text.substr(i)});
      bytes.push_back(c.text.substr(i, 1));
    }
    expect(c, bytes);
  }
}

TEST(ReasoningSplit, OnlyWhatMayBecomeATagIsHeldBack) {
  ReasoningSplit split(false);
  EXPECT_EQ(split.push("<think>One").reasoning, "One");
  EXPECT_EQ(split.push(" two").reasoning, " two");
  EXPECT_EQ(split.push(" <b").reasoning, " <b");
  EXPECT_EQ(split.push("\n</").reasoning, "");
  EXPECT_EQ(split.push("b>").reasoning, "\n</b>");
  EXPECT_EQ(split.push("</think>").reasoning, "");
  EXPECT_EQ(split.push("\nFour").answer, "Four");
  EXPECT_EQ(split.push(" \n").answer, " \n");
}

TEST(ReasoningSplit, PromptsThatOpenReasoningAreRecognised) {
  EXPECT_TRUE(ReasoningSplit::is_open_at_end_of("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(ReasoningSplit::is_open_at_end_of("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ReasoningSplit::is_open_at_end_of("<|im_start|>assistant\n"));
  EXPECT_FALSE(ReasoningSplit::is_open_at_end_of(""));
}

}  // namespace
}  // namespace quern::text
