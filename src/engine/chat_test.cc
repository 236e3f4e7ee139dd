// SPDX-License-Identifier: Apache-2.0
// Conversations: what is computed for a turn, that answers are those of recomputing everything, what errors and full
// contexts leave behind.
#include "engine/chat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "tests/support/small_tokenizer.h"
#include "tests/support/tiny_qwen3.h"

namespace quern::engine {
namespace {

// Messages as they are, with the reasoning of answers.
constexpr const char* kPlain =
    "{%- for m in messages %}{{- '[' + m.role + ']' + m.content + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '[assistant]' }}{%- endif %}";
// Answers begin within reasoning, which later turns leave out.
constexpr const char* kStripping =
    "{%- for m in messages %}{{- '[' + m.role + ']' + m.content + '\\n' }}{# no reasoning_content #}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '[assistant]' }}{{- '<think>\\n' if enable_thinking is not defined or "
    "enable_thinking else '<think>\\n\\n</think>\\n\\n' }}{%- endif %}";

class ChatTest : public testing::Test {
 protected:
  ChatTest() : scratch_("chat_test") {}

  std::shared_ptr<const Engine> open(const char* chat_template, int64_t context = 2048, int32_t opened_for = 0) {
    test::TinyQwen3 model;
    model.context = context;
    model.write(scratch_.path());
    scratch_.file("tokenizer.json", test::small_tokenizer({{"a", "b"}}).dump());
    scratch_.file("chat_template.jinja", chat_template);
    EngineOptions options;
    options.threads = 2;
    options.kv = "fp32";
    options.context_tokens = opened_for;
    return Engine::open(scratch_.path(), options).value();
  }
  static std::unique_ptr<Conversation> conversation(std::shared_ptr<const Engine> engine,
                                                    Messages messages = Messages::array(),
                                                    WhenFull when_full = WhenFull::refuse) {
    auto made = Conversation::start(std::move(engine), {std::move(messages), when_full});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return std::move(made).value();
  }
  // Nothing but the limit ends answers.
  static AskOptions greedy(int32_t tokens) {
    AskOptions options;
    options.generate.max_tokens = tokens;
    options.generate.sampling.greedy = true;
    options.generate.stop_ids.emplace();
    return options;
  }
  // The streamed parts together.
  static AnswerParts ask(Conversation& conversation, std::string_view text, const AskOptions& options) {
    AnswerParts all;
    const auto asked = conversation.ask(text, options);
    EXPECT_TRUE(asked.ok()) << asked.error().message();
    while (conversation.answering()) {
      const auto parts = conversation.next();
      if (!parts.ok()) {
        ADD_FAILURE() << parts.error().message();
        break;
      }
      all.reasoning += parts->reasoning;
      all.answer += parts->answer;
    }
    return all;
  }

  // Twenty turns, each beside a new conversation that is given the messages so far: tokens and log probabilities must
  // be the same. Leaves the twenty turns in `kept`.
  static void converse(Conversation& kept, const AskOptions& options) {
    int64_t computed = 0;
    for (int turn = 0; turn < 20; turn++) {
      SCOPED_TRACE(turn);
      const std::string text = "question " + std::to_string(turn) + " about Jerusalem";
      Messages messages = kept.messages();
      const std::vector<int32_t> before(kept.session().tokens().begin(), kept.session().tokens().end());
      const AnswerParts streamed = ask(kept, text, options);
      const Answer& answer = kept.answer();
      EXPECT_EQ(streamed.reasoning, answer.reasoning);
      EXPECT_EQ(streamed.answer, answer.text);

      auto fresh = conversation(kept.format().engine(), messages);
      ask(*fresh, text, options);
      EXPECT_EQ(fresh->answer().kept_tokens, 0);
      EXPECT_EQ(fresh->answer().computed_tokens, answer.prompt_tokens);
      const auto& ids = answer.generation.token_ids;
      const auto& expected = fresh->answer().generation;
      EXPECT_EQ(ids, expected.token_ids);
      EXPECT_EQ(fresh->answer().text, answer.text);
      ASSERT_EQ(answer.generation.log_probs.size(), expected.log_probs.size());
      for (size_t i = 0; i < expected.log_probs.size(); i++) {
        EXPECT_EQ(answer.generation.log_probs[i].chosen.log_prob, expected.log_probs[i].chosen.log_prob) << i;
      }

      messages.push_back({{"role", "user"}, {"content", text}});
      const auto prompt = kept.format().prompt(messages, options.thinking)->ids;
      const auto common = std::mismatch(prompt.begin(), prompt.end(), before.begin(), before.end()).second;
      EXPECT_EQ(answer.prompt_tokens, static_cast<int64_t>(prompt.size()));
      EXPECT_EQ(answer.kept_tokens, common - before.begin());
      // The last token of an answer is computed when something follows it.
      const bool last_was_open = !before.empty() && common == before.end();
      EXPECT_EQ(answer.computed_tokens, answer.prompt_tokens - answer.kept_tokens + (last_was_open ? 1 : 0));
      computed += answer.computed_tokens + answer.generation.timings.decode_tokens;
      EXPECT_EQ(static_cast<int64_t>(kept.session().counters().tokens), computed);
    }
  }

