// SPDX-License-Identifier: Apache-2.0
// When tokens go round in a circle, and that texts and tables do not.
#include "engine/repetition_guard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace quern::engine {
namespace {

// The index of the token with which the circle is noticed, and its cycle; {-1, 0} if it is not.
struct Noticed {
  int64_t at = -1;
  int32_t cycle = 0;
  bool operator==(const Noticed&) const = default;
};

Noticed notice(const std::vector<int32_t>& ids, int32_t times = RepetitionGuard::kDefaultTimes) {
  RepetitionGuard guard(times);
  for (size_t i = 0; i < ids.size(); i++) {
    if (const int32_t cycle = guard.push(ids[i])) return {static_cast<int64_t>(i), cycle};
  }
  return {};
}

// `first` different tokens, then a cycle of `cycle` tokens until there are `count` in all.
std::vector<int32_t> circle(int64_t first, int32_t cycle, int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; i++) ids.push_back(static_cast<int32_t>(i < first ? 1000 + i : (i - first) % cycle));
  return ids;
}

TEST(RepetitionGuard, CycleIsNoticedWithItsLastRepetition) {
  for (const int32_t cycle : {10, 11, 64, 255, 256}) {
    for (const int64_t first : {0, 1, 300}) {
      EXPECT_EQ(notice(circle(first, cycle, 4000), 5), (Noticed{first + 5 * cycle - 1, cycle})) << cycle;
    }
  }
}

TEST(RepetitionGuard, ShortCyclesCountAsTenTokens) {
  EXPECT_EQ(notice(circle(7, 1, 1000)), (Noticed{7 + 399, 1}));
  EXPECT_EQ(notice(circle(7, 3, 1000)), (Noticed{7 + 399, 3}));
}

TEST(RepetitionGuard, LongerCyclesAndNoTimesAreNotLookedFor) {
  EXPECT_EQ(notice(circle(0, 257, 5000), 2), Noticed{});
  EXPECT_EQ(notice(circle(0, 4, 5000), 0), Noticed{});
}

TEST(RepetitionGuard, ATokenBetweenStartsTheCountAnew) {
  std::vector<int32_t> ids = circle(0, 16, 16 * 39);
  ids.push_back(500);
  for (const int32_t id : circle(0, 16, 16 * 39)) ids.push_back(id);
  EXPECT_EQ(notice(ids), Noticed{});
  for (const int32_t id : circle(0, 16, 16)) ids.push_back(id);
  EXPECT_EQ(notice(ids).cycle, 16);
}

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(std::filesystem::path(QUERN_SOURCE_DIR) / path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; i++) result += text;
  return result;
}

TEST(RepetitionGuard, TextsAndTablesAreNoCircles) {
  const std::vector<std::string> texts = {
      content_of("models/demo/heldout.txt"),
      content_of("models/demo/README.md"),
      content_of("src/text/unicode_patch.inc"),
      content_of("src/ops/gqa_attention/kernels.inc"),
      repeated("    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,\n", 32),
      repeated("0, ", 100),
      repeated("|---", 30) + repeated("| 0 | 0 | 0 |\n", 32),
      repeated("=", 300),
      repeated("-", 300),
      repeated("{\"x\": 0, \"y\": 0},\n ", 32),
      repeated("none,0.0\n", 32),
      repeated("ha", 60) + repeated("\n", 60),
  };
  for (const char* folder : {"models/demo", "testdata/tokenizers/qwen3"}) {
    const auto tokenizer = text::Tokenizer::load(std::filesystem::path(QUERN_SOURCE_DIR) / folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    for (const std::string& text : texts) {
      const auto ids = tokenizer->encode(text);
      ASSERT_TRUE(ids.ok());
      const Noticed noticed = notice(*ids);
      EXPECT_EQ(noticed, Noticed{}) << folder << ", " << text.substr(0, 60) << ": token " << noticed.at << " of "
                                    << ids->size() << ", cycle " << noticed.cycle;
    }
    // A verse that never ends is one.
    const auto verse = tokenizer->encode(repeated("And he said unto him, Go forth. ", 100));
    ASSERT_TRUE(verse.ok());
    EXPECT_GT(notice(*verse).cycle, 0) << folder;
  }
}

}  // namespace
}  // namespace quern::engine
