// SPDX-License-Identifier: Apache-2.0
// Well-formedness, replacement and streaming of UTF-8. Expected replacements are those of Python's errors="replace".
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace quern::text {
namespace {

using namespace std::string_literals;

TEST(Utf8, WellFormedTextHasNoInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("plain ASCII longer than one machine word"), std::nullopt);
  EXPECT_EQ(
      find_invalid_utf8("\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"),
      std::nullopt);
  EXPECT_EQ(find_invalid_utf8("\0"s), std::nullopt);
}

TEST(Utf8, FirstInvalidByteIsFound) {
  const std::vector<std::pair<std::string, size_t>> cases = {{"\x80", 0},
                                                             {"\xC0\x80", 0},
                                                             {"\xC1\xBF", 0},
                                                             {"\xE0\x9F\xBF", 0},
                                                             {"\xED\xA0\x80", 0},
                                                             {"\xF0\x8F\xBF\xBF", 0},
                                                             {"\xF4\x90\x80\x80", 0},
                                                             {"\xF5\x80\x80\x80", 0},
                                                             {"\xFF", 0},
                                                             {"12345678\xC3", 8},
                                                             {"ab\xE2\x82", 2},
                                                             {"ab\xE2\x82z", 2},
                                                             {"1234567\xC3\xA9 \xC3", 10}};
  for (const auto& [bytes, offset] : cases) EXPECT_EQ(find_invalid_utf8(bytes), offset) << bytes;
}

TEST(Utf8, EveryMaximalInvalidPartBecomesOneReplacement) {
  const std::string r = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xFFz", "a" + r + "z"},
      {"\xE2\x82z", r + "z"},       // one truncated sequence
      {"\xED\xA0\x80", r + r + r},  // a surrogate: no byte is part of a valid prefix
      {"\xF0\x9F\x98", r},          // truncated at the end
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", r + "\xF0\x9F\x98\x80"},
      {"\xC0\x80\xE0\x9F\x80", r + r + r + r + r},  // overlong
      {"\xF4\x90\x80\x80", r + r + r + r},
      {"\xE2\xE2\x82\xAC", r + "\xE2\x82\xAC"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(to_valid_utf8(bytes), text);
}

TEST(Utf8, IncompleteSequenceIsHeldBackAndInvalidOneIsNot) {
  std::string out;
  EXPECT_EQ(append_lossy("ab\xE2\x82", out), 2u);
  EXPECT_EQ(out, "ab");
  EXPECT_EQ(append_lossy("\xE2\x82\xAC\xF0", out), 3u);
  EXPECT_EQ(out, "ab\xE2\x82\xAC");
  EXPECT_EQ(append_lossy("\xF0\x80", out), 2u);
  EXPECT_EQ(out, "ab\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Utf8, CodePointsSurviveEncodingAndDecoding) {
  for (const char32_t code_point :
       {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string encoded;
    append_utf8(code_point, encoded);
    EXPECT_EQ(find_invalid_utf8(encoded), std::nullopt);
    size_t offset = 0;
    EXPECT_EQ(next_code_point(encoded, offset), code_point);
    EXPECT_EQ(offset, encoded.size());
  }
}

}  // namespace
}  // namespace quern::text
