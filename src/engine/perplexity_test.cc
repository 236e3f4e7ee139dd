// SPDX-License-Identifier: Apache-2.0
// Likelihoods against torch, and what must hold for windows whatever the model is. Whether the figures are right is
// tests/oracle/test_perplexity.py's matter.
#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "tests/support/small_tokenizer.h"
#include "tests/support/tiny_qwen3.h"

namespace quern::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// torch 2.13.0: torch.nn.functional.cross_entropy(row.double(), id). 1e-15 relative is the rounding of a handful of
// sums.
TEST(NegativeLogLikelihood, IsTorchsCrossEntropy) {
  const auto check = [](const std::vector<float>& row, const std::vector<double>& expected) {
    for (size_t id = 0; id < row.size(); id++) {
      EXPECT_NEAR(negative_log_likelihood(row, static_cast<int32_t>(id)), expected[id], 1e-15 * (1 + expected[id]));
    }
  };
  check({1.5f, -2.25f, 0.0f, 7.125f, 3.0f},
        {5.645449093752051, 9.39544909375205, 7.145449093752051, 0.02044909375205058, 4.145449093752051});
  check({-1000.0f, 1000.0f, 999.5f}, {2000.47407698418, 0.4740769841801067, 0.9740769841801067});
  check({3e38f, -3e38f, 0.0f}, {0.0, 6.0000000109955115e+38, 3.0000000054977558e+38});
  check({0.1f, 0.1f, 0.1f, 0.1f}, {1.3862943611198906, 1.3862943611198906, 1.3862943611198906, 1.3862943611198906});
}

TEST(NegativeLogLikelihood, IsNotFiniteWhereARowCannotGiveOne) {
  for (const std::vector<float>& row :
       {std::vector<float>{kNaN, 0, 1}, {1, kNaN, 0}, {1, 0, kNaN}, {kInfinity, 0, 0}}) {
    EXPECT_FALSE(std::isfinite(negative_log_likelihood(row, 1)));
  }
  EXPECT_EQ(negative_log_likelihood(std::vector<float>{0, -kInfinity}, 1), HUGE_VAL);
  EXPECT_EQ(negative_log_likelihood(std::vector<float>{0, -kInfinity}, 0), 0.0);
}

class PerplexityTest : public testing::Test {
 protected:
  static constexpr int32_t kVocab = 320;
  static constexpr int32_t kContext = 1024;

  PerplexityTest() : scratch_("perplexity_test") {}
  void SetUp() override { engine_ = open({}, 2); }

  std::shared_ptr<const Engine> open(const test::TinyQwen3& model, int threads) {
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
  Perplexity measure(std::span<const int32_t> ids, int32_t window = 0, int32_t stride = 0) {
    PerplexityOptions options;
    options.window_tokens = window;
    options.stride_tokens = stride;
    const auto result = measure_perplexity(*engine_, ids, options);
    if (!result.ok()) {
      ADD_FAILURE() << result.error().message();
      return {};
    }
    return *result;
  }
  Error refusal(std::span<const int32_t> ids, int32_t window = 0, int32_t stride = 0) {
    PerplexityOptions options;
    options.window_tokens = window;
    options.stride_tokens = stride;
    const auto result = measure_perplexity(*engine_, ids, options);
    return result.ok() ? Error{Errc::internal, "was measured", ""} : result.error();
  }

  test::ScratchFolder scratch_;
  std::shared_ptr<const Engine> engine_;
};

std::vector<int32_t> text_ids(int64_t count, int32_t first = 40) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); i++) ids[i] = static_cast<int32_t>((first + 37 * i) % 257);
  return ids;
}

TEST_F(PerplexityTest, SeparateWindowsAreSeparateTexts) {
  const auto ids = text_ids(70);
  const Perplexity whole = measure(ids, 32, 32);
  EXPECT_EQ(whole.tokens, 70);
  EXPECT_EQ(whole.windows, 3);
  EXPECT_EQ(whole.scored_tokens, 67);
  double sum = 0;
  for (const auto& [at, count] : {std::pair<size_t, size_t>{0, 32}, {32, 32}, {64, 6}}) {
    sum += measure(std::span(ids).subspan(at, count), 32, 32).negative_log_likelihood;
  }
  EXPECT_NEAR(whole.negative_log_likelihood, sum, 1e-9);
}

TEST_F(PerplexityTest, EveryTokenButTheFirstIsScoredOnceWhereWindowsOverlap) {
  for (const auto& [window, stride, windows] :
       {std::array{32, 31, 3}, {32, 16, 4}, {32, 1, 39}, {70, 69, 1}, {2, 1, 69}}) {
    const Perplexity result = measure(text_ids(70), window, stride);
    EXPECT_EQ(result.scored_tokens, 69) << window << " " << stride;
    EXPECT_EQ(result.windows, windows) << window << " " << stride;
    EXPECT_EQ(result.window_tokens, window);
    EXPECT_EQ(result.stride_tokens, stride);
  }
}

