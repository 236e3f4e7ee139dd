// SPDX-License-Identifier: Apache-2.0
// The Qwen3 line on a tiny graph: timelines, wanted rows, refusals. What the numbers should be is the oracle's matter.
#include "model/qwen3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numeric>
#include <thread>

#include "cpu/memory.h"
#include "model/kv_cache.h"
#include "tests/support/allocation_count.h"
#include "tests/support/tiny_qwen3.h"

namespace quern::model {
namespace {

using test::ScratchFolder;
using test::TinyQwen3;

std::vector<int32_t> ids_of(int64_t count, int32_t first = 5) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); i++) ids[i] = static_cast<int32_t>((first + 37 * i) % 320);
  return ids;
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  float worst = 0;
  for (size_t i = 0; i < a.size(); i++) {
    const float d = std::fabs(a[i] - b[i]);
    worst = d <= worst ? worst : d;  // a NaN becomes the worst
  }
  return worst;
}

class Qwen3Line : public testing::Test {
 protected:
  Qwen3Line() : scratch_("qwen3_test") {}

  Result<std::unique_ptr<Line>> open(const TinyQwen3& model, DType kv = DType::f32) {
    model.write(scratch_.path());
    return open_line(scratch_.path(), {.pool = &pool_, .features = cpu::detect_features(), .kv = kv});
  }
  void SetUp() override {
    auto line = open({});
    ASSERT_TRUE(line.ok()) << line.error().message();
    line_ = std::move(line).value();
  }
  std::unique_ptr<State> state() { return line_->new_state().value(); }
  // Logits of the wanted rows, [count, vocab].
  std::vector<float> forward(State& state, std::span<const int32_t> ids, Rows wanted = {}) {
    std::vector<float> logits(static_cast<size_t>(wanted.count * line_->info().vocab));
    const auto done = line_->forward(state, ids, wanted, logits);
    EXPECT_TRUE(done.ok()) << done.error().message();
    return logits;
  }
  Error refusal(State& state, std::span<const int32_t> ids, Rows wanted, size_t floats) {
    std::vector<float> logits(floats);
    const int64_t before = state.length_tokens();
    auto done = line_->forward(state, ids, wanted, logits);
    EXPECT_FALSE(done.ok());
    EXPECT_EQ(state.length_tokens(), before);
    return done.ok() ? Error{} : done.error();
  }

  ScratchFolder scratch_;
  cpu::Pool pool_{2};
  std::unique_ptr<Line> line_;
};

TEST_F(Qwen3Line, InfoIsThatOfTheConfiguration) {
  const ModelInfo& info = line_->info();
  EXPECT_EQ(info.model_type, "qwen3");
  EXPECT_EQ(info.layers, 2);
  EXPECT_EQ(info.kv_heads, 2);
  EXPECT_EQ(info.context_tokens, 1024);
  EXPECT_EQ(info.vocab, 320);
  EXPECT_EQ(info.eos_ids, (std::vector<int32_t>{2, 3}));
}

TEST_F(Qwen3Line, OnePieceChunksAndSingleTokensGiveTheSameBits) {
  const auto ids = ids_of(23);
  auto whole = state(), chunks = state(), single = state();
  const auto expected = forward(*whole, ids);
  std::vector<float> chunked, last;
  for (size_t at = 0; at < ids.size(); at += 7) {
    chunked = forward(*chunks, std::span(ids).subspan(at, std::min<size_t>(7, ids.size() - at)));
  }
  for (const int32_t id : ids) last = forward(*single, std::array{id});
  EXPECT_EQ(single->length_tokens(), 23);
  EXPECT_EQ(chunked, expected);
  EXPECT_EQ(last, expected);
  EXPECT_GT(largest_difference(expected, std::vector<float>(expected.size())), 1.0f);
}

