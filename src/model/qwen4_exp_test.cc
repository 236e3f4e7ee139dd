// SPDX-License-Identifier: Apache-2.0
// Timelines of the qwen4_exp line against a computation from scratch, and what a call is refused for. What the numbers
// have to be is tests/oracle/test_qwen4_model.py's. Over 600 lines because all of them compare with one recomputation.
#include "model/qwen4_exp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "base/brain.h"
#include "model/qwen4_exp_config.h"
#include "model/qwen4_exp_forward.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_qwen4.h"

namespace quern::model {
namespace {

using Logits = std::vector<float>;

class Qwen4Exp : public testing::Test {
 protected:
  Qwen4Exp() : scratch_("qwen4_exp"), pool_(2) { write(test::tiny_qwen4_config()); }

  void write(const nlohmann::json& config) { test::write_tiny_qwen4(scratch_.path(), config, {}); }
  Result<std::unique_ptr<Line>> open(DType compute) {
    return open_qwen4_exp(scratch_.path(), {.pool = &pool_, .features = cpu::detect_features(), .compute = compute});
  }
  // Logits of all rows of one call on `state`.
  static Logits forward(const Line& line, State& state, std::span<const int32_t> ids) {
    Logits logits(ids.size() * static_cast<size_t>(line.info().vocab));
    const auto done = line.forward(state, ids, {0, static_cast<int64_t>(ids.size())}, logits);
    EXPECT_TRUE(done.ok()) << done.error().message();
    return logits;
  }
  static std::vector<int32_t> some_ids(size_t count) {
    std::mt19937 random(7);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 50);
    return ids;
  }
  static size_t size_of(int64_t count) { return static_cast<size_t>(count); }
  // As a part of the largest expected value, or of 1.
  static float largest_difference(std::span<const float> found, std::span<const float> expected) {
    float most = 0, largest = 1;
    for (size_t i = 0; i < found.size(); ++i) most = std::max(most, std::abs(found[i] - expected[i]));
    for (const float v : expected) largest = std::max(largest, std::abs(v));
    return most / largest;
  }

  test::ScratchFolder scratch_;
  cpu::Pool pool_;
};

// Chunked and recurrent forms of the delta rule differ by rounding, and four layers follow on it. Half of what logits
// may differ from the reference by; 600 tokens come to 1.2e-5 with vectors and to 3e-5 with the long sums of scalar
// code.
constexpr float kTolerance = 1e-4f;

// Texts that begin alike in pairs, and the logits of each from a call of its own on a new timeline.
struct Texts {
  static constexpr size_t kCount = 8;
  static constexpr int64_t kTokens = 600;

  explicit Texts(const std::function<Logits(std::span<const int32_t>)>& from_scratch) {
    std::mt19937 random(11);
    for (size_t i = 0; i < kCount; ++i) {
      std::vector<int32_t> text(kTokens);
      for (int32_t& id : text) id = static_cast<int32_t>(random() % 50);
      if (i > 0) {
        const auto& other = ids[(i - 1) / 2];
        std::copy_n(other.begin(), random() % kTokens, text.begin());
      }
      ids.push_back(text);
      logits.push_back(from_scratch(text));
    }
  }
  // One that begins with the first `tokens` of text i.
  size_t like(size_t i, int64_t tokens, size_t drawn) const {
    std::vector<size_t> alike;
    for (size_t j = 0; j < kCount; ++j) {
      if (std::equal(ids[i].begin(), ids[i].begin() + tokens, ids[j].begin())) alike.push_back(j);
    }
    return alike[drawn % alike.size()];
  }
  std::vector<std::vector<int32_t>> ids;
  std::vector<Logits> logits;
};

// A timeline, and in which pieces it was computed. Going back drops what lies behind the steps that are known, and the
// next pass computes from there: how much that is tells where it began.
struct Walk {
  std::unique_ptr<State> state;
  size_t text = 0;
  std::vector<int64_t> ends;  // of the pieces, in tokens

