// SPDX-License-Identifier: Apache-2.0
// A Runner that keeps what earlier runs settled must give what a fresh one gives, whatever changes between runs.
#include "graph/runner.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "ops/kv_view.h"
#include "tests/support/tiny_qwen3.h"

namespace quern::graph {
namespace {

// One call of the tiny graph, with its own memory.
struct Call {
  std::vector<std::vector<std::byte>> memory;
  std::vector<ops::Tensor> inputs;
  std::vector<Output> outputs;
  std::optional<RowRange> rows;
};

class ReusedRunner : public testing::Test {
 protected:
  ReusedRunner() {
    auto file = formats::OnnxFile::from_bytes(test::TinyQwen3().graph().bytes(), std::nullopt);
    EXPECT_TRUE(file.ok());
    model_ = Model::load(std::move(*file), pool_, cpu::detect_features()).value();
  }

  uint32_t below(uint32_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33) % limit;
  }

  Call make_call(int64_t past, int64_t tokens) {
    Call call;
    const auto add = [&](DType dtype, ops::Shape shape) {
      auto& bytes = call.memory.emplace_back(*storage_bytes(dtype, shape.elements()));
      ops::Tensor t;
      t.data = bytes.data();
      t.dtype = dtype;
      t.shape = shape;
      return t;
    };
    for (const Port& port : model_->inputs()) {
      ops::Tensor t;
      if (port.name == "input_ids") {
        t = add(DType::i64, {1, tokens});
        for (int64_t i = 0; i < tokens; i++) t.as<int64_t>()[i] = below(320);
      } else if (port.name == "attention_mask") {
        t = add(DType::i64, {1, past + tokens});
        for (int64_t i = 0; i < past + tokens; i++) t.as<int64_t>()[i] = 1;
      } else {
        t = add(DType::f32, {1, 2, past, 16});
        for (int64_t i = 0; i < t.elements(); i++) t.as<float>()[i] = static_cast<float>(below(2000)) / 1000 - 1;
      }
      call.inputs.push_back(t);
    }
    want_others(call);
    return call;
  }
  void want_others(Call& call) {
    const auto tokens = static_cast<uint32_t>(call.inputs[0].elements());
    call.outputs.resize(model_->outputs().size());
    for (Output& output : call.outputs) output.wanted = below(3) > 0;
    call.outputs[static_cast<size_t>(logits())].wanted = true;
    call.rows.reset();
    if (below(2) == 0) {
      const uint32_t first = below(tokens);
      call.rows = RowRange{logits(), first, 1 + below(tokens - first)};
    }
  }
  int logits() const { return model_->output_index("logits"); }

  // What a Runner that has run nothing gives for the same inputs.
  void expect_fresh(const Call& call) {
    Runner fresh(model_, pool_);
    std::vector<Output> outputs(call.outputs.size());
    for (size_t j = 0; j < outputs.size(); j++) outputs[j].wanted = call.outputs[j].wanted;
    ASSERT_TRUE(fresh.run(call.inputs, outputs, call.rows).ok());
    for (size_t j = 0; j < outputs.size(); j++) {
      const ops::Tensor &got = call.outputs[j].result, &expected = outputs[j].result;
      ASSERT_EQ(got.shape, expected.shape) << j;
      ASSERT_EQ(got.data == nullptr, expected.data == nullptr) << j;
      if (got.data == nullptr) continue;
      EXPECT_EQ(std::memcmp(got.data, expected.data, *storage_bytes(got.dtype, got.elements())), 0) << j;
    }
  }