TEST_F(Qwen3Line, WantedRowsAreThoseOfAllRows) {
  const auto ids = ids_of(9);
  auto a = state(), b = state(), c = state();
  const auto all = forward(*a, ids, {0, 9});
  const auto some = forward(*b, ids, {2, 3});
  const auto none = forward(*c, ids, Rows::none());
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(c->length_tokens(), 9);
  EXPECT_LE(largest_difference(some, std::span(all).subspan(2 * 320, 3 * 320)), 0);
  EXPECT_LE(largest_difference(forward(*a, std::array{11}), forward(*c, std::array{11})), 0);
}

TEST_F(Qwen3Line, RewoundTimelineGivesTheSameBits) {
  const auto ids = ids_of(20);
  auto s = state();
  forward(*s, ids);
  const auto expected = forward(*s, std::array{4});
  forward(*s, ids_of(9, 100));
  ASSERT_TRUE(s->rewind(20).ok());
  EXPECT_EQ(forward(*s, std::array{4}), expected);
  EXPECT_EQ(s->rewind(22).error().code, Errc::bad_request);
  EXPECT_EQ(s->rewind(-1).error().code, Errc::bad_request);
}

TEST_F(Qwen3Line, ResetTimelineStartsAtPositionZero) {
  auto s = state(), fresh = state();
  forward(*s, ids_of(40, 9));
  s->reset();
  EXPECT_EQ(s->length_tokens(), 0);
  EXPECT_EQ(forward(*s, ids_of(6)), forward(*fresh, ids_of(6)));
}

TEST_F(Qwen3Line, ForkIsIndependentOfItsOrigin) {
  auto s = state();
  forward(*s, ids_of(10));
  auto copy = s->fork().value();
  EXPECT_EQ(copy->length_tokens(), 10);
  const auto left = forward(*s, std::array{17});
  forward(*s, ids_of(5, 200));
  EXPECT_EQ(forward(*copy, std::array{17}), left);
  EXPECT_EQ(copy->length_tokens(), 11);
  EXPECT_EQ(state()->fork().value()->length_tokens(), 0);
}

TEST_F(Qwen3Line, GrowthMovesNothing) {
  auto grown = state(), roomy = state();
  ASSERT_TRUE(roomy->reserve(1000).ok());
  EXPECT_GT(roomy->bytes(), grown->bytes());
  const auto ids = ids_of(255);
  std::vector<float> a = forward(*grown, ids), b = forward(*roomy, ids);
  for (int32_t i = 0; i < 6; i++) {
    a = forward(*grown, std::array{i});
    b = forward(*roomy, std::array{i});
    EXPECT_EQ(a, b);
  }
  for (const auto& s : {&grown, &roomy}) {
    EXPECT_EQ((*s)->counters().bytes_copied, 0u);
    EXPECT_EQ((*s)->counters().cache_bytes_copied, 0u);
    EXPECT_EQ((*s)->counters().cache_bytes_appended, 261 * line_->memory().kv_token_bytes);
  }
  EXPECT_EQ(line_->memory().kv_token_bytes, 2u * 2 * 2 * 16 * 4);
  EXPECT_EQ(grown->reserve(1025).error().code, Errc::too_long);
}

// What the types cost in accuracy is held by the attention room and by the perplexity gate; here rows of unit size may
// move logits of unit size by some of their steps.
TEST_F(Qwen3Line, EveryKindOfCacheRewindsAndForks) {
  const auto ids = ids_of(40);
  auto exact = state();
  const auto expected = forward(*exact, ids);
  const struct {
    DType kv;
    float close;
    size_t row_bytes;
  } kinds[] = {{DType::f16, 0.02f, 32}, {DType::bf16, 0.1f, 32}, {DType::i8, 0.1f, 20}};
  for (const auto& kind : kinds) {
    line_ = open({}, kind.kv).value();
    EXPECT_EQ(line_->memory().kv_token_bytes, 2 * 2 * 2 * kind.row_bytes);
    auto s = state();
    const auto whole = forward(*s, ids);
    EXPECT_LE(largest_difference(whole, expected), kind.close);
    EXPECT_GT(largest_difference(whole, expected), 0);
    EXPECT_EQ(s->counters().cache_bytes_appended, 40 * line_->memory().kv_token_bytes);
    const auto next = forward(*s, std::array{4});
    forward(*s, ids_of(9, 100));
    ASSERT_TRUE(s->rewind(40).ok());
    auto copy = s->fork().value();
    EXPECT_EQ(forward(*s, std::array{4}), next);
    s->reset();
    EXPECT_EQ(forward(*copy, std::array{4}), next);
    EXPECT_EQ(forward(*s, ids), whole);
  }
}