  void computed(int64_t tokens) {
    constexpr int64_t kChunkTokens = 512;
    const int64_t end = state->length_tokens();
    int64_t at = end - tokens;
    while (!ends.empty() && ends.back() > at) ends.pop_back();
    EXPECT_EQ(ends.empty() ? 0 : ends.back(), at) << "not the end of a piece";
    while (at < end) ends.push_back(at = std::min(end, at + kChunkTokens));
  }
};

// 2,000 operations in each type. What is copied or read back goes on like its original, and any timeline gives what a
// new one does that computes the same pieces: bit for bit. In float32 it is also near one call over everything; in
// bfloat16 a rounding more or less may change the choice of an expert.
TEST_F(Qwen4Exp, RandomWalkOverTimelinesEqualsComputationFromScratch) {
  auto config = test::tiny_qwen4_config();
  config["max_position_embeddings"] = Texts::kTokens;
  write(config);
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto line = open(type).value();
    const Texts texts([&](std::span<const int32_t> ids) { return forward(*line, *line->new_state().value(), ids); });
    std::mt19937 random(12);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const auto text = [&](const Walk& t, int64_t from, int64_t to) {
      return std::span(texts.ids[t.text]).subspan(size_of(from), size_of(to - from));
    };
    // The next tokens of a timeline's text.
    const auto append = [&](Walk& t, int64_t count) {
      const int64_t length = t.state->length_tokens();
      count = std::min(count, Texts::kTokens - length);
      if (count == 0) return Logits();
      const uint64_t before = t.state->counters().tokens;
      Logits found = forward(*line, *t.state, text(t, length, length + count));
      t.computed(static_cast<int64_t>(t.state->counters().tokens - before));
      EXPECT_TRUE(std::equal(t.state->ids().begin(), t.state->ids().end(), texts.ids[t.text].begin()));
      if (type == DType::f32) {
        const auto expected = std::span(texts.logits[t.text]).subspan(size_of(length * 50), found.size());
        EXPECT_LE(largest_difference(found, expected), kTolerance) << count << " tokens behind " << length;
      }
      return found;
    };
    // The last logits of the same pieces on a new timeline.
    const auto from_scratch = [&](const Walk& t) {
      const auto state = line->new_state().value();
      Logits last(50);
      int64_t at = 0;
      for (const int64_t end : t.ends) {
        const bool wanted = end == t.ends.back();
        const auto done = line->forward(*state, text(t, at, end), wanted ? Rows{} : Rows::none(),
                                        wanted ? std::span<float>(last) : std::span<float>());
        EXPECT_TRUE(done.ok()) << done.error().message();
        at = end;
      }
      return last;
    };
    std::vector<Walk> timelines;
    timelines.push_back({line->new_state().value(), 0, {}});
    const test::ScratchFolder saved("qwen4_exp_state", test::memory_files());
    const auto file = saved.path() / "state";
    int replayed = 0;
    for (int step = 0; step < 2000 && !HasFailure(); ++step) {
      Walk& t = timelines[size_of(below(static_cast<int64_t>(timelines.size())))];
      const int64_t length = t.state->length_tokens();
      const int64_t next = 1 + below(3);
      const int64_t kind = below(100);
      if (kind < 16) {
        ASSERT_TRUE(t.state->rewind(below(4) == 0 ? below(length + 1) : std::max<int64_t>(0, length - below(9))).ok());
        t.text = texts.like(t.text, t.state->length_tokens(), random());
      } else if (kind < 30) {
        Walk fork{t.state->fork().value(), t.text, t.ends};
        EXPECT_EQ(append(fork, next), append(t, next)) << "a fork at " << length << " tokens";
        if (timelines.size() < 4) timelines.push_back(std::move(fork));
      } else if (kind < 44) {
        ASSERT_TRUE(t.state->save(file).ok());
        Walk loaded{line->load_state(file).value(), t.text, t.ends};
        EXPECT_EQ(append(loaded, next), append(t, next)) << "loaded at " << length << " tokens";
        t.state = std::move(loaded.state);
      } else if (kind < 45) {
        t.state->reset();
      } else {
        Logits found = append(t, below(8) == 0 ? 1 + below(200) : next);
        if (found.empty() || below(12) != 0) continue;
        found.erase(found.begin(), found.end() - 50);
        EXPECT_EQ(found, from_scratch(t)) << dtype_name(type) << " in " << t.ends.size() << " pieces, step " << step;
        replayed++;
      }
    }
    EXPECT_GT(replayed, 50);
  }
}

