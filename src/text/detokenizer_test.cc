// SPDX-License-Identifier: Apache-2.0
// Streaming gives whole characters, and all pieces together are what decoding in one call gives.
#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/small_tokenizer.h"
#include "text/utf8.h"

namespace quern::text {
namespace {

Tokenizer small() {
  nlohmann::json file = test::small_tokenizer({{"a", "b"}});
  file["added_tokens"] = {test::added_token(257, "<s>", true), test::added_token(258, "\u00E9 ", false)};
  return Tokenizer::from_json(file.dump(), "tokenizer.json").value();
}

TEST(StreamDetokenizer, CharacterComesWithItsLastByte) {
  StreamDetokenizer stream(small());
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\U0001F600");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDetokenizer, InvalidBytesAreReplacedAsSoonAsTheyAreKnownToBe) {
  StreamDetokenizer stream(small());
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push('a'), "\uFFFDa");
  EXPECT_EQ(stream.push(0xFF), "\uFFFD");
}

TEST(StreamDetokenizer, IncompleteCharacterAtTheEndIsReplacedOnce) {
  StreamDetokenizer stream(small());
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push('a'), "a");
}

TEST(StreamDetokenizer, TokenWithoutTextDoesNotBreakACharacter) {
  StreamDetokenizer stream(small(), true);
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push(257), "");
  EXPECT_EQ(stream.push(99'999), "");
  EXPECT_EQ(stream.push(0xA9), "\u00E9");
}

TEST(StreamDetokenizer, PiecesTogetherAreTheDecodedText) {
  const Tokenizer tokenizer = small();
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(random() % 16);
    // Lead and continuation bytes often, so that valid, broken and unfinished characters all occur.
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 3 == 0 ? random() % 262 : 0x80 + random() % 0x80);
    for (const bool skip_special : {false, true}) {
      StreamDetokenizer stream(tokenizer, skip_special);
      std::string text;
      for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        EXPECT_EQ(find_invalid_utf8(piece), std::nullopt);
        text += piece;
      }
      text += stream.finish();
      ASSERT_EQ(text, tokenizer.decode(ids, skip_special));
    }
  }
}

}  // namespace
}  // namespace quern::text