TEST_F(Qwen3Line, SavedTimelineGoesOnWithTheSameBits) {
  for (const DType kv : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    line_ = open({}, kv).value();
    auto s = state();
    forward(*s, ids_of(30));
    const auto file = scratch_.path() / "kept.state";
    ASSERT_TRUE(s->save(file).ok());
    const auto expected = forward(*s, std::array{4});
    auto loaded = line_->load_state(file).value();
    EXPECT_EQ(loaded->length_tokens(), 30);
    EXPECT_TRUE(std::ranges::equal(loaded->ids(), ids_of(30)));
    EXPECT_EQ(forward(*loaded, std::array{4}), expected);
    EXPECT_EQ(loaded->length_tokens(), 31);
    // Saved again without that token, the file has the same bytes.
    ASSERT_TRUE(loaded->rewind(30).ok());
    ASSERT_TRUE(loaded->save(scratch_.path() / "again.state").ok());
    EXPECT_EQ(content_of(scratch_.path() / "again.state"), content_of(file));
  }
  auto empty = state();
  ASSERT_TRUE(empty->save(scratch_.path() / "empty.state").ok());
  EXPECT_EQ(line_->load_state(scratch_.path() / "empty.state").value()->length_tokens(), 0);
}

TEST_F(Qwen3Line, TimelineOfAnotherModelOrAnotherCacheIsRefusedByName) {
  auto s = state();
  forward(*s, ids_of(3));
  const auto file = scratch_.path() / "kept.state";
  ASSERT_TRUE(s->save(file).ok());
  const auto refused = [&](const Result<std::unique_ptr<Line>>& line, const std::string& part) {
    const auto loaded = (*line)->load_state(file);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, Errc::bad_request);
    EXPECT_NE(loaded.error().message().find(part), std::string::npos) << loaded.error().message();
  };
  refused(open({}, DType::f16), "fp16");
  TinyQwen3 other;
  other.intermediate = 64;
  refused(open(other), "model");
}

// ---- what one timeline may do, in any order ----

// A timeline beside the calls that led to it: computing those calls from scratch must give the same bits.
struct Traced {
  std::unique_ptr<State> state;
  std::vector<std::vector<int32_t>> calls;

  int64_t tokens() const {
    int64_t sum = 0;
    for (const auto& call : calls) sum += static_cast<int64_t>(call.size());
    return sum;
  }
};

TEST_F(Qwen3Line, AnyOrderOfAppendRewindForkSaveAndLoadEqualsComputingFromScratch) {
  uint64_t random = 11;
  const auto below = [&](uint32_t limit) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(random >> 33) % limit;
  };
  const auto file = scratch_.path() / "kept.state";
  for (const DType kv : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    line_ = open({}, kv).value();
    std::vector<Traced> timelines(1);
    timelines.reserve(4);
    timelines[0].state = state();
    for (int step = 0; step < 150; step++) {
      const size_t at = below(static_cast<uint32_t>(timelines.size()));
      Traced& t = timelines[at];
      switch (below(6)) {
        case 0: {  // back to the end of an earlier call
          t.calls.resize(below(static_cast<uint32_t>(t.calls.size()) + 1));
          ASSERT_TRUE(t.state->rewind(t.tokens()).ok());
          break;
        }
        case 1: {
          Traced copy{t.state->fork().value(), t.calls};
          if (timelines.size() < 4) {
            timelines.push_back(std::move(copy));
          } else {
            t = std::move(copy);
          }
          break;
        }
        case 2: {
          ASSERT_TRUE(t.state->save(file).ok());
          t.state = line_->load_state(file).value();
          break;
        }
        default: {
          if (t.tokens() > 200) {
            t.calls.clear();
            t.state->reset();
          }
          std::vector<int32_t> ids(std::array{1, 1, 2, 17, 70}[below(5)]);
          for (int32_t& id : ids) id = static_cast<int32_t>(below(320));
          const auto got = forward(*t.state, ids);
          t.calls.push_back(ids);
          auto scratch = state();
          std::vector<float> expected;
          for (const auto& call : t.calls) expected = forward(*scratch, call);
          ASSERT_EQ(got, expected) << kv_type_name(kv) << " step " << step;
        }
      }
      ASSERT_EQ(t.state->length_tokens(), t.tokens());
    }
  }
}