  cpu::Pool pool_{1};
  std::shared_ptr<const Model> model_;
  uint64_t state_ = 7;
};

TEST_F(ReusedRunner, GivesWhatAFreshOneGives) {
  Runner reused(model_, pool_);
  std::vector<cpu::Buffer> kept;  // so that new memory lies elsewhere
  Call call = make_call(0, 4);
  for (int i = 0; i < 200; i++) {
    switch (below(4)) {
      case 0: call = make_call(std::array{0, 4, 7}[below(3)], std::array{1, 1, 3}[below(3)]); break;
      case 1: want_others(call); break;
      case 2:  // other memory for the results only
        for (Output& output : call.outputs) kept.push_back(std::move(output.storage));
        break;
      default:
        for (int64_t k = 0; k < call.inputs[0].elements(); k++) call.inputs[0].as<int64_t>()[k] = below(320);
    }
    ASSERT_TRUE(reused.run(call.inputs, call.outputs, call.rows).ok());
    expect_fresh(call);
    if (HasFatalFailure()) FAIL() << "call " << i;
  }
}

TEST_F(ReusedRunner, ARefusedCallLeavesNothingBehind) {
  Runner reused(model_, pool_);
  Call call = make_call(4, 1);
  ASSERT_TRUE(reused.run(call.inputs, call.outputs, call.rows).ok());
  Call wrong = make_call(7, 1);
  wrong.inputs[2].shape = {1, 2, 3, 16};  // unlike the other caches
  EXPECT_FALSE(reused.run(wrong.inputs, wrong.outputs, wrong.rows).ok());
  ASSERT_TRUE(reused.run(call.inputs, call.outputs, call.rows).ok());
  expect_fresh(call);
}

// As a timeline does it: everything stays where it is, the mask grows. Rows appended to the cache must be those that
// the present tensors of the other form hold.
TEST_F(ReusedRunner, ABoundCacheGivesTheSameAsTensors) {
  Runner tensors(model_, pool_), bound(model_, pool_);
  constexpr int64_t kRows = 12;
  std::vector<std::vector<float>> caches(4, std::vector<float>(2 * kRows * 16));
  std::vector<ops::KvView> views(2);
  int64_t id = 0;
  std::vector<int64_t> ones(kRows, 1);
  Call before = make_call(0, 1), with_cache = make_call(0, 1);
  for (Output& output : with_cache.outputs) output.wanted = false;
  with_cache.outputs[static_cast<size_t>(logits())].wanted = true;
  for (int64_t past = 0; past < 6; past++) {
    Call call = make_call(past, 1);
    for (Output& output : call.outputs) output.wanted = true;
    call.rows.reset();
    id = *call.inputs[0].as<int64_t>();
    with_cache.inputs[0].data = &id;
    with_cache.inputs[1].data = ones.data();
    with_cache.inputs[1].shape = {1, past + 1};
    for (size_t layer = 0; layer < 2; layer++) {
      ops::KvView& view = views[layer];
      view.keys = caches[2 * layer].data();
      view.values = caches[2 * layer + 1].data();
      view.head_stride = kRows * 16;
      view.row_stride = 16;
      view.capacity = kRows;
      const std::string name = "past_key_values." + std::to_string(layer);
      for (const std::string half : {".key", ".value"}) {
        const auto port = static_cast<size_t>(model_->input_index(name + half));
        if (past > 0) {  // what the last call appended
          const auto present = static_cast<size_t>(model_->output_index("present." + std::to_string(layer) + half));
          const ops::Tensor& grown = before.outputs[present].result;
          ASSERT_EQ(grown.shape[2], past);
          std::memcpy(call.inputs[port].data, grown.data, static_cast<size_t>(grown.elements()) * sizeof(float));
        }
        with_cache.inputs[port].data = nullptr;
        with_cache.inputs[port].shape = {1, 2, kRows, 16};
        with_cache.inputs[port].cache = &views[layer];
      }
    }
    ASSERT_TRUE(tensors.run(call.inputs, call.outputs).ok());
    ASSERT_TRUE(bound.run(with_cache.inputs, with_cache.outputs).ok());
    const auto& expected = call.outputs[static_cast<size_t>(logits())].result;
    const auto& got = with_cache.outputs[static_cast<size_t>(logits())].result;
    ASSERT_EQ(got.shape, expected.shape);
    EXPECT_EQ(std::memcmp(got.data, expected.data, static_cast<size_t>(got.elements()) * sizeof(float)), 0) << past;
    EXPECT_EQ(bound.counters().cache_bytes_copied, 0u);
    before = std::move(call);
  }
}

}  // namespace
}  // namespace quern::graph