TEST_F(Qwen4Exp, GoingFarBackReachesASnapshotAndComputesTheRest) {
  auto config = test::tiny_qwen4_config();
  config["max_position_embeddings"] = 2000;
  write(config);
  const auto line = open(DType::f32).value();
  const auto ids = some_ids(1500);
  const auto state = line->new_state().value();
  const Logits expected = forward(*line, *state, ids);
  for (const int64_t length : {1499, 1024, 1023, 700, 100}) {
    ASSERT_TRUE(state->rewind(length).ok());
    const Logits found = forward(*line, *state, std::span(ids).subspan(static_cast<size_t>(length), 1));
    EXPECT_LE(largest_difference(found, std::span(expected).subspan(static_cast<size_t>(length) * 50, 50)), kTolerance)
        << length;
    EXPECT_EQ(state->length_tokens(), length + 1);
  }
}

TEST_F(Qwen4Exp, GoingBackToAMarkComputesNothingAgain) {
  auto config = test::tiny_qwen4_config();
  config["max_position_embeddings"] = 3000;
  write(config);
  const auto line = open(DType::f32).value();
  const auto ids = some_ids(2600);
  const Logits expected = forward(*line, *line->new_state().value(), ids);
  for (const int64_t mark : {100, 700, 1024}) {
    const auto marked = line->new_state().value();
    marked->mark(mark);
    forward(*line, *marked, ids);
    const auto fork = marked->fork().value();
    for (model::State* state : {fork.get(), marked.get()}) {
      ASSERT_TRUE(state->rewind(mark).ok());
      const uint64_t computed = state->counters().tokens;
      const Logits found = forward(*line, *state, std::span(ids).subspan(static_cast<size_t>(mark), 1));
      EXPECT_EQ(state->counters().tokens, computed + 1) << mark;
      EXPECT_LE(largest_difference(found, std::span(expected).subspan(static_cast<size_t>(mark) * 50, 50)), kTolerance)
          << mark;
    }
  }
}

TEST_F(Qwen4Exp, RowsThatAreNotWantedAreNotComputedInto) {
  const auto line = open(DType::bf16).value();
  const auto ids = some_ids(40);
  const Logits all = forward(*line, *line->new_state().value(), ids);
  Logits some(3 * 50);
  ASSERT_TRUE(line->forward(*line->new_state().value(), ids, {10, 3}, some).ok());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 500));
  ASSERT_TRUE(line->forward(*line->new_state().value(), ids, {}, std::span(some).first(50)).ok());
  EXPECT_TRUE(std::equal(some.begin(), some.begin() + 50, all.end() - 50));
  EXPECT_TRUE(line->forward(*line->new_state().value(), ids, Rows::none(), {}).ok());
}

TEST_F(Qwen4Exp, BitsDoNotDependOnTheNumberOfThreads) {
  const auto ids = some_ids(150);
  for (const DType type : {DType::f32, DType::bf16}) {
    Logits first;
    for (const int threads : {1, 2, 3}) {
      cpu::Pool pool(threads);
      const auto line =
          open_qwen4_exp(scratch_.path(), {.pool = &pool, .features = cpu::detect_features(), .compute = type}).value();
      const Logits found = forward(*line, *line->new_state().value(), ids);
      if (first.empty()) first = found;
      EXPECT_EQ(found, first) << threads;
    }
  }
}

