// SPDX-License-Identifier: Apache-2.0
// Settings of generation, and the values that are refused.
#include "formats/generation_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace quern::formats {
namespace {

GenerationConfig read(std::string_view json) {
  const auto config = GenerationConfig::parse(json, 1000, "g");
  EXPECT_TRUE(config.ok()) << config.error().message();
  return config.ok() ? *config : GenerationConfig();
}

void expect_refused(std::string_view json, std::string_view where) {
  const auto config = GenerationConfig::parse(json, 1000, "g");
  ASSERT_FALSE(config.ok()) << json;
  EXPECT_EQ(config.error().code, Errc::bad_model);
  EXPECT_EQ(config.error().where, where);
}

TEST(GenerationConfig, WholeFile) {
  const GenerationConfig c =
      read(R"({"bos_token_id":7,"do_sample":true,"eos_token_id":[9,7],"pad_token_id":7,"temperature":0.6,"top_k":20,)"
           R"("top_p":0.95,"transformers_version":"5.17.0"})");
  EXPECT_TRUE(c.do_sample);
  EXPECT_EQ(c.temperature, 0.6f);
  EXPECT_EQ(c.top_k, 20);
  EXPECT_EQ(c.top_p, 0.95f);
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{9, 7}));
  EXPECT_TRUE(c.other.empty());
}

TEST(GenerationConfig, SilentFile) {
  const GenerationConfig c = read("{}");
  EXPECT_FALSE(c.do_sample);
  EXPECT_EQ(c.temperature, 1.0f);
  EXPECT_EQ(c.top_k, 50);
  EXPECT_EQ(c.top_p, 1.0f);
  EXPECT_EQ(c.repetition_penalty, 1.0f);
  EXPECT_TRUE(c.eos_token_ids.empty());
}

TEST(GenerationConfig, OneEndToken) { EXPECT_EQ(read(R"({"eos_token_id":3})").eos_token_ids, std::vector<int32_t>{3}); }

TEST(GenerationConfig, OtherSettingsAreKeptWhereTheyChangeSomething) {
  EXPECT_TRUE(read(R"({"repetition_penalty":1.0,"num_beams":1,"typical_p":1})").other.empty());
  EXPECT_EQ(read(R"({"presence_penalty":1.5,"num_beams":4})").other,
            (std::vector<std::string>{"presence_penalty 1.5", "num_beams 4"}));
  EXPECT_EQ(read(R"({"repetition_penalty":1.5})").repetition_penalty, 1.5f);
}

TEST(GenerationConfig, WhatIsCarriedOutIsRead) {
  const GenerationConfig c = read(
      R"({"min_p":0.1,"top_p":0,"suppress_tokens":[5,999],"stop_strings":["a","b"],"max_new_tokens":9,"max_length":20})");
  EXPECT_EQ(c.min_p, 0.1f);
  EXPECT_EQ(c.top_p, 0.0f);
  EXPECT_EQ(c.suppress_tokens, (std::vector<int32_t>{5, 999}));
  EXPECT_EQ(c.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(c.other.empty());
  EXPECT_EQ(read(R"({"stop_strings":"a"})").stop_strings, std::vector<std::string>{"a"});
  EXPECT_TRUE(read(R"({"suppress_tokens":[],"begin_suppress_tokens":[],"stop_strings":null})").other.empty());
}

// transformers 5.17 does not sample with it.
TEST(GenerationConfig, SamplingAtTemperatureZeroIsNotCarriedOut) {
  EXPECT_EQ(read(R"({"do_sample":true,"temperature":0})").other.size(), 1u);
  EXPECT_TRUE(read(R"({"temperature":0})").other.empty());
}

TEST(GenerationConfig, UnknownSettingsAreKeptAndCut) {
  EXPECT_EQ(read(R"({"top_z":0.5,"later":null})").other, std::vector<std::string>{"'top_z' 0.5 (not known)"});
  const GenerationConfig c = read(fmt::format(R"({{"{}":"{}"}})", std::string(5000, 'k'), std::string(5000, 'v')));
  ASSERT_EQ(c.other.size(), 1u);
  EXPECT_LT(c.other[0].size(), 250u);
}

TEST(GenerationConfig, WrongValuesAreRefused) {
  expect_refused(R"({"temperature":-1})", "g: temperature");
  expect_refused(R"({"top_k":-1})", "g: top_k");
  expect_refused(R"({"repetition_penalty":0})", "g: repetition_penalty");
  expect_refused(R"({"top_p":1.5})", "g: top_p");
  expect_refused(R"({"do_sample":1})", "g: do_sample");
  expect_refused(R"({"eos_token_id":1000})", "g: eos_token_id");
  expect_refused(R"({"eos_token_id":[]})", "g: eos_token_id");
  expect_refused(R"({"num_beams":"4"})", "g: num_beams");
  expect_refused(R"({"min_p":1.5})", "g: min_p");
  expect_refused(R"({"suppress_tokens":[1000]})", "g: suppress_tokens");
  expect_refused(R"({"suppress_tokens":5})", "g: suppress_tokens");
  expect_refused(R"({"stop_strings":[""]})", "g: stop_strings");
  expect_refused(R"({"stop_strings":7})", "g: stop_strings");
  expect_refused(R"({"max_new_tokens":0})", "g: max_new_tokens");
  expect_refused(R"({"max_length":"long"})", "g: max_length");
  expect_refused(R"({"token_healing":1})", "g: token_healing");
  expect_refused("[]", "g");
  expect_refused("{", "g@1");
}

TEST(GenerationConfig, FileIsRead) {
  test::ScratchFolder scratch("generation_config");
  scratch.file("g.json", R"({"top_k":5})");
  EXPECT_EQ(GenerationConfig::load(scratch.path() / "g.json", 10)->top_k, 5);
  EXPECT_EQ(GenerationConfig::load(scratch.path() / "none.json", 10).error().code, Errc::bad_model);
}

}  // namespace
}  // namespace quern::formats
