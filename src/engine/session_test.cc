// SPDX-License-Identifier: Apache-2.0
// Sessions on a tiny model: what is computed when, where generation ends, and what an error leaves behind.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>

#include "engine/engine.h"
#include "engine/generator.h"
#include "tests/support/allocation_count.h"
#include "tests/support/small_tokenizer.h"
#include "tests/support/tiny_qwen3.h"
#include "text/utf8.h"

namespace quern::engine {
namespace {

using test::TinyQwen3;

constexpr int32_t kVocab = 320;
constexpr int32_t kTextIds = 257;  // 256 bytes and one merge; the rest of the logits' columns have no text

std::vector<int32_t> ids_of(int64_t count, int32_t first = 40) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); i++) ids[i] = static_cast<int32_t>((first + 37 * i) % kTextIds);
  return ids;
}

class SessionTest : public testing::Test {
 protected:
  SessionTest() : scratch_("session_test") {}
  void SetUp() override { engine_ = open({}); }

  std::shared_ptr<const Engine> open(const TinyQwen3& model, int threads = 2) {
    model.write(scratch_.path());
    scratch_.file("tokenizer.json", test::small_tokenizer({{"a", "b"}}).dump());
    EngineOptions options;
    options.threads = threads;
    auto engine = Engine::open(scratch_.path(), options);
    if (!engine.ok()) {
      ADD_FAILURE() << engine.error().message();
      return nullptr;
    }
    return *engine;
  }
  std::unique_ptr<Session> session() { return engine_->new_session().value(); }
  std::unique_ptr<Session> session(std::span<const int32_t> ids) {
    auto s = session();
    EXPECT_TRUE(s->append(ids).ok());
    return s;
  }
  static GenerateOptions greedy(int32_t tokens) {
    GenerateOptions options;
    options.max_tokens = tokens;
    options.sampling.greedy = true;
    options.stop_ids.emplace();
    return options;
  }
  std::vector<float> all_logits(Session& s, std::span<const int32_t> ids, const AppendOptions& options = {}) {
    std::vector<float> logits(ids.size() * kVocab);
    const auto done = s.logits(ids, logits, options);
    EXPECT_TRUE(done.ok()) << done.error().message();
    return logits;
  }

  test::ScratchFolder scratch_;
  std::shared_ptr<const Engine> engine_;
};

// Past the steps in which vectors and pasts grow.
TEST_F(SessionTest, ATokenBehindAnotherAllocatesNothing) {
  auto s = session(ids_of(3));
  ASSERT_TRUE(s->append(std::array{5}).ok());
  EXPECT_EQ(support::allocations_in([&] {
              for (int32_t i = 0; i < 300; i++) {
                if (!s->append(std::array{i % kTextIds}).ok()) std::abort();
              }
            }),
            0);
  auto options = greedy(600);
  options.repeat_guard = 0;
  Generator generator = Generator::start(*s, options).value();
  for (int i = 0; i < 3; i++) ASSERT_TRUE(generator.next().ok());
  EXPECT_EQ(support::allocations_in([&] {
              for (int i = 0; i < 300; i++) {
                if (!generator.next().ok()) std::abort();
              }
            }),
            0);
}

TEST_F(SessionTest, GreedyTokensAreTheBestOfTheTeacherForcedRows) {
  const auto prompt = ids_of(12);
  auto s = session(prompt);
  const auto generation = s->generate(greedy(20));
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation->token_ids.size(), 20u);
  EXPECT_EQ(generation->finish_reason, FinishReason::length);
  EXPECT_EQ(generation->timings.decode_tokens, 19);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), generation->token_ids.begin(), generation->token_ids.end());
  EXPECT_TRUE(std::equal(all.begin(), all.end(), s->tokens().begin(), s->tokens().end()));
  auto forced = session();
  const auto rows = all_logits(*forced, all);
  for (size_t i = 0; i < generation->token_ids.size(); i++) {
    const auto row = std::span(rows).subspan((prompt.size() - 1 + i) * kVocab, kTextIds);
    const float best = *std::max_element(row.begin(), row.end());
    EXPECT_EQ(row[static_cast<size_t>(generation->token_ids[i])], best) << "token " << i;
  }
}