// The class of chunks that the contract of the delta rule calls exact.
TEST_F(Qwen4Exp, PiecesOfMultiplesOf64TokensGiveTheBitsOfOneCall) {
  const auto ids = some_ids(200);
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto line = open(type).value();
    const Logits whole = forward(*line, *line->new_state().value(), ids);
    for (const auto& pieces : std::vector<std::vector<size_t>>{{64, 128, 8}, {128, 72}, {64, 64, 64, 8}}) {
      const auto state = line->new_state().value();
      Logits found;
      size_t at = 0;
      for (const size_t count : pieces) {
        const Logits piece = forward(*line, *state, std::span(ids).subspan(at, count));
        found.insert(found.end(), piece.begin(), piece.end());
        at += count;
      }
      EXPECT_EQ(found, whole) << dtype_name(type) << ", first piece " << pieces[0];
    }
  }
}

TEST_F(Qwen4Exp, UpToTheBudgetOfTheIndexerSparseAttentionIsDenseBitForBit) {
  auto config = test::tiny_qwen4_config();
  const auto ids = some_ids(40);
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto run = [&](int budget, size_t piece) {
      config["indexer_budget"] = budget;
      write(config);
      const auto line = open(type).value();
      const auto state = line->new_state().value();
      Logits logits;
      for (size_t at = 0; at < ids.size(); at += piece) {
        const Logits some = forward(*line, *state, std::span(ids).subspan(at, piece));
        logits.insert(logits.end(), some.begin(), some.end());
      }
      return logits;
    };
    constexpr int64_t kDenseTokens = 8 + 4 - 1;  // the budget and a tail
    for (const size_t piece : {size_t{1}, ids.size()}) {
      const Logits sparse = run(8, piece), dense = run(256, piece);
      const auto row = [](const Logits& logits, int64_t t) { return logits.begin() + t * 50; };
      EXPECT_TRUE(std::equal(row(sparse, 0), row(sparse, kDenseTokens), row(dense, 0))) << piece;
      EXPECT_FALSE(std::equal(row(sparse, kDenseTokens), sparse.end(), row(dense, kDenseTokens))) << piece;
    }
  }
}

TEST_F(Qwen4Exp, AnObserverSeesTheResultsOfEveryStep) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  std::vector<std::string> nodes;
  std::vector<float> last;
  ASSERT_TRUE(state
                  ->observe([&](const StepResult& result) -> Result<void> {
                    if (nodes.empty() || nodes.back() != result.node) nodes.emplace_back(result.node);
                    if (result.node == "layers.0.linear_attn.delta_rule" && result.part == "state") {
                      EXPECT_EQ(result.dtype, DType::f32);
                      EXPECT_EQ(result.rows * result.width, 4 * 4 * 6);
                    }
                    if (result.node == "lm_head") {
                      EXPECT_EQ(result.dtype, DType::bf16);
                      EXPECT_EQ(result.rows, 1);
                      for (int64_t i = 0; i < result.width; ++i) {
                        last.push_back(brain_to_float(static_cast<const uint16_t*>(result.data)[i]));
                      }
                    }
                    return {};
                  })
                  .ok());
  Logits row(50);
  ASSERT_TRUE(line->forward(*state, some_ids(30), {}, row).ok());
  EXPECT_EQ(last, row);
  const auto report = line->graph_report(state.get());
  ASSERT_EQ(nodes.size(), report.size());
  for (size_t i = 0; i < nodes.size(); ++i) EXPECT_EQ(nodes[i], report[i].node);

  // Not of forks, and not when it has ended.
  ASSERT_TRUE(line->forward(*state->fork().value(), some_ids(1), {}, row).ok());
  ASSERT_TRUE(state->observe({}).ok());
  ASSERT_TRUE(line->forward(*state, some_ids(1), {}, row).ok());
  EXPECT_EQ(nodes.size(), report.size());
}