TEST_F(Qwen3Line, InterleavedTimelinesDoNotSeeEachOther) {
  // Each timeline is a prompt of one marker over and over; what it gives must be what it gives alone.
  std::vector<std::unique_ptr<State>> together;
  for (int32_t marker = 0; marker < 3; marker++) together.push_back(state());
  for (int round = 0; round < 8; round++) {
    for (int32_t marker = 0; marker < 3; marker++) {
      const std::vector<int32_t> ids(5, 100 * marker + 7);
      const auto got = forward(*together[static_cast<size_t>(marker)], ids);
      auto alone = state();
      std::vector<float> expected;
      for (int i = 0; i <= round; i++) expected = forward(*alone, ids);
      ASSERT_EQ(got, expected) << "marker " << marker << " round " << round;
    }
  }
}

TEST_F(Qwen3Line, BitsDoNotDependOnTheThreads) {
  const auto ids = ids_of(90);
  for (const DType kv : {DType::f32, DType::i8}) {
    line_ = open({}, kv).value();
    auto s = state();
    auto expected = forward(*s, ids, {0, 90});
    const auto next = forward(*s, std::array{3});
    for (const int threads : {1, 3, 4}) {
      cpu::Pool pool(threads);
      const auto line =
          open_line(scratch_.path(), {.pool = &pool, .features = cpu::detect_features(), .kv = kv}).value();
      auto other = line->new_state().value();
      std::vector<float> logits(90 * 320), row(320);
      ASSERT_TRUE(line->forward(*other, ids, {0, 90}, logits).ok());
      ASSERT_TRUE(line->forward(*other, std::array{3}, {}, row).ok());
      EXPECT_EQ(logits, expected) << threads;
      EXPECT_EQ(row, next) << threads;
    }
  }
}

TEST_F(Qwen3Line, LongTimelinesWork) {
  TinyQwen3 model;
  model.context = 8192;
  model.layers = 1;
  model.heads = 2;
  model.kv_heads = 1;
  for (const DType kv : {DType::f16, DType::i8}) {
    auto line = open(model, kv);
    ASSERT_TRUE(line.ok()) << line.error().message();
    line_ = std::move(line).value();
    auto s = state();
    for (int64_t at = 0; at < 8000; at += 1000) forward(*s, ids_of(1000, static_cast<int32_t>(at)), Rows::none());
    const auto row = forward(*s, std::array{3});
    EXPECT_TRUE(std::ranges::all_of(row, [](float x) { return std::isfinite(x); }));
    // Workspace is that of a chunk, not of the past.
    EXPECT_LT(s->workspace_bytes(), size_t{16} << 20);
    EXPECT_EQ(s->bytes() - s->workspace_bytes(), 8064 * line_->memory().kv_token_bytes);
    ASSERT_TRUE(s->rewind(8000).ok());
    EXPECT_EQ(forward(*s, std::array{3}), row);
  }
}