TEST_F(SessionTest, GeneratedTokenIsPartOfWhatFollows) {
  auto s = session(ids_of(5));
  const auto generation = s->generate(greedy(4));
  ASSERT_TRUE(generation.ok());
  const std::vector<int32_t> more = {7, 8};
  const auto got = all_logits(*s, more);
  std::vector<int32_t> all = ids_of(5);
  all.insert(all.end(), generation->token_ids.begin(), generation->token_ids.end());
  all.insert(all.end(), more.begin(), more.end());
  auto fresh = session();
  const auto expected = all_logits(*fresh, all);
  for (size_t i = 0; i < got.size(); i++) {
    ASSERT_EQ(got[i], expected[expected.size() - got.size() + i]) << i;
  }
}

TEST_F(SessionTest, GenerationContinuesWhereItEnded) {
  auto whole = session(ids_of(6)), parts = session(ids_of(6));
  const auto expected = whole->generate(greedy(9))->token_ids;
  auto got = parts->generate(greedy(4))->token_ids;
  const auto rest = parts->generate(greedy(5))->token_ids;
  got.insert(got.end(), rest.begin(), rest.end());
  EXPECT_EQ(got, expected);
}

TEST_F(SessionTest, ChunksAgreeWithOnePieceAndReportProgress) {
  const auto ids = ids_of(50);
  auto whole = session(), chunked = session();
  AppendOptions options;
  options.chunk_tokens = 16;
  std::vector<int64_t> done;
  options.progress = [&](int64_t at, int64_t total) {
    done.push_back(at);
    EXPECT_EQ(total, 50);
  };
  const auto expected = all_logits(*whole, ids);
  const auto got = all_logits(*chunked, ids, options);
  EXPECT_EQ(done, (std::vector<int64_t>{16, 32, 48, 50}));
  for (size_t i = 0; i < got.size(); i++) ASSERT_EQ(got[i], expected[i]) << i;
  EXPECT_EQ(whole->generate(greedy(8))->token_ids, chunked->generate(greedy(8))->token_ids);
}

TEST_F(SessionTest, TooLongPromptIsRefusedWithBothNumbersAndChangesNothing) {
  auto s = session(ids_of(10));
  const auto forwards = s->counters().forwards;
  const auto refused = s->append(ids_of(1015));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::too_long);
  EXPECT_NE(refused.error().message().find("1025"), std::string::npos) << refused.error().message();
  EXPECT_NE(refused.error().message().find("1024"), std::string::npos);
  EXPECT_EQ(s->tokens().size(), 10u);
  EXPECT_EQ(s->counters().forwards, forwards);
}

TEST_F(SessionTest, IdOutOfRangeIsRefusedByPosition) {
  auto s = session();
  for (const int32_t bad : {kVocab, -1}) {
    const auto refused = s->append(std::array{1, bad});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Errc::bad_request);
    EXPECT_NE(refused.error().message().find("token 1"), std::string::npos) << refused.error().message();
    EXPECT_NE(refused.error().message().find("319"), std::string::npos) << refused.error().message();
  }
  EXPECT_TRUE(s->tokens().empty());
  EXPECT_EQ(s->counters().forwards, 0u);
}

TEST_F(SessionTest, FullContextEndsGenerationAsLength) {
  auto s = session(ids_of(1022));
  const auto generation = s->generate(greedy(10));
  ASSERT_TRUE(generation.ok()) << generation.error().message();
  // Two more positions, and one token chosen after the last.
  EXPECT_EQ(generation->token_ids.size(), 3u);
  EXPECT_EQ(generation->finish_reason, FinishReason::length);
  EXPECT_EQ(s->append(std::array{1}).error().code, Errc::too_long);
}

TEST_F(SessionTest, StopIdEndsGenerationAndGivesNoText) {
  auto probe = session(ids_of(4));
  const auto free_run = probe->generate(greedy(8))->token_ids;
  auto s = session(ids_of(4));
  GenerateOptions options = greedy(8);
  options.stop_ids = {{free_run[3]}};
  const auto at = std::find(free_run.begin(), free_run.end(), free_run[3]);
  const auto generation = s->generate(options);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation->finish_reason, FinishReason::stop);
  EXPECT_EQ(generation->token_ids, std::vector<int32_t>(free_run.begin(), at + 1));
  EXPECT_EQ(generation->text,
            *engine_->decode(std::span(generation->token_ids).first(generation->token_ids.size() - 1)));
}

