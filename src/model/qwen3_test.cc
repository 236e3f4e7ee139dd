// SPDX-License-Identifier: Apache-2.0
// The Qwen3 line on a tiny graph: timelines, wanted rows, refusals. What the numbers should be is the oracle's matter.
#include "model/qwen3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <thread>

#include "cpu/memory.h"
#include "tests/support/allocation_count.h"
#include "tests/support/tiny_qwen3.h"

namespace quern::model {
namespace {

using test::ScratchFolder;
using test::TinyQwen3;

// Kernels for one row and for many sum in different orders: 32 to 64 products of unit size, two layers.
constexpr float kClose = 1e-4f;

std::vector<int32_t> ids_of(int64_t count, int32_t first = 5) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); i++) ids[i] = static_cast<int32_t>((first + 37 * i) % 320);
  return ids;
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

  Result<std::unique_ptr<Line>> open(const TinyQwen3& model) {
    model.write(scratch_.path());
    return open_line(scratch_.path(), {&pool_, cpu::detect_features(), false});
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

TEST_F(Qwen3Line, OnePieceChunksAndSingleTokensAgree) {
  const auto ids = ids_of(23);
  auto whole = state(), chunks = state(), single = state();
  const auto expected = forward(*whole, ids);
  std::vector<float> chunked, last;
  for (size_t at = 0; at < ids.size(); at += 7) {
    chunked = forward(*chunks, std::span(ids).subspan(at, std::min<size_t>(7, ids.size() - at)));
  }
  for (const int32_t id : ids) last = forward(*single, std::array{id});
  EXPECT_EQ(single->length_tokens(), 23);
  EXPECT_LE(largest_difference(expected, chunked), kClose);
  EXPECT_LE(largest_difference(expected, last), kClose);
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
  EXPECT_LE(largest_difference(some, std::span(all).subspan(2 * 320, 3 * 320)), kClose);
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

TEST_F(Qwen3Line, GrowthMovesThePastAndChangesNothing) {
  auto grown = state(), roomy = state();
  ASSERT_TRUE(roomy->reserve(1000).ok());
  const auto ids = ids_of(255);
  std::vector<float> a = forward(*grown, ids), b = forward(*roomy, ids);
  for (int32_t i = 0; i < 6; i++) {
    a = forward(*grown, std::array{i});
    b = forward(*roomy, std::array{i});
    EXPECT_EQ(a, b);
  }
  EXPECT_EQ(roomy->counters().cache_bytes_copied, 0u);
  // 256 rows of two layers' keys and values moved once.
  EXPECT_EQ(grown->counters().cache_bytes_copied, 256u * 2 * 2 * 2 * 16 * 4);
  EXPECT_EQ(grown->counters().cache_bytes_appended, 261u * 2 * 2 * 2 * 16 * 4);
  EXPECT_EQ(grown->reserve(1025).error().code, Errc::too_long);
}

TEST_F(Qwen3Line, DecodingAllocatesNothing) {
  auto s = state();
  std::vector<float> logits(320);
  ASSERT_TRUE(s->reserve(64).ok());
  for (int32_t i = 0; i < 3; i++) ASSERT_TRUE(line_->forward(*s, std::array{i}, {}, logits).ok());
  const auto buffers = [] {
    const auto usage = cpu::memory_usage();
    return std::accumulate(usage.allocations.begin(), usage.allocations.end(), uint64_t{0});
  };
  const uint64_t buffers_before = buffers();
  const int64_t allocations = support::allocations_in([&] {
    for (int32_t i = 0; i < 20; i++) {
      if (!line_->forward(*s, std::array{i}, {}, logits).ok()) std::abort();
    }
  });
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(buffers(), buffers_before);
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
  const auto line = open_line(scratch_.path(), {&pool_, cpu::detect_features(), false});
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::bad_model);
  EXPECT_NE(line.error().message().find("not a regular file"), std::string::npos) << line.error().message();
}

TEST_F(Qwen3Line, GraphFileThatIsNotThereIsABadModel) {
  TinyQwen3().write(scratch_.path());
  std::filesystem::remove(scratch_.path() / "model.onnx");
  const auto line = open_line(scratch_.path(), {&pool_, cpu::detect_features(), false});
  ASSERT_FALSE(line.ok());
  EXPECT_EQ(line.error().code, Errc::bad_model);
  EXPECT_NE(line.error().message().find("model.onnx"), std::string::npos) << line.error().message();
}

}  // namespace
}  // namespace quern::model
