// SPDX-License-Identifier: Apache-2.0
// Canonical composition on cases from the Unicode standard, and on those where the reference's older tables differ from
// it.
#include "text/nfc.h"

#include <gtest/gtest.h>

namespace quern::text {
namespace {

std::string nfc(std::string_view text) {
  std::string storage;
  return std::string(to_nfc(text, storage));
}

TEST(Nfc, NormalizedTextIsReturnedWithoutACopy) {
  std::string storage;
  const std::string_view text = "plain, \u00E9t\u00E9, \u4F60\u597D, \uD55C";
  EXPECT_EQ(to_nfc(text, storage).data(), text.data());
}

TEST(Nfc, MarksComposeWithTheirBase) {
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfc("xe\u0301e\u0301y"), "x\u00E9\u00E9y");
  EXPECT_EQ(nfc("e\u0301\u0323"), "\u1EB9\u0301");  // reordered first
  EXPECT_EQ(nfc("\u00EA\u0323"), "\u1EC7");         // decomposed, reordered, composed
  EXPECT_EQ(nfc("e\u0301\u0301"), "\u00E9\u0301");  // the second acute is blocked
  EXPECT_EQ(nfc("\u0301e"), "\u0301e");             // nothing to compose with
}

TEST(Nfc, SingletonsAndExclusionsDecompose) {
  EXPECT_EQ(nfc("\u2126\u212B"), "\u03A9\u00C5");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093C");
  EXPECT_EQ(nfc("\uF900"), "\u8C48");
}

TEST(Nfc, HangulComposes) {
  EXPECT_EQ(nfc("\u1100\u1161"), "\uAC00");
  EXPECT_EQ(nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(nfc("\uAC00\u11A8"), "\uAC01");
  EXPECT_EQ(nfc("\uAC01\u11A8"), "\uAC01\u11A8");
  EXPECT_EQ(nfc("\uAC00\u11A7"), "\uAC00\u11A7");  // just before the first trailing consonant
}

TEST(Nfc, CharactersNewerThanTheReferenceStayWhereTheyAre) {
  EXPECT_EQ(nfc("x\u0301\u07FD"), "x\u0301\u07FD");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(Nfc, LongRunsOfMarksAreNotQuadratic) {
  constexpr size_t kPairs = 200'000;
  std::string text = "e";
  for (size_t i = 0; i < kPairs; ++i) text += "\u0301\u0323";
  const std::string result = nfc(text);
  EXPECT_EQ(result.substr(0, 5), "\u1EB9\u0323");
  EXPECT_EQ(result.size(), text.size() - 1 - 2 + 3);
}

}  // namespace
}  // namespace quern::text