TEST_F(SessionTest, StopStringEndsTheTextInFrontOfItAcrossTokens) {
  const std::string free_text = session(ids_of(4))->generate(greedy(40))->text;
  ASSERT_GT(free_text.size(), 20u);
  // Whole characters from the middle; most tokens are single bytes, so a longer string spans several.
  size_t begin = free_text.size() / 2;
  while ((static_cast<unsigned char>(free_text[begin]) & 0xC0) == 0x80) begin++;
  size_t end = begin + 4;
  while (end < free_text.size() && (static_cast<unsigned char>(free_text[end]) & 0xC0) == 0x80) end++;
  const std::string stop = free_text.substr(begin, end - begin);
  GenerateOptions options = greedy(40);
  options.stop_strings = {"never in there", stop};
  std::string streamed;
  options.on_token = [&](std::string_view text, int32_t) {
    streamed += text;
    return true;
  };
  auto s = session(ids_of(4));
  const auto generation = s->generate(options);
  ASSERT_TRUE(generation.ok()) << generation.error().message();
  EXPECT_EQ(generation->finish_reason, FinishReason::stop);
  EXPECT_EQ(generation->text, free_text.substr(0, free_text.find(stop)));
  EXPECT_EQ(streamed, generation->text);
  EXPECT_LT(generation->token_ids.size(), 40u);
  EXPECT_EQ(s->tokens().size(), 4 + generation->token_ids.size());
}

TEST_F(SessionTest, TextHeldBackForAStopStringComesAtTheEnd) {
  const std::string free_text = session(ids_of(4))->generate(greedy(12))->text;
  GenerateOptions options = greedy(12);
  size_t last = free_text.size() - 1;  // the last character's first byte
  while ((static_cast<unsigned char>(free_text[last]) & 0xC0) == 0x80) last--;
  options.stop_strings = {free_text.substr(last) + "and something that never comes"};
  std::string streamed;
  options.on_token = [&](std::string_view text, int32_t) {
    streamed += text;
    return true;
  };
  const auto generation = session(ids_of(4))->generate(options);
  ASSERT_TRUE(generation.ok()) << generation.error().message();
  EXPECT_EQ(generation->text, free_text);
  EXPECT_EQ(streamed, free_text);
  EXPECT_EQ(generation->finish_reason, FinishReason::length);
}

TEST_F(SessionTest, StopStringsThatCannotBeFoundAreRefused) {
  for (const char* bad : {"", "\xFF"}) {
    GenerateOptions options = greedy(3);
    options.stop_strings = {bad};
    auto s = session(ids_of(4));
    EXPECT_EQ(s->generate(options).error().code, Errc::bad_request);
    EXPECT_EQ(s->tokens().size(), 4u);
  }
  EngineOptions no_text;
  no_text.with_text = false;
  auto s = Engine::open(scratch_.path(), no_text).value()->new_session().value();
  ASSERT_TRUE(s->append(ids_of(4)).ok());
  GenerateOptions options = greedy(3);
  EXPECT_TRUE(s->generate(options).ok());
  options.stop_strings = {"x"};
  EXPECT_EQ(s->generate(options).error().code, Errc::bad_request);
}

TEST_F(SessionTest, LogProbabilitiesAreOfTheModelsOwnRows) {
  const auto prompt = ids_of(7);
  GenerateOptions options = greedy(5);
  options.log_probs = 3;
  options.sampling.repetition_penalty = 3;
  options.sampling.logit_bias = {{9, 2.5f}};
  const auto generation = session(prompt)->generate(options);
  ASSERT_TRUE(generation.ok());
  ASSERT_EQ(generation->log_probs.size(), 5u);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), generation->token_ids.begin(), generation->token_ids.end());
  auto forced = session();
  const auto rows = all_logits(*forced, all);
  for (size_t i = 0; i < 5; i++) {
    const auto row = std::span(rows).subspan((prompt.size() - 1 + i) * kVocab, kVocab);
    const TokenLogProbs& got = generation->log_probs[i];
    const TokenLogProbs expected = token_log_probs(row, generation->token_ids[i], 3);
    EXPECT_EQ(got.chosen.id, generation->token_ids[i]);
    EXPECT_EQ(got.chosen.log_prob, expected.chosen.log_prob);
    ASSERT_EQ(got.top.size(), 3u);
    for (size_t k = 0; k < 3; k++) EXPECT_EQ(got.top[k].log_prob, expected.top[k].log_prob);
  }
  options.log_probs = -1;
  EXPECT_EQ(session(prompt)->generate(options).error().code, Errc::bad_request);
}