TEST_F(Qwen3Line, DecodingAllocatesNothing) {
  const auto buffers = [] {
    const auto usage = cpu::memory_usage();
    return std::accumulate(usage.allocations.begin(), usage.allocations.end(), uint64_t{0});
  };
  // Past the steps of 64 rows in which a past grows and the splits of 128 keys in which attention goes through it.
  constexpr int32_t kTokens = 300;
  for (const DType kv : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    auto line = open({}, kv);
    ASSERT_TRUE(line.ok()) << line.error().message();
    line_ = std::move(line).value();
    auto s = state();
    std::vector<float> logits(320);
    for (int32_t i = 0; i < 3; i++) ASSERT_TRUE(line_->forward(*s, std::array{i}, {}, logits).ok());
    const uint64_t buffers_before = buffers();
    const int32_t* const ids_before = s->ids().data();
    const int64_t allocations = support::allocations_in([&] {
      for (int32_t i = 0; i < kTokens; i++) {
        if (!line_->forward(*s, std::array{i}, {}, logits).ok()) std::abort();
      }
    });
    EXPECT_EQ(allocations, 0) << dtype_name(kv);
    EXPECT_EQ(buffers(), buffers_before) << dtype_name(kv);
    EXPECT_EQ(s->ids().data(), ids_before) << "the ids moved";
    EXPECT_EQ(s->counters().bytes_copied, 0u) << dtype_name(kv);
  }
}

TEST_F(Qwen3Line, TimelinesOnTwoThreadsDoNotMeet) {
  auto expect_a = state(), expect_b = state();
  const auto a = forward(*expect_a, ids_of(30, 1));
  const auto b = forward(*expect_b, ids_of(30, 2));
  std::vector<float> got_a, got_b;
  std::thread other([&] {
    for (int i = 0; i < 10; i++) {
      auto s = state();
      got_b = forward(*s, ids_of(30, 2));
    }
  });
  for (int i = 0; i < 10; i++) {
    auto s = state();
    got_a = forward(*s, ids_of(30, 1));
  }
  other.join();
  EXPECT_EQ(got_a, a);
  EXPECT_EQ(got_b, b);
}

TEST_F(Qwen3Line, ArgumentsAreRefusedBeforeAnythingIsComputed) {
  auto s = state();
  forward(*s, ids_of(3));
  const uint64_t forwards = s->counters().forwards;
  EXPECT_EQ(refusal(*s, {}, Rows::none(), 0).code, Errc::bad_request);
  const Error high = refusal(*s, std::array{1, 320}, {}, 320);
  EXPECT_EQ(high.code, Errc::bad_request);
  EXPECT_NE(high.message().find("320"), std::string::npos) << high.message();
  EXPECT_EQ(refusal(*s, std::array{-1}, {}, 320).code, Errc::bad_request);
  EXPECT_EQ(refusal(*s, std::array{1, 2}, {1, 2}, 640).code, Errc::bad_request);
  EXPECT_EQ(refusal(*s, std::array{1, 2}, {0, 3}, 960).code, Errc::bad_request);
  EXPECT_EQ(refusal(*s, std::array{1}, {}, 319).code, Errc::bad_request);
  const Error too_long = refusal(*s, ids_of(1022), {}, 320);
  EXPECT_EQ(too_long.code, Errc::too_long);
  EXPECT_NE(too_long.message().find("1025"), std::string::npos) << too_long.message();
  EXPECT_NE(too_long.message().find("1024"), std::string::npos) << too_long.message();
  EXPECT_EQ(s->counters().forwards, forwards);
}

TEST_F(Qwen3Line, EveryNodeHasOneOfFourOwners) {
  auto s = state();
  forward(*s, ids_of(3));
  const auto report = line_->graph_report(s.get());
  // Embedding, mask (6), first norm; per layer 7 products, attention, 2 norms, Sigmoid and 2 Mul; the head.
  EXPECT_EQ(report.size(), 1u + 6 + 1 + 2 * 13 + 1);
  for (const NodeReport& row : report) {
    EXPECT_TRUE(row.owner == "kernel" || row.owner == "prepared" || row.owner == "view" || row.owner == "fused")
        << row.owner;
    EXPECT_EQ(row.owner == "kernel", !row.variant.empty()) << row.node;
  }
}

struct Disagreement {
  const char* field;
  int configured;
  int in_graph;
};

class Qwen3Config : public Qwen3Line, public testing::WithParamInterface<Disagreement> {};

