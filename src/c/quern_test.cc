// SPDX-License-Identifier: Apache-2.0
// The C interface through the shared library alone: text in pieces, sessions that go on, cancelling, errors, fork.
#include "c/quern.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

// Whether there is memory; of the library, too.
static std::atomic<bool> no_memory{false};

[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return no_memory ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

const char* const kDemo = QUERN_SOURCE_DIR "/models/demo";
const std::string kPrompt = "In the beginning";

struct Collected {
  std::string text;
  int calls = 0;
  int stop_after = -1;              // calls
  quern_session* cancel = nullptr;  // from within the callback
};

int collect(const char* text, size_t bytes, void* user) {
  auto* collected = static_cast<Collected*>(user);
  collected->text.append(text, bytes);
  if (collected->cancel != nullptr) quern_cancel(collected->cancel);
  return ++collected->calls == collected->stop_after ? 1 : 0;
}

class CInterface : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(quern_open(kDemo, 2, &model_), QUERN_OK) << quern_last_error();
    ASSERT_EQ(quern_session_new(model_, &session_), QUERN_OK) << quern_last_error();
    options_.size = sizeof(options_);
    ASSERT_EQ(quern_generate_defaults(model_, &options_), QUERN_OK) << quern_last_error();
    options_.greedy = 1;
    options_.max_tokens = 12;
    result_.size = sizeof(result_);
  }
  void TearDown() override {
    quern_session_free(session_);
    quern_model_free(model_);
  }
  quern_status generate(const std::string& prompt, Collected* collected) {
    return quern_generate(session_, prompt.data(), prompt.size(), &options_, collect, collected, &result_);
  }

  quern_model* model_ = nullptr;
  quern_session* session_ = nullptr;
  quern_generate_options options_ = {};
  quern_generation result_ = {};
};

TEST_F(CInterface, TextInPiecesIsTheTextAndSessionsGoOn) {
  Collected whole, first, second;
  options_.max_tokens = 24;
  ASSERT_EQ(generate(kPrompt, &whole), QUERN_OK) << quern_last_error();
  EXPECT_EQ(result_.generated_tokens, 24);
  EXPECT_GT(result_.prompt_tokens, 0);
  EXPECT_STREQ(result_.finish_reason, "length");
  quern_session_reset(session_);
  options_.max_tokens = 12;
  ASSERT_EQ(generate(kPrompt, &first), QUERN_OK) << quern_last_error();
  ASSERT_EQ(generate("", &second), QUERN_OK) << quern_last_error();
  EXPECT_EQ(result_.prompt_tokens, 0);
  EXPECT_EQ(first.text + second.text, whole.text);
  EXPECT_FALSE(whole.text.empty());
}

TEST_F(CInterface, DefaultsAreTheModels) {
  quern_generate_options o = {};
  o.size = sizeof(o);
  ASSERT_EQ(quern_generate_defaults(model_, &o), QUERN_OK);
  EXPECT_EQ(o.max_tokens, 256);
  const auto config = nlohmann::json::parse(std::ifstream(std::string(kDemo) + "/genai_config.json")).at("search");
  EXPECT_EQ(o.greedy == 0, config.at("do_sample").get<bool>());
  EXPECT_FLOAT_EQ(o.temperature, config.at("temperature").get<float>());
  EXPECT_EQ(o.top_k, config.at("top_k").get<int>());
  EXPECT_FLOAT_EQ(o.top_p, config.at("top_p").get<float>());
  EXPECT_FLOAT_EQ(o.repetition_penalty, config.at("repetition_penalty").get<float>());
  EXPECT_EQ(o.stop_count, 0u);
  EXPECT_EQ(o.thinking, 0);
}

TEST_F(CInterface, StopTextsAndTheCallbackEndTheText) {
  Collected whole, stopped, ended;
  ASSERT_EQ(generate(kPrompt, &whole), QUERN_OK);
  const std::string stop = whole.text.substr(whole.text.size() / 2, 3);
  const char* const stops[] = {stop.c_str()};
  options_.stop = stops;
  options_.stop_count = 1;
  quern_session_reset(session_);
  ASSERT_EQ(generate(kPrompt, &stopped), QUERN_OK);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_STREQ(result_.finish_reason, "stop");
  options_.stop_count = 0;
  quern_session_reset(session_);
  ended.stop_after = 3;
  ASSERT_EQ(generate(kPrompt, &ended), QUERN_OK);
  EXPECT_EQ(ended.calls, 3);
  EXPECT_EQ(result_.generated_tokens, 3);
  EXPECT_STREQ(result_.finish_reason, "cancelled");
}

TEST_F(CInterface, CancellingEndsThisGenerationOrTheNextAndNoLaterOne) {
  Collected during, between, next, later;
  during.cancel = session_;
  ASSERT_EQ(generate(kPrompt, &during), QUERN_OK);
  EXPECT_STREQ(result_.finish_reason, "cancelled");
  EXPECT_EQ(result_.generated_tokens, 1);
  ASSERT_EQ(generate("", &between), QUERN_OK);
  EXPECT_STREQ(result_.finish_reason, "length");
  std::thread([&] { quern_cancel(session_); }).join();
  ASSERT_EQ(generate(kPrompt, &next), QUERN_OK);
  EXPECT_STREQ(result_.finish_reason, "cancelled");
  EXPECT_EQ(result_.prompt_tokens, 0);
  EXPECT_EQ(next.calls, 0);
  ASSERT_EQ(generate(kPrompt, &later), QUERN_OK);
  EXPECT_STREQ(result_.finish_reason, "length");
}