TEST_F(SessionTest, PenaltiesAndBiasesLeaveTheSessionItself) {
  auto s = session(ids_of(9)), untouched = session(ids_of(9));
  GenerateOptions changed = greedy(1);
  changed.sampling.logit_bias = {{100, 1000}};
  EXPECT_EQ(s->generate(changed)->token_ids, std::vector<int32_t>{100});
  ASSERT_TRUE(s->rewind(9).ok());
  EXPECT_EQ(s->generate(greedy(6))->token_ids, untouched->generate(greedy(6))->token_ids);
  // What was generated before is prompt now.
  changed.sampling.logit_bias = {};
  changed.sampling.repetition_penalty = 1e6f;
  changed.max_tokens = 20;
  const auto generation = s->generate(changed);
  ASSERT_TRUE(generation.ok());
  std::set<int32_t> seen(s->tokens().begin(), s->tokens().end() - 20);
  for (const int32_t id : generation->token_ids) EXPECT_TRUE(seen.insert(id).second) << id << " came again";
}

TEST_F(SessionTest, ModelsRepetitionPenaltyIsItsDefault) {
  TinyQwen3 model;
  model.edit_config = [](nlohmann::json& json) { json["search"]["repetition_penalty"] = 1.5; };
  engine_ = open(model);
  ASSERT_NE(engine_, nullptr);
  const auto sampling = engine_->default_sampling();
  ASSERT_TRUE(sampling.ok()) << sampling.error().message();
  EXPECT_EQ(sampling->repetition_penalty, 1.5f);
}

TEST_F(SessionTest, ModelsOwnStopIdsAreTheDefault) {
  auto probe = session(ids_of(4));
  const int32_t first = probe->generate(greedy(1))->token_ids[0];
  TinyQwen3 model;
  model.edit_config = [&](nlohmann::json& json) { json["model"]["eos_token_id"] = first; };
  engine_ = open(model);
  auto s = session(ids_of(4));
  GenerateOptions options = greedy(8);
  options.stop_ids.reset();
  EXPECT_EQ(s->generate(options)->finish_reason, FinishReason::stop);
}

TEST_F(SessionTest, IdsWithoutTextAreNeverChosen) {
  auto s = session(ids_of(3));
  GenerateOptions options = greedy(300);
  options.sampling = {};
  options.sampling.temperature = 100;  // nearly every id is equally likely
  const auto generation = s->generate(options);
  ASSERT_TRUE(generation.ok());
  EXPECT_GT(std::set<int32_t>(generation->token_ids.begin(), generation->token_ids.end()).size(), 100u);
  for (const int32_t id : generation->token_ids) ASSERT_LT(id, kTextIds);
}

TEST_F(SessionTest, TokensInACircleEndTheGenerationUnlessAllowed) {
  GenerateOptions options = greedy(300);
  options.sampling.logit_bias = {{100, 1000}};
  options.repeat_guard = 5;
  const auto generation = session(ids_of(4))->generate(options);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation->finish_reason, FinishReason::repetition);
  EXPECT_EQ(generation->cycle_tokens, 1);
  EXPECT_EQ(generation->token_ids.size(), 50u);
  EXPECT_EQ(generation->text, std::string(50, 'd'));
  options.repeat_guard = 0;
  EXPECT_EQ(session(ids_of(4))->generate(options)->finish_reason, FinishReason::length);
  for (const int32_t bad : {-1, 1}) {
    options.repeat_guard = bad;
    EXPECT_EQ(session(ids_of(4))->generate(options).error().where, "repeat_guard");
  }
}

TEST_F(SessionTest, SameSeedSameTokensOnAnyNumberOfThreads) {
  GenerateOptions options = greedy(40);
  options.sampling = {};
  options.sampling.seed = 9;
  const auto expected = session(ids_of(30))->generate(options)->token_ids;
  EXPECT_EQ(session(ids_of(30))->generate(options)->token_ids, expected);
  engine_ = open({}, 1);
  EXPECT_EQ(session(ids_of(30))->generate(options)->token_ids, expected);
  options.sampling.seed = 10;
  EXPECT_NE(session(ids_of(30))->generate(options)->token_ids, expected);
}

TEST_F(SessionTest, StreamedTextIsTheWholeTextInWholeCharacters) {
  auto s = session(ids_of(3));
  GenerateOptions options = greedy(60);
  options.sampling = {};
  std::string streamed;
  int calls = 0;
  options.on_token = [&](std::string_view text, int32_t) {
    EXPECT_FALSE(text::find_invalid_utf8(text).has_value());
    streamed += text;
    calls++;
    return true;
  };
  const auto generation = s->generate(options);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(streamed, generation->text);
  EXPECT_EQ(generation->text, *engine_->decode(generation->token_ids));
  EXPECT_GE(calls, 60);
}

