// SPDX-License-Identifier: Apache-2.0
// Names in error texts: one line, printable, bounded.
#include "base/quote_name.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

TEST(OnnxFile, NamesAreEscapedForErrorTexts) {
  const std::string long_name(500, 'x');
  EXPECT_EQ(quote_name("/model/layers.0"), "'/model/layers.0'");
  EXPECT_EQ(quote_name("a\n\xff'"), "'a\\x0a\\xff\\x27'");
  EXPECT_EQ(quote_name(std::string_view(long_name)).size(), 125u);
}

TEST(PathName, IsQuotedOnlyWhereItHasTo) {
  EXPECT_EQ(path_name("pre_tokenizer"), "pre_tokenizer");
  EXPECT_EQ(path_name("a\x1b["), "'a\\x1b['");
  EXPECT_EQ(path_name(std::string(500, 'x')).size(), 125u);
}

TEST(OneLine, WhatIsNotPrintableIsWrittenByteByByte) {
  EXPECT_EQ(one_line("a b: Grüße 世界 🙂 \xc2\xa0"), "a b: Grüße 世界 🙂 \xc2\xa0");
  EXPECT_EQ(one_line("a\n\x1b[2J\t\x7f"), "a\\x0a\\x1b[2J\\x09\\x7f");
  EXPECT_EQ(one_line("\xc2\x85"), "\\xc2\\x85");  // a control character
  // Alone, overlong, a surrogate, above the last code point, cut off.
  for (const char* bad : {"\xff", "\xbf", "\xc0\xaf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe4\xb8"}) {
    for (const char c : one_line(bad)) EXPECT_GT(c, 0) << bad;
  }
  EXPECT_EQ(one_line(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(one_line(""), "");
}

TEST(PathPlace, AnEmptyPathIsSeen) {
  EXPECT_EQ(path_place(""), "''");
  EXPECT_EQ(path_place("a b"), "a b");
}

}  // namespace
}  // namespace quern