  // How far apart the logits of the same tokens are when they are computed in one call and one by one.
  static double error_of_logits(const Engine& engine, std::span<const int32_t> ids) {
    const auto vocab = static_cast<size_t>(engine.info().vocab);
    std::vector<float> whole(ids.size() * vocab), row(vocab);
    EXPECT_TRUE(engine.new_session().value()->logits(ids, whole).ok());
    const auto single = engine.new_session().value();
    double error = 0;
    for (size_t i = 0; i < ids.size(); i++) {
      EXPECT_TRUE(single->logits(ids.subspan(i, 1), row).ok());
      for (size_t v = 0; v < vocab; v++) error = std::max(error, std::abs(double{row[v]} - whole[i * vocab + v]));
    }
    return error;
  }

  test::ScratchFolder scratch_;
};

TEST_F(ChatTest, TwentyTurnsComputeWhatIsNewAndAnswerAsFromScratch) {
  converse(*conversation(open(kPlain)), greedy(12));
}

TEST_F(ChatTest, ReasoningThatTheTemplateStripsIsGoneBackOver) {
  const auto engine = open(kStripping);
  converse(*conversation(engine), greedy(12));
  auto c = conversation(engine);
  ask(*c, "one", greedy(12));
  EXPECT_FALSE(c->answer().reasoning.empty());
  EXPECT_EQ(c->answer().text, "");
  EXPECT_EQ(c->messages().back()["reasoning_content"], c->answer().reasoning);
  const int64_t prompt = c->answer().prompt_tokens;
  ask(*c, "two", greedy(12));
  EXPECT_EQ(c->answer().kept_tokens, prompt - 8);  // up to <think> and its line break, which are 8 bytes
}

// The demo model's own template, and Qwen3's, which strips the empty reasoning that the demo model writes. Its int8
// activations would turn a difference in the last bit into another text.
TEST_F(ChatTest, DemoModelConversesInBothTemplates) {
  const std::filesystem::path root = QUERN_SOURCE_DIR, demo = root / "models" / "demo";
  if (!std::filesystem::exists(demo / "genai_config.json")) GTEST_SKIP() << "models/demo is not there";
  std::filesystem::copy(demo, scratch_.path(), std::filesystem::copy_options::recursive);
  AskOptions options;
  options.generate.max_tokens = 40;
  options.generate.sampling.greedy = true;
  options.generate.log_probs = 2;
  EngineOptions engine_options;
  engine_options.threads = 2;
  for (const bool strips : {false, true}) {
    SCOPED_TRACE(strips);
    if (strips) {
      std::filesystem::copy_file(root / "testdata/chat_templates/qwen3.jinja", scratch_.path() / "chat_template.jinja");
    }
    const auto engine = Engine::open(scratch_.path(), engine_options).value();
    const auto kept = conversation(engine);
    converse(*kept, options);
    EXPECT_EQ(error_of_logits(*engine, kept->session().tokens()), 0);
  }
}

TEST_F(ChatTest, AnswersWithoutTokensWereNotGiven) {
  auto c = conversation(open(kPlain), {{{"role", "system"}, {"content", "Be short."}}});
  const Messages before = c->messages();
  std::atomic<bool> raised{true};
  AskOptions options = greedy(5);
  options.generate.cancel = &raised;
  EXPECT_EQ(c->ask("hello", options).error().code, Errc::cancelled);
  EXPECT_EQ(c->messages(), before);
  raised = false;
  ASSERT_TRUE(c->ask("hello", options).ok());
  c->stop();
  EXPECT_FALSE(c->answering());
  EXPECT_EQ(c->messages(), before);
  EXPECT_EQ(c->ask("\xFF", options).error().code, Errc::bad_request);
  EXPECT_EQ(c->messages(), before);
  ask(*c, "hello", options);
  EXPECT_EQ(c->messages().size(), 3u);
  c->reset();
  EXPECT_EQ(c->messages(), before);
}

TEST_F(ChatTest, StoppedAnswerStaysAndIsContinuedFrom) {
  const auto engine = open(kPlain);
  auto c = conversation(engine);
  ASSERT_TRUE(c->ask("hello", greedy(50)).ok());
  for (int i = 0; i < 7; i++) ASSERT_TRUE(c->next().ok());
  c->stop();
  EXPECT_EQ(c->answer().generation.finish_reason, FinishReason::cancelled);
  EXPECT_EQ(c->answer().generation.token_ids.size(), 7u);
  EXPECT_EQ(c->messages().back()["content"], c->answer().text);
  // So does one that another question interrupts.
  ASSERT_TRUE(c->ask("again", greedy(50)).ok());
  ASSERT_TRUE(c->next().ok());
  ask(*c, "and again", greedy(3));
  EXPECT_EQ(c->messages().size(), 6u);
}

TEST_F(ChatTest, SwitchThatTheTemplateHasNotIsUnsupported) {
  AskOptions options = greedy(3);
  options.thinking = false;
  auto plain = conversation(open(kPlain));
  EXPECT_EQ(plain->ask("hello", options).error().code, Errc::unsupported);
  auto stripping = conversation(open(kStripping));
  ask(*stripping, "hello", options);
  EXPECT_EQ(stripping->answer().reasoning, "");
  EXPECT_NE(stripping->answer().text, "");
}

TEST_F(ChatTest, FullContextRefusesTheMessageWithBothNumbers) {
  auto c = conversation(open(kPlain, 128));
  const std::string text(60, 'x');
  ask(*c, text, greedy(3));
  const Messages before = c->messages();
  const auto refused = c->ask(text, greedy(20));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::too_long);
  EXPECT_NE(refused.error().message().find("holds 128"), std::string::npos) << refused.error().message();
  EXPECT_EQ(c->messages(), before);
  ask(*c, "y", greedy(100));  // what fits is answered until the context is full
  EXPECT_EQ(c->answer().generation.finish_reason, FinishReason::length);
}

TEST_F(ChatTest, ContextThatWasOpenedShorterIsSaidToBeThat) {
  const auto engine = open(kPlain, 128, 1);
  const auto refused = conversation(engine)->ask("x", greedy(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::too_long);
  const std::string words = "the context was opened for 1 of the model's 128";
  EXPECT_NE(refused.error().message().find(words), std::string::npos) << refused.error().message();
  const auto prompt = engine->new_session().value()->append(std::array{1, 2});
  EXPECT_NE(prompt.error().message().find("has 2 tokens, " + words), std::string::npos) << prompt.error().message();
}

TEST_F(ChatTest, FullContextDropsTheOldestExchanges) {
  const Messages system = {{{"role", "system"}, {"content", "S"}}};
  auto c = conversation(open(kPlain, 256), system, WhenFull::drop_oldest);
  int64_t dropped = 0;
  for (int turn = 0; turn < 12; turn++) {
    ask(*c, "message " + std::to_string(turn), greedy(16));
    const Answer& answer = c->answer();
    dropped += answer.dropped_messages;
    EXPECT_EQ(answer.dropped_messages % 2, 0);
    EXPECT_EQ(answer.generation.token_ids.size(), 16u);
    if (answer.dropped_messages > 0) {
      EXPECT_LE(answer.prompt_tokens, 128);
    }
    EXPECT_EQ(c->messages()[0], system[0]);
    EXPECT_EQ(c->messages()[c->messages().size() - 2]["content"], "message " + std::to_string(turn));
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(static_cast<int64_t>(c->messages().size()), 1 + 24 - dropped);
  EXPECT_EQ(c->ask(std::string(300, 'x'), greedy(4)).error().code, Errc::too_long);
}

TEST_F(ChatTest, MessagesThatAreNoneAreRefused) {
  const auto engine = open(kPlain);
  EXPECT_EQ(Conversation::start(engine, {Messages("text")}).error().code, Errc::bad_request);
  EXPECT_EQ(Conversation::start(engine, {Messages{1, 2}}).error().where, "messages[0]");
  std::filesystem::remove(scratch_.path() / "chat_template.jinja");
  EXPECT_EQ(Conversation::start(engine, {}).error().code, Errc::bad_model);
}

}  // namespace
}  // namespace quern::engine
