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

}  // namespace
}  // namespace quern