TEST_F(CInterface, AnswersMessagesByTheModelsTemplate) {
  const quern_message first[] = {{"system", "Be short."}, {"user", "A verse about Jerusalem"}};
  const std::string written =
      "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nA verse about Jerusalem<|im_end|>\n"
      "<|im_start|>assistant\n";
  const std::string without = "<think>\n\n</think>\n\n";
  for (const int thinking : {0, -1}) {
    Collected by_hand, answer;
    quern_session_reset(session_);
    ASSERT_EQ(generate(thinking == 0 ? written : written + without, &by_hand), QUERN_OK) << quern_last_error();
    const int64_t tokens = result_.prompt_tokens;
    quern_session_reset(session_);
    options_.thinking = thinking;
    ASSERT_EQ(quern_chat(session_, first, 2, &options_, collect, &answer, &result_), QUERN_OK) << quern_last_error();
    EXPECT_EQ(answer.text, by_hand.text);
    EXPECT_EQ(result_.prompt_tokens, tokens);
    EXPECT_EQ(result_.generated_tokens, 12);
    EXPECT_FALSE(answer.text.empty());
  }
}

TEST_F(CInterface, AConversationComputesWhatIsNew) {
  Collected first, second, anew;
  quern_message messages[] = {{"user", "A verse about Jerusalem, and about the temple that stood in it"},
                              {"assistant", nullptr},
                              {"user", "And then?"}};
  ASSERT_EQ(quern_chat(session_, messages, 1, &options_, collect, &first, &result_), QUERN_OK) << quern_last_error();
  messages[1].content = first.text.c_str();
  ASSERT_EQ(quern_chat(session_, messages, 3, &options_, collect, &second, &result_), QUERN_OK) << quern_last_error();
  const int64_t going_on = result_.prompt_tokens;
  quern_session_reset(session_);
  ASSERT_EQ(quern_chat(session_, messages, 3, &options_, collect, &anew, &result_), QUERN_OK) << quern_last_error();
  EXPECT_LT(going_on, result_.prompt_tokens - 10);
  EXPECT_GT(going_on, 0);
  EXPECT_FALSE(second.text.empty());
}

TEST_F(CInterface, ConversationsAreRefusedByName) {
  const quern_message lacking[] = {{"user", nullptr}}, whole[] = {{"user", "a"}};
  EXPECT_EQ(quern_chat(session_, whole, 0, &options_, nullptr, nullptr, nullptr), QUERN_BAD_REQUEST);
  EXPECT_EQ(quern_chat(session_, nullptr, 1, &options_, nullptr, nullptr, nullptr), QUERN_BAD_REQUEST);
  EXPECT_EQ(quern_chat(session_, lacking, 1, &options_, nullptr, nullptr, nullptr), QUERN_BAD_REQUEST);
  EXPECT_NE(std::strstr(quern_last_error(), "content"), nullptr) << quern_last_error();
  std::string long_text;
  for (int i = 0; i < 3000; i++) long_text += " word";
  const quern_message too_long[] = {{"user", long_text.c_str()}};
  EXPECT_EQ(quern_chat(session_, too_long, 1, &options_, nullptr, nullptr, nullptr), QUERN_BAD_REQUEST);
  EXPECT_NE(std::strstr(quern_last_error(), "2048"), nullptr) << quern_last_error();
  quern_cancel(session_);
  EXPECT_EQ(quern_chat(session_, whole, 1, &options_, nullptr, nullptr, &result_), QUERN_OK);
  EXPECT_STREQ(result_.finish_reason, "cancelled");
  EXPECT_EQ(quern_chat(session_, whole, 1, nullptr, nullptr, nullptr, &result_), QUERN_OK);
}