TEST_F(Qwen4Exp, AnErrorOfTheObserverBreaksOffTheForward) {
  const auto line = open(DType::f32).value();
  const auto state = line->new_state().value(), other = line->new_state().value();
  forward(*line, *state, some_ids(20));
  forward(*line, *other, some_ids(20));
  ASSERT_TRUE(state
                  ->observe([](const StepResult& result) -> Result<void> {
                    if (result.node != "layers.2.mlp.route") return {};
                    return bad_request("observer", "has seen enough");
                  })
                  .ok());
  Logits row(50);
  const auto done = line->forward(*state, some_ids(3), {}, row);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().where, "observer");
  EXPECT_EQ(state->length_tokens(), 20);
  ASSERT_TRUE(state->observe({}).ok());
  EXPECT_LE(largest_difference(forward(*line, *state, some_ids(3)), forward(*line, *other, some_ids(3))), kTolerance);
}

TEST_F(Qwen4Exp, EveryStepIsInTheReport) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  forward(*line, *state, some_ids(9));
  const auto report = line->graph_report(state.get());
  const auto count = [&](std::string_view end) {
    return std::count_if(report.begin(), report.end(), [&](const NodeReport& row) { return row.node.ends_with(end); });
  };
  EXPECT_EQ(count("linear_attn.delta_rule"), 3);
  EXPECT_EQ(count("self_attn.attention"), 1);
  EXPECT_EQ(count("mlp.experts"), 4);
  EXPECT_EQ(count("ple.ngram_embedding"), 1);
  EXPECT_EQ(count("lm_head"), 1);
  EXPECT_EQ(report[0].node, "embed_tokens");
  EXPECT_EQ(report[0].bytes_copied, 9u * 2 * 16 * 2);
  EXPECT_TRUE(std::all_of(report.begin(), report.end(), [](const NodeReport& row) { return row.owner == "kernel"; }));
  const auto listed = line->graph_report(nullptr);
  ASSERT_EQ(listed.size(), report.size());
  // What a pass ran, which for one form depends on its tokens.
  Logits row(50);
  ASSERT_TRUE(line->forward(*state, some_ids(1), {}, row).ok());
  const auto single = line->graph_report(state.get());
  for (size_t i = 0; i < report.size(); ++i) {
    EXPECT_FALSE(report[i].variant.empty()) << report[i].node;
    EXPECT_EQ(report[i].variant, listed[i].variant) << report[i].node;
    EXPECT_EQ(report[i].reason, "called by the model") << report[i].node;
    if (report[i].op == "gated_delta_rule") {
      EXPECT_TRUE(report[i].variant.starts_with("delta_rule_chunked_")) << report[i].variant;
      EXPECT_TRUE(single[i].variant.starts_with("delta_rule_recurrent_")) << single[i].variant;
      EXPECT_EQ(listed[i].reason, "called by the model; a single token runs " + single[i].variant);
    } else {
      EXPECT_EQ(single[i].variant, report[i].variant) << report[i].node;
    }
  }
}

TEST_F(Qwen4Exp, CallsThatAreRefusedLeaveTheTimeline) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  forward(*line, *state, some_ids(5));
  Logits row(50);
  const auto code = [&](std::vector<int32_t> ids) {
    const auto done = line->forward(*state, ids, {}, row);
    EXPECT_FALSE(done.ok());
    return done.error().code;
  };
  EXPECT_EQ(code({}), Errc::bad_request);
  EXPECT_EQ(code({50}), Errc::bad_request);
  EXPECT_EQ(code({1, -1}), Errc::bad_request);
  EXPECT_EQ(code(std::vector<int32_t>(252, 1)), Errc::too_long);
  EXPECT_EQ(state->rewind(6).error().code, Errc::bad_request);
  EXPECT_EQ(state->length_tokens(), 5);
  const auto other = open(DType::bf16).value();
  EXPECT_EQ(other->forward(*state, some_ids(1), {}, row).error().code, Errc::bad_request);
}

