// SPDX-License-Identifier: Apache-2.0
// How folders are recognised and refused.
#include <gtest/gtest.h>

#include "model/line.h"
#include "tests/support/tiny_qwen3.h"

namespace quern::model {
namespace {

class Identify : public testing::Test {
 protected:
  Identify() : scratch_("registry_test") {}
  Error refusal() const {
    const auto found = identify(scratch_.path());
    EXPECT_FALSE(found.ok());
    return found.ok() ? Error{} : found.error();
  }
  static bool says(const Error& error, const std::string& text) {
    return error.message().find(text) != std::string::npos;
  }
  test::ScratchFolder scratch_;
};

TEST_F(Identify, OnnxFolderIsRecognisedByItsType) {
  scratch_.file("genai_config.json", R"({"model": {"type": "qwen3"}})");
  const auto found = identify(scratch_.path());
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->model_type, "qwen3");
  EXPECT_EQ(found->config.filename(), "genai_config.json");
}

TEST_F(Identify, OnnxComesBeforeSafetensors) {
  scratch_.file("genai_config.json", R"({"model": {"type": "qwen3"}})");
  scratch_.file("config.json", R"({"model_type": "qwen4_exp"})");
  EXPECT_TRUE(identify(scratch_.path()).ok());
}

TEST_F(Identify, FolderThatIsNotThereIsABadModelWithAPlace) {
  EXPECT_EQ(identify(scratch_.path() / "nothing").error().code, Errc::bad_model);
  EXPECT_EQ(identify("").error().code, Errc::bad_model);
  EXPECT_EQ(identify("").error().where, "model folder ''");
}

TEST_F(Identify, WhatIsNoFileInPlaceOfTheConfigurationIsABadModel) {
  const auto config = scratch_.path() / "genai_config.json";
  std::filesystem::create_directory(config);
  EXPECT_EQ(refusal().code, Errc::bad_model);
  EXPECT_TRUE(says(refusal(), "not a regular file")) << refusal().message();
  std::filesystem::remove(config);
  std::filesystem::create_symlink("genai_config.json", config);
  EXPECT_EQ(refusal().code, Errc::bad_model);
  EXPECT_TRUE(says(refusal(), "leads to itself")) << refusal().message();
}

TEST_F(Identify, JsonThatEndsEarlyNamesTheByte) {
  scratch_.file("genai_config.json", R"({"model": )");
  EXPECT_TRUE(says(refusal(), "genai_config.json@10")) << refusal().message();
  scratch_.file("genai_config.json", R"({"model"; 1})");
  EXPECT_TRUE(says(refusal(), "genai_config.json@8")) << refusal().message();
}

TEST_F(Identify, FileInPlaceOfAFolderIsABadModel) {
  scratch_.file("model.onnx", "x");
  EXPECT_EQ(identify(scratch_.path() / "model.onnx").error().code, Errc::bad_model);
}

TEST_F(Identify, EmptyFolderNamesWhatIsMissing) {
  EXPECT_EQ(refusal().code, Errc::bad_model);
  EXPECT_TRUE(says(refusal(), "genai_config.json"));
  EXPECT_TRUE(says(refusal(), "config.json"));
}

TEST_F(Identify, UnknownTypeIsUnsupportedByName) {
  scratch_.file("genai_config.json", R"({"model": {"type": "llama"}})");
  EXPECT_EQ(refusal().code, Errc::unsupported);
  EXPECT_TRUE(says(refusal(), "llama"));
  EXPECT_TRUE(says(refusal(), "qwen3"));
}

TEST_F(Identify, CheckpointOfTheOnnxLineSaysHowToExportIt) {
  scratch_.file("config.json", R"({"model_type": "qwen3"})");
  EXPECT_EQ(refusal().code, Errc::unsupported);
  EXPECT_TRUE(says(refusal(), "export the model to ONNX")) << refusal().message();
}

TEST_F(Identify, CheckpointIsRecognisedByItsTypeAlone) {
  for (const char* type : {"qwen4_exp", "qwen4_exp_text", "qwen3_8_flash_next", "qwen3_8_flash_next_text"}) {
    scratch_.file("config.json", std::string(R"({"model_type": ")") + type + R"("})");
    const auto found = identify(scratch_.path());
    ASSERT_TRUE(found.ok()) << found.error().message();
    EXPECT_EQ(found->model_type, type);
    EXPECT_EQ(found->config.filename(), "config.json");
  }
}

TEST_F(Identify, DamagedConfigurationsAreBadModels) {
  for (const char* text : {"", "{", "[]", "{}", "null", R"({"model": 3})", R"({"model": {"type": 7}})",
                           "{\"model\": {\"type\": \"\xff\"}}"}) {
    scratch_.file("genai_config.json", text);
    EXPECT_EQ(refusal().code, Errc::bad_model) << text;
    EXPECT_TRUE(says(refusal(), "genai_config.json")) << text;
  }
}

}  // namespace
}  // namespace quern::model