TEST_F(SessionTest, CallerEndsGenerationAtAToken) {
  auto s = session(ids_of(3));
  GenerateOptions options = greedy(60);
  int calls = 0;
  options.on_token = [&](std::string_view, int32_t) { return ++calls < 3; };
  const auto generation = s->generate(options);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation->finish_reason, FinishReason::cancelled);
  EXPECT_EQ(generation->token_ids.size(), 3u);
}

TEST_F(SessionTest, CancelledPromptLeavesTheSessionAsItWas) {
  auto s = session(ids_of(5)), untouched = session(ids_of(5));
  std::atomic<bool> cancel{false};
  AppendOptions options;
  options.chunk_tokens = 8;
  options.cancel = &cancel;
  options.progress = [&](int64_t done, int64_t) {
    if (done >= 16) cancel = true;
  };
  const auto cancelled = s->append(ids_of(40, 3), options);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code, Errc::cancelled);
  EXPECT_EQ(s->tokens().size(), 5u);
  EXPECT_EQ(s->generate(greedy(6))->token_ids, untouched->generate(greedy(6))->token_ids);
}

TEST_F(SessionTest, RaisedFlagEndsGeneration) {
  auto s = session(ids_of(5));
  std::atomic<bool> cancel{true};
  GenerateOptions options = greedy(6);
  options.cancel = &cancel;
  const auto generation = s->generate(options);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation->finish_reason, FinishReason::cancelled);
  EXPECT_TRUE(generation->token_ids.empty());
}

TEST_F(SessionTest, RewoundAndForkedSessionsContinueAlike) {
  auto s = session(ids_of(20));
  const auto expected = s->generate(greedy(6))->token_ids;
  ASSERT_TRUE(s->rewind(20).ok());
  auto copy = s->fork().value();
  EXPECT_EQ(s->generate(greedy(6))->token_ids, expected);
  EXPECT_EQ(copy->generate(greedy(6))->token_ids, expected);
  EXPECT_EQ(s->rewind(27).error().code, Errc::bad_request);
  s->reset();
  EXPECT_TRUE(s->tokens().empty());
  EXPECT_EQ(s->generate(greedy(1)).error().code, Errc::bad_request);
}

TEST_F(SessionTest, SavedSessionGoesOnAsTheOriginal) {
  auto s = session(ids_of(20));
  ASSERT_EQ(s->generate(greedy(3))->token_ids.size(), 3u);  // the last of them is not computed yet
  const auto file = scratch_.path() / "kept.state";
  ASSERT_TRUE(s->save(file).ok());
  const auto expected = s->generate(greedy(6))->token_ids;
  auto loaded = Session::load(engine_, file).value();
  EXPECT_EQ(loaded->tokens().size(), 23u);
  EXPECT_EQ(loaded->generate(greedy(6))->token_ids, expected);
  EXPECT_EQ(Session::load(engine_, scratch_.path() / "nothing").error().code, Errc::io);
}