TEST_F(Qwen4Exp, StateOfAnotherTypeIsNotLoaded) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  forward(*line, *state, some_ids(5));
  ASSERT_TRUE(state->save(scratch_.path() / "state").ok());
  const auto other = open(DType::f32).value();
  EXPECT_EQ(other->load_state(scratch_.path() / "state").error().code, Errc::bad_request);
}

TEST_F(Qwen4Exp, StateOfAnotherConfigurationIsNotLoaded) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  forward(*line, *state, some_ids(5));
  ASSERT_TRUE(state->save(scratch_.path() / "state").ok());
  EXPECT_TRUE(open(DType::bf16).value()->load_state(scratch_.path() / "state").ok());
  auto config = test::tiny_qwen4_config();
  config["norm_topk_prob"] = false;
  scratch_.file("config.json", config.dump());
  const auto loaded = open(DType::bf16).value()->load_state(scratch_.path() / "state");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, Errc::bad_request);
}

// A timeline is of the files as they were opened, whatever they become before it is saved.
TEST_F(Qwen4Exp, SavedTimelinesAreOfTheFilesThatWereOpened) {
  const auto line = open(DType::f32).value();
  const auto state = line->new_state().value();
  forward(*line, *state, some_ids(5));
  {
    // In place, as an editor of weights might; the mapped pages change with it.
    std::fstream weights(scratch_.path() / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    weights.seekp(-2, std::ios::end);
    weights.put(1);
  }
  ASSERT_TRUE(state->save(scratch_.path() / "state").ok());
  EXPECT_TRUE(line->load_state(scratch_.path() / "state").ok());
  EXPECT_FALSE(open(DType::f32).value()->load_state(scratch_.path() / "state").ok());
}

TEST_F(Qwen4Exp, SteadyStateTakesNoMoreMemory) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  ASSERT_TRUE(state->reserve(200).ok());
  forward(*line, *state, some_ids(64));
  forward(*line, *state, some_ids(1));
  const size_t before = state->bytes();
  for (int i = 0; i < 50; ++i) forward(*line, *state, some_ids(1));
  EXPECT_EQ(state->bytes(), before);
}

TEST_F(Qwen4Exp, TheLastRowIsKeptBySavingAndByForks) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  const Logits all = forward(*line, *state, some_ids(30));
  const std::span<const float> last = std::span(all).last(50);
  ASSERT_TRUE(state->save(scratch_.path() / "state").ok());
  const auto loaded = line->load_state(scratch_.path() / "state").value();
  const auto fork = state->fork().value();
  for (State* same : {state.get(), loaded.get(), fork.get()}) {
    const uint64_t computed = same->counters().tokens;
    Logits row(50);
    ASSERT_TRUE(line->last_row(*same, row).ok());
    EXPECT_TRUE(std::ranges::equal(row, last));
    EXPECT_EQ(same->counters().tokens, computed);
    // Not of a shorter timeline.
    ASSERT_TRUE(same->rewind(29).ok());
    EXPECT_TRUE(same->kept_row().empty());
    ASSERT_TRUE(line->last_row(*same, row).ok());
    EXPECT_LE(largest_difference(row, std::span(all).subspan(28 * 50, 50)), 0.05f);
  }
  // Rows before the last one are not kept in its place.
  Logits rows(100);
  ASSERT_TRUE(line->forward(*state, some_ids(3), {0, 2}, rows).ok());
  EXPECT_TRUE(state->kept_row().empty());
}

