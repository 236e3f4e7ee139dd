// SPDX-License-Identifier: Apache-2.0
// Splitting: pieces cover the text, stages refine each other, and code points newer than PCRE2's tables keep their
// class.
#include "text/pretokenizer.h"

#include <gtest/gtest.h>

namespace quern::text {
namespace {

using Pieces = std::vector<std::string_view>;

PreTokenizer with_stages(std::initializer_list<const char*> patterns) {
  PreTokenizer pre_tokenizer;
  for (const char* pattern : patterns) EXPECT_TRUE(pre_tokenizer.add_stage(pattern, "p").ok()) << pattern;
  return pre_tokenizer;
}

TEST(PreTokenizer, WithoutStagesTheTextIsOnePiece) {
  EXPECT_EQ(*with_stages({}).split("a b"), (Pieces{"a b"}));
  EXPECT_EQ(*with_stages({}).split(""), Pieces{});
}

TEST(PreTokenizer, MatchesAndWhatLiesBetweenArePieces) {
  EXPECT_EQ(*with_stages({"\\d+"}).split("ab12c3"), (Pieces{"ab", "12", "c", "3"}));
  EXPECT_EQ(*with_stages({"\\d"}).split("xyz"), (Pieces{"xyz"}));
}

TEST(PreTokenizer, LaterStagesSeeEachPieceAlone) {
  // In the whole text a blank before "1" is followed by a non-blank; in its piece it is not.
  EXPECT_EQ(*with_stages({"\\d", "\\s+(?!\\S)"}).split("a 1"), (Pieces{"a", " ", "1"}));
}

TEST(PreTokenizer, PiecesPointIntoTheText) {
  const std::string text = "a\U00010D40b";  // a digit since Unicode 16
  const auto pieces = with_stages({"\\p{N}"}).split(text);
  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(*pieces, (Pieces{"a", "\U00010D40", "b"}));
  EXPECT_EQ((*pieces)[1].data(), text.data() + 1);
}

TEST(PreTokenizer, ClassesAreThoseOfTheReference) {
  EXPECT_EQ(*with_stages({"\\s"}).split("a\u180Eb\u0085c"), (Pieces{"a\u180Eb", "\u0085", "c"}));
  EXPECT_EQ(*with_stages({"\\p{L}+"}).split("-\U00031350-"), (Pieces{"-", "\U00031350", "-"}));
  EXPECT_EQ(*with_stages({"\\p{Lu}"}).split("a\u1C89b"), (Pieces{"a", "\u1C89", "b"}));
}

TEST(PreTokenizer, LongRunsMatch) {
  constexpr size_t kRun = size_t{4} << 20;
  const PreTokenizer pre_tokenizer = with_stages({"\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|(?:a|b)+"});
  const std::string text = std::string(kRun, ' ') + "x" + std::string(kRun, 'a');
  const auto pieces = pre_tokenizer.split(text);
  ASSERT_TRUE(pieces.ok()) << pieces.error().message();
  ASSERT_EQ(pieces->size(), 4u);
  EXPECT_EQ((*pieces)[0].size(), kRun - 1);
}

TEST(PreTokenizer, ExplodingPatternEndsWithAnError) {
  const auto pieces = with_stages({"(?:a+)+[bc]"}).split(std::string(60, 'a'));
  ASSERT_FALSE(pieces.ok());
  EXPECT_EQ(pieces.error().code, Errc::unsupported);
}

}  // namespace
}  // namespace quern::text