TEST_F(PerplexityTest, WindowOfOneTokenScoresNothing) {
  const Perplexity result = measure(text_ids(33), 32, 32);
  EXPECT_EQ(result.windows, 1);
  EXPECT_EQ(result.scored_tokens, 31);
}

TEST_F(PerplexityTest, WindowIsTheDefaultOrTheContext) {
  EXPECT_EQ(measure(text_ids(3)).window_tokens, kDefaultWindowTokens);
  EXPECT_EQ(measure(text_ids(3)).stride_tokens, kDefaultWindowTokens);
  test::TinyQwen3 model;
  model.context = 40;
  engine_ = open(model, 2);
  ASSERT_NE(engine_, nullptr);
  EXPECT_EQ(measure(text_ids(3)).window_tokens, 40);
}

TEST_F(PerplexityTest, SameBitsOnAnyNumberOfThreads) {
  const auto ids = text_ids(200);
  const double expected = measure(ids, 64, 40).negative_log_likelihood;
  engine_ = open({}, 1);
  ASSERT_NE(engine_, nullptr);
  EXPECT_EQ(measure(ids, 64, 40).negative_log_likelihood, expected);
}

// 64 MiB hold 512 rows of 32,768 columns: a window of 600 tokens takes two pieces.
TEST_F(PerplexityTest, PiecesOfAWindowAreOneWindow) {
  test::TinyQwen3 model;
  model.vocab = 32768;
  model.hidden = 8;
  engine_ = open(model, 2);
  ASSERT_NE(engine_, nullptr);
  const auto ids = text_ids(600);
  PerplexityOptions options;
  options.window_tokens = 600;
  std::vector<int64_t> done;
  options.progress = [&](int64_t at, int64_t total) {
    done.push_back(at);
    EXPECT_EQ(total, 600);
  };
  const auto pieces = measure_perplexity(*engine_, ids, options);
  ASSERT_TRUE(pieces.ok()) << pieces.error().message();
  EXPECT_EQ(done, (std::vector<int64_t>{513, 600}));
  EXPECT_EQ(pieces->windows, 1);
  // Scored one token a call, in the same window, by the session itself.
  auto session = engine_->new_session().value();
  std::vector<float> row(static_cast<size_t>(model.vocab));
  double sum = 0;
  for (size_t i = 0; i + 1 < ids.size(); i++) {
    ASSERT_TRUE(session->logits(std::span(ids).subspan(i, 1), row).ok());
    sum += negative_log_likelihood(row, ids[i + 1]);
  }
  EXPECT_NEAR(pieces->negative_log_likelihood / sum, 1.0, 1e-6);
}

TEST_F(PerplexityTest, RequestsThatCannotBeMetAreRefused) {
  EXPECT_EQ(refusal(text_ids(1)).code, Errc::bad_request);
  EXPECT_EQ(refusal({}).code, Errc::bad_request);
  EXPECT_EQ(refusal(text_ids(9), 1).code, Errc::bad_request);
  EXPECT_EQ(refusal(text_ids(9), -5).code, Errc::bad_request);
  EXPECT_EQ(refusal(text_ids(9), 8, 9).code, Errc::bad_request);
  EXPECT_EQ(refusal(text_ids(9), 8, -1).code, Errc::bad_request);
  const Error too_long = refusal(text_ids(9), kContext + 1);
  EXPECT_EQ(too_long.code, Errc::too_long);
  EXPECT_NE(too_long.message().find("1025"), std::string::npos) << too_long.message();
  EXPECT_NE(too_long.message().find("1024"), std::string::npos) << too_long.message();
  auto ids = text_ids(9);
  ids[7] = kVocab;
  const Error outside = refusal(ids, 4);
  EXPECT_EQ(outside.code, Errc::bad_request);
  EXPECT_NE(outside.message().find("token 7"), std::string::npos) << outside.message();
}

TEST_F(PerplexityTest, RaisedFlagEndsIt) {
  std::atomic<bool> cancel{false};
  PerplexityOptions options;
  options.window_tokens = 16;
  options.cancel = &cancel;
  options.progress = [&](int64_t done, int64_t) {
    EXPECT_LE(done, 32);
    if (done == 32) cancel = true;
  };
  const auto result = measure_perplexity(*engine_, text_ids(100), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Errc::cancelled);
}

TEST_F(PerplexityTest, LikelihoodThatIsNotFiniteIsABadModelAtItsToken) {
  // A weight of the final norm: norms are the only initializers that start with two ones.
  std::fstream file(scratch_.path() / "model.onnx", std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string one("\0\0\x80\x3f", 4);
  const size_t at = bytes.rfind(one + one);
  ASSERT_NE(at, std::string::npos);
  file.clear();
  file.seekp(static_cast<std::streamoff>(at));
  file.write("\0\0\xc0\x7f", 4);
  file.close();
  engine_ = Engine::open(scratch_.path(), {}).value();
  const Error error = refusal(text_ids(9));
  EXPECT_EQ(error.code, Errc::bad_model);
  EXPECT_NE(error.message().find("text token 1 (id 77)"), std::string::npos) << error.message();
}

}  // namespace
}  // namespace quern::engine