TEST_F(Qwen4Exp, TheLastRowIsRefusedOrBreaksOffWithTheTimelineAsItWas) {
  const auto line = open(DType::f32).value(), other = open(DType::f32).value();
  const auto state = line->new_state().value();
  Logits row(50);
  EXPECT_EQ(line->last_row(*state, row).error().code, Errc::bad_request);
  const Logits all = forward(*line, *state, some_ids(20));
  const auto unchanged = [&] { return std::ranges::equal(state->ids(), some_ids(20)); };
  EXPECT_EQ(other->last_row(*state, row).error().code, Errc::bad_request);
  EXPECT_TRUE(unchanged());
  EXPECT_EQ(line->last_row(*state, std::span(row).first(49)).error().code, Errc::bad_request);
  EXPECT_TRUE(unchanged());
  ASSERT_TRUE(state->observe([](const StepResult&) -> Result<void> { return bad_request("observer", "no"); }).ok());
  EXPECT_EQ(line->last_row(*state, row).error().where, "observer");
  EXPECT_TRUE(unchanged());
  ASSERT_TRUE(state->observe([](const StepResult&) -> Result<void> { throw std::bad_alloc(); }).ok());
  EXPECT_THROW((void)line->last_row(*state, row), std::bad_alloc);
  EXPECT_TRUE(unchanged());
  ASSERT_TRUE(state->observe({}).ok());
  ASSERT_TRUE(line->last_row(*state, row).ok());
  EXPECT_LE(largest_difference(row, std::span(all).last(50)), kTolerance);
}

TEST_F(Qwen4Exp, WhatIsReservedStaysReserved) {
  const auto line = open(DType::bf16).value();
  const auto state = line->new_state().value();
  ASSERT_TRUE(state->reserve(200).ok());
  const size_t reserved = state->bytes() - state->workspace_bytes();
  ASSERT_TRUE(state->reserve(10).ok());
  EXPECT_EQ(state->bytes() - state->workspace_bytes(), reserved);
  forward(*line, *state, some_ids(3));
  EXPECT_EQ(state->bytes() - state->workspace_bytes(), reserved);
}

TEST_F(Qwen4Exp, Float8WeightsAreNotReadWithoutTheirScales) {
  auto config = test::tiny_qwen4_config();
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  scratch_.file("config.json", config.dump());
  std::filesystem::remove(scratch_.path() / "model.safetensors");
  const auto line = open(DType::bf16);
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::unsupported);
  EXPECT_NE(line.error().where.find("quantization_config"), std::string::npos) << line.error().message();
}

TEST_F(Qwen4Exp, WidthsThatTheRoomsDoNotHave) {
  const auto refused = [&](const char* field, const nlohmann::json& value) {
    auto config = test::tiny_qwen4_config();
    config[field] = value;
    write(config);
    const auto line = open(DType::bf16);
    EXPECT_FALSE(line.ok()) << field;
    return line.ok() ? Error() : line.error();
  };
  EXPECT_EQ(refused("head_dim", 12).code, Errc::unsupported);
  EXPECT_NE(refused("head_dim", 12).where.find("head_dim"), std::string::npos);
  EXPECT_EQ(refused("indexer_head_dim", 12).code, Errc::unsupported);
}

TEST(Qwen4ExpSteps, AreListedWithoutWeights) {
  const auto config = Qwen4ExpConfig::parse(test::tiny_qwen4_config().dump(), "c").value();
  const auto steps = list_qwen4_exp_steps(config, DType::bf16, {});
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front().name, "embed_tokens");
  EXPECT_EQ(steps.back().name, "lm_head");
  EXPECT_TRUE(std::any_of(steps.begin(), steps.end(), [](const Qwen4ExpStep& s) {
    return s.name == "layers.3.self_attn.indexer.index_qk_proj" && s.room == "linear";
  }));
}