TEST_P(Qwen3Config, DisagreementWithTheGraphNamesBothNumbers) {
  TinyQwen3 model;
  model.edit_config = [](nlohmann::json& json) {
    std::string pointer = std::string("/") + GetParam().field;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    json[nlohmann::json::json_pointer(pointer)] = GetParam().configured;
  };
  const auto line = open(model);
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::bad_model);
  const std::string text = line.error().message();
  EXPECT_NE(text.find(GetParam().field), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(GetParam().configured)), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(GetParam().in_graph)), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Fields, Qwen3Config,
                         testing::Values(Disagreement{"model.decoder.num_hidden_layers", 3, 2},
                                         Disagreement{"model.decoder.num_hidden_layers", 1, 2},
                                         Disagreement{"model.decoder.num_key_value_heads", 4, 2},
                                         Disagreement{"model.decoder.num_attention_heads", 8, 4},
                                         Disagreement{"model.decoder.head_size", 32, 16},
                                         Disagreement{"model.decoder.hidden_size", 64, 32},
                                         Disagreement{"model.vocab_size", 400, 320},
                                         Disagreement{"model.context_length", 2048, 1024},
                                         Disagreement{"model.context_length", 512, 1024}));

TEST_F(Qwen3Line, PastThatTheGraphLacksIsRefusedByName) {
  TinyQwen3 model;
  model.edit_config = [](nlohmann::json& json) { json["model"]["decoder"]["inputs"]["past_key_names"] = "cache.%d.k"; };
  const auto line = open(model);
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::bad_model);
  EXPECT_NE(line.error().message().find("cache.0.k"), std::string::npos) << line.error().message();
}

TEST_F(Qwen3Line, InputsThatNobodyFeedsAreUnsupported) {
  TinyQwen3 model;
  model.extend_graph = [](support::OnnxWriter& g) { g.input("position_ids", DType::i64, {"batch", "sequence"}); };
  const auto line = open(model);
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::unsupported);
  EXPECT_NE(line.error().message().find("position_ids"), std::string::npos) << line.error().message();
}

// The past is updated in place, which a second reader would see.
TEST_F(Qwen3Line, PastWithASecondReaderIsUnsupported) {
  TinyQwen3 model;
  model.extend_graph = [](support::OnnxWriter& g) {
    g.node("Sigmoid", {"past_key_values.1.key"}, {"peek"}).output("peek", DType::f32, {"b", "n", "p", "d"});
  };
  const auto line = open(model);
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::unsupported);
  EXPECT_NE(line.error().message().find("past_key_values.1.key"), std::string::npos) << line.error().message();
}

TEST_F(Qwen3Line, StateOfAnotherLineIsABadRequest) {
  const auto other = open({});
  const auto line = open({});
  ASSERT_TRUE(other.ok() && line.ok());
  const auto state = (*other)->new_state().value();
  std::vector<float> logits(static_cast<size_t>((*line)->info().vocab));
  const auto done = (*line)->forward(*state, std::array<int32_t, 1>{1}, {}, logits);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Errc::bad_request);
  EXPECT_EQ(state->length_tokens(), 0);
}

TEST_F(Qwen3Line, FolderInPlaceOfTheGraphFileIsABadModel) {
  TinyQwen3().write(scratch_.path());
  std::filesystem::remove(scratch_.path() / "model.onnx");
  std::filesystem::create_directory(scratch_.path() / "model.onnx");
  const auto line = open_line(scratch_.path(), {.pool = &pool_, .features = cpu::detect_features()});
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::bad_model);
  EXPECT_NE(line.error().message().find("not a regular file"), std::string::npos) << line.error().message();
}

TEST_F(Qwen3Line, GraphFileThatIsNotThereIsABadModel) {
  TinyQwen3().write(scratch_.path());
  std::filesystem::remove(scratch_.path() / "model.onnx");
  const auto line = open_line(scratch_.path(), {.pool = &pool_, .features = cpu::detect_features()});
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::bad_model);
  EXPECT_NE(line.error().message().find("model.onnx"), std::string::npos) << line.error().message();
}

}  // namespace
}  // namespace quern::model
