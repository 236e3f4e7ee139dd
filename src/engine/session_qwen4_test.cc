// SPDX-License-Identifier: Apache-2.0
// Sessions on a tiny model that cannot go back for free: what is computed again, and what a file saves.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "engine/engine.h"
#include "engine/session.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_qwen4.h"

namespace quern::engine {
namespace {

class SessionQwen4Test : public testing::Test {
 protected:
  static constexpr size_t kVocab = 50;

  SessionQwen4Test() : scratch_("session_qwen4_test") {
    auto config = test::tiny_qwen4_config();
    config["max_position_embeddings"] = 3000;
    config["eos_token_id"] = 1;
    test::write_tiny_qwen4(scratch_.path(), config, {});
    EngineOptions options;
    options.threads = 2;
    options.with_text = false;
    options.compute = "fp32";
    engine_ = Engine::open(scratch_.path(), options).value();
  }
  static std::vector<int32_t> ids_of(size_t count) {
    std::vector<int32_t> ids(count);
    for (size_t i = 0; i < count; i++) ids[i] = static_cast<int32_t>((3 + 37 * i + i * i / 7) % kVocab);
    return ids;
  }
  std::unique_ptr<Session> session(std::span<const int32_t> ids) {
    auto s = engine_->new_session().value();
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

  test::ScratchFolder scratch_;
  std::shared_ptr<const Engine> engine_;
};

TEST_F(SessionQwen4Test, ALoadedTimelineGoesOnWithoutComputingItAgain) {
  auto s = session(ids_of(300));
  ASSERT_EQ(s->generate(greedy(3))->token_ids.size(), 3u);  // the last of them is not computed yet
  const auto file = scratch_.path() / "kept.state";
  ASSERT_TRUE(s->save(file).ok());
  const auto expected = s->generate(greedy(6))->token_ids;
  auto loaded = Session::load(engine_, file).value();
  EXPECT_EQ(loaded->generate(greedy(1))->token_ids[0], expected[0]);
  EXPECT_EQ(loaded->counters().tokens, 0u);
  const auto rest = loaded->generate(greedy(5))->token_ids;
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.begin() + 1));
  EXPECT_EQ(loaded->counters().tokens, 5u);
}

TEST_F(SessionQwen4Test, CatchingUpAfterGoingBackComesInChunksAndCanBeCancelled) {
  const auto ids = ids_of(600);
  constexpr size_t kBack = 250;  // before the first snapshot: all of it is forgotten
  auto s = session(ids);
  ASSERT_TRUE(s->rewind(kBack).ok());
  std::atomic<bool> cancel{false};
  std::vector<int64_t> done;
  AppendOptions options;
  options.chunk_tokens = 64;
  options.cancel = &cancel;
  options.progress = [&](int64_t at, int64_t total) {
    done.push_back(at);
    EXPECT_EQ(total, 260);
    cancel = true;
  };
  const auto more = std::span(ids).subspan(kBack, 10);
  const uint64_t before = s->counters().tokens;
  const auto cancelled = s->append(more, options);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code, Errc::cancelled);
  EXPECT_EQ(done, std::vector<int64_t>{64});
  EXPECT_EQ(s->counters().tokens - before, 64u);
  EXPECT_EQ(s->tokens().size(), kBack);

  // It goes on where it was broken off.
  cancel = false;
  options.progress = {};
  std::vector<float> row(10 * kVocab), expected(10 * kVocab);
  ASSERT_TRUE(s->logits(more, row, options).ok());
  EXPECT_EQ(s->counters().tokens - before, 260u);
  ASSERT_TRUE(session(std::span(ids).first(kBack))->logits(more, expected).ok());
  for (size_t i = 0; i < row.size(); i++)
    ASSERT_NEAR(row[i], expected[i], 1e-4f * std::max(1.0f, std::abs(expected[i])));
}

TEST_F(SessionQwen4Test, CatchingUpBeforeTheFirstTokenCanBeCancelled) {
  const auto ids = ids_of(2600);
  constexpr size_t kBack = 1000;  // before the oldest snapshot that is left
  auto s = session(ids);
  ASSERT_TRUE(s->rewind(kBack).ok());
  const uint64_t before = s->counters().tokens;
  std::atomic<bool> cancel{false};
  GenerateOptions options = greedy(4);
  options.cancel = &cancel;
  options.progress = [&](int64_t, int64_t) { cancel = true; };
  const auto cancelled = s->generate(options);
  ASSERT_TRUE(cancelled.ok()) << cancelled.error().message();
  EXPECT_EQ(cancelled->finish_reason, FinishReason::cancelled);
  EXPECT_TRUE(cancelled->token_ids.empty());
  EXPECT_EQ(s->counters().tokens - before, 512u);
  EXPECT_EQ(s->tokens().size(), kBack);
  EXPECT_EQ(s->generate(greedy(4))->token_ids, session(std::span(ids).first(kBack))->generate(greedy(4))->token_ids);
}

}  // namespace
}  // namespace quern::engine