// Of the calls whose names end so: the room, and its kernel with T for the type that is computed in, V for the widest
// vectors there are and N for vectors of at most 256 bits. Calls that are not here are projections.
struct ExpectedKernel {
  std::string_view end, room, kernel;
};
constexpr ExpectedKernel kExpectedKernels[] = {
    {"embed_tokens", "gather", "gather_copy"},
    {".hc_norm", "centred_rms_norm", "centred_rms_norm_T_N"},
    {".q_norm", "centred_rms_norm", "centred_rms_norm_T_N"},
    {".k_norm", "centred_rms_norm", "centred_rms_norm_T_N"},
    {".norm_key", "centred_rms_norm", "centred_rms_norm_T_N"},
    {".norm_query", "centred_rms_norm", "centred_rms_norm_T_N"},
    {".norm_conv", "centred_rms_norm", "centred_rms_norm_T_N"},
    {"ple.gate", "ple_gate", "ple_gate_reference"},
    {"ple.add", "ple_gate", "ple_add_reference"},
    {"ple.ngram_ids", "ngram_ids", "ngram_ids_portable"},
    {"ple.ngram_embedding", "ngram_embed", "ngram_embed_copy"},
    {"_hyper_connection.gate", "hyper_mix", "hyper_gate_T_N"},
    {"_mixer.gate", "hyper_mix", "hyper_gate_T_N"},
    {".mix", "hyper_mix", "hyper_mix_T_N"},
    {".scatter", "hyper_mix", "hyper_scatter_T_N"},
    {".conv1d", "short_conv", "short_conv_reference"},
    {".delta_rule", "gated_delta_rule", "delta_rule_chunked_V"},
    {"linear_attn.norm", "gated_norm", "gated_norm_reference"},
    {"_rope", "partial_rope", "partial_rope_reference"},
    {".indexer", "block_index", "block_score_T_V"},
    {".attention", "sparse_attention", "sparse_tile_T_V"},
    {"mlp.route", "moe_route", "moe_route_portable"},
    {"mlp.experts", "moe_matmul", "linear_T_V"},
};

TEST(Qwen4ExpSteps, NameTheKernelThatTheirRoomSelects) {
  const auto config = Qwen4ExpConfig::parse(test::tiny_qwen4_config().dump(), "c").value();
  struct Machine {
    cpu::Features features;
    std::string narrow, wide;
  };
  std::vector<Machine> machines{{{}, "reference", "reference"}};
#if defined(__x86_64__)
  machines.push_back({{.avx2 = true}, "avx2", "avx2"});
  machines.push_back({{.avx2 = true, .avx512vnni = true}, "avx2", "avx512vnni"});
#endif
  for (const auto& [features, narrow, wide] : machines) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const auto expand = [&](std::string_view kernel) {
        std::string text;
        for (const char c : kernel) {
          text += c == 'T'   ? type == DType::f32 ? "f32" : "bf16"
                  : c == 'N' ? narrow
                  : c == 'V' ? wide
                             : std::string(1, c);
        }
        return text;
      };
      std::vector<bool> met(std::size(kExpectedKernels));
      for (const Qwen4ExpStep& step : list_qwen4_exp_steps(config, type, features)) {
        const auto* expected = std::find_if(std::begin(kExpectedKernels), std::end(kExpectedKernels),
                                            [&](const ExpectedKernel& e) { return step.name.ends_with(e.end); });
        if (expected == std::end(kExpectedKernels)) {
          EXPECT_EQ(step.room, "linear") << step.name;
          EXPECT_EQ(step.variant, "linear_bf16_" + wide) << step.name;
          EXPECT_EQ(step.token_variant, step.variant) << step.name;
          continue;
        }
        met[static_cast<size_t>(expected - kExpectedKernels)] = true;
        EXPECT_EQ(step.room, expected->room) << step.name;
        EXPECT_EQ(step.variant, expand(expected->kernel)) << step.name;
        EXPECT_EQ(step.token_variant, step.room == "gated_delta_rule" ? "delta_rule_recurrent_" + wide : step.variant)
            << step.name;
      }
      EXPECT_EQ(std::count(met.begin(), met.end(), false), 0) << wide;
    }
  }
}

}  // namespace
}  // namespace quern::model