TEST_F(CInterface, ErrorsNamePlaceAndValueAndLeaveTheSessionAsItWas) {
  Collected before, unused, after;
  ASSERT_EQ(generate(kPrompt, &before), QUERN_OK);
  quern_session_reset(session_);
  options_.repetition_penalty = -1;
  EXPECT_EQ(generate(kPrompt, &unused), QUERN_BAD_REQUEST);
  EXPECT_NE(std::strstr(quern_last_error(), "repetition_penalty"), nullptr) << quern_last_error();
  EXPECT_NE(std::strstr(quern_last_error(), "-1"), nullptr) << quern_last_error();
  options_.repetition_penalty = 1;
  EXPECT_EQ(generate("\xff", &unused), QUERN_BAD_REQUEST);
  EXPECT_EQ(quern_generate(session_, nullptr, 1, &options_, collect, &unused, nullptr), QUERN_BAD_REQUEST);
  options_.size = 8;
  EXPECT_EQ(generate(kPrompt, &unused), QUERN_BAD_REQUEST);
  EXPECT_NE(std::strstr(quern_last_error(), "8"), nullptr) << quern_last_error();
  options_.size = sizeof(options_);
  EXPECT_EQ(unused.calls, 0);
  ASSERT_EQ(generate(kPrompt, &after), QUERN_OK) << quern_last_error();
  EXPECT_EQ(after.text, before.text);

  quern_model* none = nullptr;
  EXPECT_EQ(quern_open("/nowhere", 0, &none), QUERN_BAD_MODEL);
  EXPECT_NE(std::strstr(quern_last_error(), "/nowhere"), nullptr) << quern_last_error();
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(quern_open(nullptr, 0, &none), QUERN_BAD_REQUEST);
  EXPECT_EQ(quern_open(kDemo, -1, &none), QUERN_BAD_REQUEST);
  std::thread([] { EXPECT_STREQ(quern_last_error(), ""); }).join();
}

TEST_F(CInterface, GreedyWinsOverWhateverTheNextFourHold) {
  Collected expected, seen;
  ASSERT_EQ(generate(kPrompt, &expected), QUERN_OK) << quern_last_error();
  quern_session_reset(session_);
  options_.temperature = std::numeric_limits<float>::quiet_NaN();
  options_.top_k = -5;
  options_.top_p = -1;
  options_.min_p = 7;
  ASSERT_EQ(generate(kPrompt, &seen), QUERN_OK) << quern_last_error();
  EXPECT_EQ(seen.text, expected.text);
  options_.greedy = 0;
  EXPECT_EQ(generate(kPrompt, &seen), QUERN_BAD_REQUEST);
}

TEST_F(CInterface, WhatAnErrorSaysIsPrintable) {
  quern_model* none = nullptr;
  EXPECT_EQ(quern_open("/nowhere/\n\x1b[31m\xff", 0, &none), QUERN_BAD_MODEL);
  EXPECT_NE(std::strstr(quern_last_error(), "/nowhere/\\x0a\\x1b[31m\\xff"), nullptr) << quern_last_error();
}

TEST_F(CInterface, SettingsThatAreNotSupportedAreRefusedUnlessEverythingIsFilledIn) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "quern_c_settings";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const auto& file : std::filesystem::directory_iterator(QUERN_SOURCE_DIR "/models/demo-qwen4")) {
    if (file.path().filename() == "generation_config.json") continue;
    std::filesystem::create_symlink(file.path(), folder / file.path().filename());
  }
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": 2045, "do_sample": true, "num_beams": 4})";
  quern_model* model = nullptr;
  quern_session* session = nullptr;
  ASSERT_EQ(quern_open(folder.c_str(), 1, &model), QUERN_OK) << quern_last_error();
  ASSERT_EQ(quern_session_new(model, &session), QUERN_OK) << quern_last_error();
  quern_generate_options own = options_;
  EXPECT_EQ(quern_generate_defaults(model, &own), QUERN_UNSUPPORTED);
  EXPECT_NE(std::strstr(quern_last_error(), "num_beams 4"), nullptr) << quern_last_error();
  own = options_;
  for (const int greedy : {1, 0}) {
    own.greedy = greedy;
    EXPECT_EQ(quern_generate(session, "In", 2, &own, nullptr, nullptr, nullptr), QUERN_OK) << quern_last_error();
  }
  EXPECT_EQ(quern_generate(session, "In", 2, nullptr, nullptr, nullptr, nullptr), QUERN_UNSUPPORTED);
  quern_session_free(session);
  quern_model_free(model);
  std::filesystem::remove_all(folder);
}

TEST_F(CInterface, AnErrorNeedsNoMemoryToBeReported) {
  quern_model* none = nullptr;
  const std::string place = "/nowhere" + std::string(200, 'x');
  no_memory = true;
  const quern_status status = quern_open(place.c_str(), 1, &none);
  no_memory = false;
  EXPECT_EQ(status, QUERN_NO_MEMORY);
  EXPECT_NE(std::strstr(quern_last_error(), "memory"), nullptr) << quern_last_error();
  EXPECT_EQ(quern_open(place.c_str(), 1, &none), QUERN_BAD_MODEL);
  EXPECT_NE(std::strstr(quern_last_error(), place.c_str()), nullptr) << quern_last_error();
}

TEST_F(CInterface, HandlesMayBeFreedInAnyOrder) {
  quern_model_free(model_);
  model_ = nullptr;
  Collected text;
  EXPECT_EQ(generate(kPrompt, &text), QUERN_OK);
  quern_session_free(nullptr);
  quern_model_free(nullptr);
  quern_session_reset(nullptr);
  quern_cancel(nullptr);
}

TEST_F(CInterface, AChildOfForkIsRefusedByName) {
  Collected text;
  ASSERT_EQ(generate(kPrompt, &text), QUERN_OK);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = generate(kPrompt, &text) == QUERN_UNSUPPORTED && std::strstr(quern_last_error(), "fork");
    quern_session_free(session_);
    quern_model_free(model_);
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