TEST_F(SessionTest, NotANumberInTheWeightsIsABadModel) {
  // A weight of the final norm: norms are the only initializers that start with two ones.
  std::fstream file(scratch_.path() / "model.onnx", std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string ones = std::string("\0\0\x80\x3f", 4) + std::string("\0\0\x80\x3f", 4);
  const size_t at = bytes.rfind(ones);
  ASSERT_NE(at, std::string::npos);
  file.clear();
  file.seekp(static_cast<std::streamoff>(at));
  file.write("\0\0\xc0\x7f", 4);
  file.close();
  EngineOptions options;
  auto engine = Engine::open(scratch_.path(), options);
  if (!engine.ok()) {
    EXPECT_EQ(engine.error().code, Errc::bad_model);
    return;
  }
  auto s = (*engine)->new_session().value();
  ASSERT_TRUE(s->append(ids_of(3)).ok());
  const auto generation = s->generate(greedy(3));
  ASSERT_FALSE(generation.ok());
  EXPECT_EQ(generation.error().code, Errc::bad_model);
}

TEST_F(SessionTest, TokenizerWithMoreIdsThanTheModelIsABadModel) {
  TinyQwen3 model;
  model.vocab = 256;
  model.write(scratch_.path());
  const auto engine = Engine::open(scratch_.path(), {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, Errc::bad_model);
  EXPECT_NE(engine.error().message().find("256"), std::string::npos) << engine.error().message();
}

TEST_F(SessionTest, MissingTokenizerMattersOnlyForText) {
  std::filesystem::remove(scratch_.path() / "tokenizer.json");
  EXPECT_EQ(Engine::open(scratch_.path(), {}).error().code, Errc::bad_model);
  EngineOptions options;
  options.with_text = false;
  const auto engine = Engine::open(scratch_.path(), options);
  ASSERT_TRUE(engine.ok()) << engine.error().message();
  EXPECT_EQ((*engine)->encode("x").error().code, Errc::bad_request);
  EXPECT_EQ((*engine)->sampled_ids(), kVocab);
}

TEST_F(SessionTest, DamagedTokenizerIsFoundWithAnyNumberOfThreads) {
  scratch_.file("tokenizer.json", "{");
  for (const bool graph_too : {false, true}) {
    if (graph_too) scratch_.file("model.onnx", "x");
    for (const int threads : {1, 2, 3}) {
      EngineOptions options;
      options.threads = threads;
      const auto engine = Engine::open(scratch_.path(), options);
      ASSERT_FALSE(engine.ok());
      EXPECT_EQ(engine.error().code, Errc::bad_model);
      EXPECT_NE(engine.error().message().find("tokenizer.json"), std::string::npos) << engine.error().message();
    }
  }
}

TEST_F(SessionTest, UnknownPassOverTheGraphIsABadRequest) {
  EngineOptions options;
  options.no_fuse = {"shared_rows"};
  EXPECT_TRUE(Engine::open(scratch_.path(), options).ok());
  options.no_fuse.emplace_back("nowhere");
  const auto engine = Engine::open(scratch_.path(), options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, Errc::bad_request);
  EXPECT_NE(engine.error().message().find("'nowhere'"), std::string::npos) << engine.error().message();
}

TEST_F(SessionTest, GenerationSettingsThatAreNotCarriedOutAreNotIgnored) {
  TinyQwen3 model;
  model.edit_config = [](nlohmann::json& json) { json["search"]["num_beams"] = 4; };
  engine_ = open(model);
  const auto sampling = engine_->default_sampling();
  ASSERT_FALSE(sampling.ok());
  EXPECT_EQ(sampling.error().code, Errc::unsupported);
  EXPECT_NE(sampling.error().message().find("num_beams 4"), std::string::npos) << sampling.error().message();
  EXPECT_EQ(sampling.error().where, (scratch_.path() / "genai_config.json").string());
}

TEST_F(SessionTest, NumberOfThreadsOutOfRangeIsABadRequest) {
  for (const int threads : {-1, kMaxThreads + 1, INT32_MAX}) {
    EngineOptions options;
    options.threads = threads;
    const auto engine = Engine::open(scratch_.path(), options);
    ASSERT_FALSE(engine.ok()) << threads;
    EXPECT_EQ(engine.error().code, Errc::bad_request);
    EXPECT_EQ(engine.error().where, "threads");
  }
}

// As ONNX Runtime GenAI 0.15 does.
TEST_F(SessionTest, ModelsTopPOfZeroIsTheBestTokenWithoutTopK) {
  TinyQwen3 model;
  model.edit_config = [](nlohmann::json& config) {
    config["search"] = {{"do_sample", true}, {"temperature", 9.0}, {"top_k", 0}, {"top_p", 0}};
  };
  engine_ = open(model);
  ASSERT_NE(engine_, nullptr);
  GenerateOptions options = greedy(12);
  const auto best = session(ids_of(6))->generate(options);
  options.sampling = engine_->default_sampling().value();
  EXPECT_FALSE(options.sampling.greedy);
  EXPECT_EQ(session(ids_of(6))->generate(options)->token_ids, best->token_ids);
}

// As ONNX Runtime GenAI 0.15 does.
TEST_F(SessionTest, ModelsTopPOfZeroBesideTopKMeansNoLimit) {
  TinyQwen3 model;
  model.edit_config = [](nlohmann::json& config) { config["search"]["top_p"] = 0; };
  const auto engine = open(model);
  ASSERT_NE(engine, nullptr);
  const auto sampling = engine->default_sampling();
  ASSERT_TRUE(sampling.ok());
  EXPECT_EQ(sampling->top_p, 1.0f);
  EXPECT_TRUE(check_sampling(*sampling, kVocab).ok());
}

}  // namespace
}  // namespace quern::engine
