// SPDX-License-Identifier: Apache-2.0
// Passes over the graph: which nodes are joined and what is left of them, and that no bit of a run changes.
#include "graph/fuse.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "graph/runner.h"
#include "tests/support/allocation_count.h"
#include "tests/support/onnx_writer.h"
#include "tests/support/random.h"

namespace quern::graph {
namespace {

using support::attribute;
using support::OnnxWriter;
using support::Random;

const std::vector<std::string> kNone;
const std::vector<std::string> kLeftOut = {"shared_rows"};
const std::vector<std::string> kEvery = {"shared_rows", "add_norm", "silu_mul"};

// ---- what is joined ----

// Knows which operators it was made of.
class Named final : public ops::Operator {
 public:
  Named(std::string key, std::vector<std::string> made_of) : names(std::move(made_of)), key_(std::move(key)) {}
  DType output_dtype(int) const override { return DType::f32; }
  Result<void> resolve(const ops::ResolveArgs&) const override { return {}; }
  Result<void> run(const ops::Context&, std::span<const ops::Tensor>, std::span<const ops::Tensor>) const override {
    return {};
  }
  std::string_view variant() const override { return "named"; }
  std::string join_key() const override { return key_; }
  std::unique_ptr<Operator> join(std::vector<std::unique_ptr<Operator>> others) const override {
    std::vector<std::string> all = names;
    for (const auto& other : others) {
      const auto& theirs = dynamic_cast<const Named&>(*other).names;
      all.insert(all.end(), theirs.begin(), theirs.end());
    }
    return std::make_unique<Named>(key_, all);
  }

  const std::vector<std::string> names;

 private:
  std::string key_;
};

// x -> a, b, c, d; the keys are given by the test.
struct Steps {
  explicit Steps(OnnxWriter w) : file(formats::OnnxFile::from_bytes(w.bytes(), std::nullopt).value()) {
    ir = build_ir(file).value();
    steps.resize(ir.nodes.size());
  }
  int node(std::string_view name) const {
    for (size_t n = 0; n < ir.nodes.size(); n++) {
      if (ir.nodes[n].name == name) return static_cast<int>(n);
    }
    ADD_FAILURE() << "no node " << name;
    return 0;
  }
  int value(std::string_view name) const {
    for (size_t v = 0; v < ir.values.size(); v++) {
      if (ir.values[v].name == name) return static_cast<int>(v);
    }
    ADD_FAILURE() << "no value " << name;
    return 0;
  }
  void key(std::string_view name, std::string key) {
    steps[node(name)].op = std::make_unique<Named>(std::move(key), std::vector<std::string>{std::string(name)});
  }
  std::vector<std::string> made_of(std::string_view name) const {
    const auto& op = steps[node(name)].op;
    return op == nullptr ? std::vector<std::string>() : dynamic_cast<const Named&>(*op).names;
  }
  using Names = std::vector<std::string>;

  formats::OnnxFile file;
  Ir ir;
  std::vector<Step> steps;
};

OnnxWriter four_readers() {
  OnnxWriter w;
  w.opset("", 21).input("x", DType::f32, {4}).input("y", DType::f32, {4}).output("d1", DType::f32, {4});
  w.initializer("w", {4}, std::vector<float>(4));
  w.node("P", {"x", "w"}, {"a1"}, {}, {.name = "a"}).node("P", {"x", "w"}, {"b1"}, {}, {.name = "b"});
  w.node("P", {"y", "w"}, {"c1"}, {}, {.name = "c"}).node("P", {"x", "w", "", "w"}, {"d1"}, {}, {.name = "d"});
  return w;
}

TEST(SharedRows, ReadersOfOneValueWithOneKeyBecomeTheFirstOfThem) {
  Steps s(four_readers());
  for (const char* name : {"a", "b", "c", "d"}) s.key(name, "key");
  fuse(kNone, s.ir, s.steps);
  EXPECT_EQ(s.made_of("a"), (Steps::Names{"a", "b", "d"}));
  EXPECT_EQ(s.made_of("c"), Steps::Names{"c"});
  EXPECT_EQ(s.ir.nodes[s.node("a")].outputs, (std::vector<int>{s.value("a1"), s.value("b1"), s.value("d1")}));
  for (const char* name : {"b", "d"}) {
    const int n = s.node(name);
    EXPECT_EQ(s.steps[n].op, nullptr);
    EXPECT_EQ(s.steps[n].owner, Owner::fused);
    EXPECT_NE(s.steps[n].reason.find("'a'"), std::string::npos) << s.steps[n].reason;
    EXPECT_TRUE(s.ir.nodes[n].inputs.empty());
    EXPECT_TRUE(s.ir.nodes[n].outputs.empty());
    EXPECT_NE(s.steps[s.node("a")].reason.find(fmt::format("'{}'", name)), std::string::npos);
  }
  EXPECT_EQ(s.steps[s.node("a")].owner, Owner::kernel);
  for (const char* name : {"a1", "b1", "d1"}) EXPECT_EQ(s.ir.values[s.value(name)].producer, s.node("a"));
  const auto users = [&](const char* name) {
    std::vector<int> nodes;
    for (const Use& use : s.ir.values[s.value(name)].uses) nodes.push_back(use.node);
    return nodes;
  };
  EXPECT_EQ(users("x"), std::vector<int>{s.node("a")});
  EXPECT_EQ(users("w"), (std::vector<int>{s.node("a"), s.node("c")}));
}

TEST(SharedRows, EachKeyIsAGroupAndNoneIsLeftAlone) {
  Steps s(four_readers());
  s.key("a", "one");
  s.key("b", "");
  s.key("c", "one");
  s.key("d", "two");
  fuse(kNone, s.ir, s.steps);
  for (const char* name : {"a", "b", "c", "d"}) {
    EXPECT_EQ(s.made_of(name), Steps::Names{name});
    EXPECT_EQ(s.steps[s.node(name)].owner, Owner::kernel);
  }
}

TEST(SharedRows, AnInputThatIsComputedOrFedLaterKeepsANodeOut) {
  OnnxWriter w = four_readers();
  w.input("late", DType::f32, {4}).node("Q", {"a1"}, {"q1"}, {}, {.name = "q"});
  w.node("P", {"x", "q1"}, {"e1"}, {}, {.name = "e"}).node("P", {"x", "late"}, {"f1"}, {}, {.name = "f"});
  w.node("P", {"x", "w"}, {"g1", "g2"}, {}, {.name = "g"}).node("P", {"x", "w"}, {"h1"}, {}, {.name = "h"});
  Steps s(w);
  for (const char* name : {"a", "e", "f", "g", "h"}) s.key(name, "key");
  s.steps[s.node("h")].owner = Owner::view;
  fuse(kNone, s.ir, s.steps);
  for (const char* name : {"a", "e", "f", "g", "h"}) EXPECT_EQ(s.made_of(name), Steps::Names{name});
}

TEST(SharedRows, MayBeLeftOut) {
  Steps s(four_readers());
  for (const char* name : {"a", "b", "c", "d"}) s.key(name, "key");
  fuse(kLeftOut, s.ir, s.steps);
  for (const char* name : {"a", "b", "c", "d"}) EXPECT_EQ(s.made_of(name), Steps::Names{name});
}

TEST(PassNames, AnUnknownOneIsABadRequestThatListsThem) {
  EXPECT_TRUE(check_pass_names(kNone).ok());
  EXPECT_TRUE(check_pass_names(kEvery).ok());
  for (const char* name : {"", "shared_row", "shared_rows "}) {
    const auto checked = check_pass_names(std::vector<std::string>{"shared_rows", name});
    ASSERT_FALSE(checked.ok()) << name;
    EXPECT_EQ(checked.error().code, Errc::bad_request);
    EXPECT_NE(checked.error().message().find(fmt::format("'{}' is not a pass", name)), std::string::npos);
    EXPECT_NE(checked.error().message().find("there are: shared_rows, add_norm, silu_mul"), std::string::npos);
  }
}

// ---- what a run gives ----

constexpr int64_t kDepth = 64;

void projection(OnnxWriter& w, Random& random, const std::string& x, const std::string& y, int64_t n) {
  std::vector<uint8_t> codes(static_cast<size_t>(n * kDepth / 2));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(256));
  std::vector<float> scales(static_cast<size_t>(n * kDepth / 32));
  random.fill_normal(scales, 0.1F);
  w.initializer(y + ".b", {n, kDepth / 32, 16}, codes).initializer(y + ".s", {n, kDepth / 32}, scales);
  w.node("MatMulNBits", {x, y + ".b", y + ".s"}, {y},
         {attribute("K", kDepth), attribute("N", n), attribute("bits", 4), attribute("block_size", 32),
          attribute("accuracy_level", 4)},
         {.name = y + ".node", .domain = "com.microsoft"});
}

// Three projections of one value with work between them: what could take the place of the value or of an output too
// early would show. `first` and `last` leave the graph.
OnnxWriter projections() {
  OnnxWriter w;
  Random random(3);
  w.opset("", 21).opset("com.microsoft", 1);
  w.input("x", DType::f32, {1, "s", kDepth});
  w.output("first", DType::f32, {1, "s", 48})
      .output("last", DType::f32, {1, "s", 33})
      .output("z", DType::f32, {1, "s", 48});
  w.node("Add", {"x", "x"}, {"h"}, {}, {.name = "twice"});
  projection(w, random, "h", "first", 48);
  w.node("Sigmoid", {"first"}, {"gate"}).node("Sigmoid", {"h"}, {"other"}).node("Mul", {"other", "other"}, {"o2"});
  projection(w, random, "h", "middle", 48);
  projection(w, random, "o2", "side", 48);
  w.node("Mul", {"gate", "middle"}, {"g"});
  projection(w, random, "h", "last", 33);
  w.node("Add", {"g", "side"}, {"z"});
  return w;
}

class Timeline {
 public:
  explicit Timeline(const std::vector<std::string>& no_fuse, int threads = 2, const OnnxWriter& graph = projections())
      : pool_(threads) {
    auto file = formats::OnnxFile::from_bytes(graph.bytes(), std::nullopt).value();
    auto model = Model::load(std::move(file), pool_, cpu::detect_features(), {no_fuse});
    if (!model.ok()) {
      ADD_FAILURE() << model.error().message();
      return;
    }
    runner_ = std::make_unique<Runner>(*model, pool_, true);
    outputs.resize((*model)->outputs().size());
  }
  bool feed(int64_t rows) {
    Random random(static_cast<uint64_t>(rows) + 1);
    x_.resize(static_cast<size_t>(rows * kDepth));
    random.fill_normal(x_, 1.0F);
    return again(rows, std::nullopt);
  }
  bool again(int64_t rows, std::optional<RowRange> wanted) {
    ops::Tensor in;
    in.shape = {1, rows, kDepth};
    in.data = x_.data();
    const auto done = runner_->run({&in, 1}, outputs, wanted);
    EXPECT_TRUE(done.ok()) << done.error().message();
    return done.ok();
  }
  std::vector<float> output(int j) const {
    const ops::Tensor& t = outputs[static_cast<size_t>(j)].result;
    return {t.as<float>(), t.as<float>() + t.elements()};
  }
  ReportRow row(const std::string& name) const {
    for (auto& r : runner_->report()) {
      if (r.node == name) return r;
    }
    ADD_FAILURE() << "no node " << name;
    return {};
  }
  Runner& runner() { return *runner_; }

  std::vector<Output> outputs;

 private:
  cpu::Pool pool_;
  std::unique_ptr<Runner> runner_;
  std::vector<float> x_;
};

TEST(SharedRowsRun, GivesTheBitsOfSeparateNodes) {
  Timeline joint(kNone), separate(kLeftOut);
  for (const int64_t rows : {1, 2, 3, 17, 64, 1, 0, 5}) {
    ASSERT_TRUE(joint.feed(rows));
    ASSERT_TRUE(separate.feed(rows));
    for (int j = 0; j < 3; j++) EXPECT_EQ(joint.output(j), separate.output(j)) << rows << " rows, output " << j;
  }
}

TEST(SharedRowsRun, IsReportedAndTimedAtTheJointNode) {
  Timeline joint(kNone), separate(kLeftOut);
  ASSERT_TRUE(joint.feed(9));
  ASSERT_TRUE(separate.feed(9));
  for (const char* name : {"first.node", "middle.node", "last.node", "side.node"}) {
    EXPECT_EQ(separate.row(name).owner, Owner::kernel) << name;
    EXPECT_GT(separate.row(name).ns, 0) << name;
  }
  for (const char* name : {"first.node", "side.node"}) {
    EXPECT_EQ(joint.row(name).owner, Owner::kernel) << name;
    EXPECT_FALSE(joint.row(name).variant.empty()) << name;
    EXPECT_GT(joint.row(name).ns, 0) << name;
  }
  for (const char* name : {"middle.node", "last.node"}) {
    EXPECT_EQ(joint.row(name).owner, Owner::fused) << name;
    EXPECT_TRUE(joint.row(name).variant.empty()) << name;
    EXPECT_EQ(joint.row(name).ns, 0) << name;
    EXPECT_NE(joint.row(name).reason.find("'first.node'"), std::string::npos) << joint.row(name).reason;
  }
  EXPECT_EQ(joint.runner().report().size(), separate.runner().report().size());
  EXPECT_EQ(joint.runner().counters().bytes_copied, 0u);
  EXPECT_EQ(joint.runner().counters().weight_bytes_read, separate.runner().counters().weight_bytes_read);
  EXPECT_EQ(joint.runner().model().memory().prepared_bytes, separate.runner().model().memory().prepared_bytes);
  EXPECT_EQ(joint.runner().model().memory().preparations, 4u);
}

TEST(SharedRowsRun, WantedRowsOfOneOutputLeaveTheOthersWhole) {
  Timeline joint(kNone);
  ASSERT_TRUE(joint.feed(7));
  const std::vector<std::vector<float>> whole = {joint.output(0), joint.output(1), joint.output(2)};
  const int64_t widths[] = {48, 33, 48};
  for (const int output : {0, 1}) {
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{6, 1}, {0, 7}, {2, 3}, {4, 0}}) {
      ASSERT_TRUE(joint.again(7, RowRange{output, first, count}));
      for (int j = 0; j < 3; j++) {
        const std::vector<float>& all = whole[static_cast<size_t>(j)];
        const auto begin = all.begin() + (j == output ? first * widths[j] : 0);
        const auto end = j == output ? begin + count * widths[j] : all.end();
        EXPECT_EQ(joint.output(j), std::vector<float>(begin, end)) << output << " from " << first << ": " << j;
      }
      EXPECT_EQ(joint.outputs[static_cast<size_t>(output)].result.shape, (ops::Shape{1, count, widths[output]}));
      EXPECT_EQ(joint.row("first.node").bytes_copied, static_cast<uint64_t>(count * widths[output]) * sizeof(float));
    }
  }
  ASSERT_TRUE(joint.again(7, std::nullopt));
  for (int j = 0; j < 3; j++) EXPECT_EQ(joint.output(j), whole[static_cast<size_t>(j)]);
}

TEST(SharedRowsRun, TheSteadyStateAllocatesNothing) {
  Timeline joint(kNone);
  ASSERT_TRUE(joint.feed(4));
  ASSERT_TRUE(joint.again(4, std::nullopt));
  const auto usage = cpu::memory_usage();
  const int64_t allocations = support::allocations_in([&] {
    for (int i = 0; i < 100; i++) ASSERT_TRUE(joint.again(4, std::nullopt));
  });
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(cpu::memory_usage().allocations, usage.allocations);
}

// ---- additions with norms, gated products ----

void norm(OnnxWriter& w, const std::string& x, const std::string& y, const std::string& name, int axis = -1) {
  w.node("SimplifiedLayerNormalization", {x, "gamma"}, {y}, {attribute("axis", axis), attribute("epsilon", 1e-6F)},
         {.name = name});
}

OnnxWriter with_gamma() {
  OnnxWriter w;
  Random random(4);
  std::vector<float> gamma(kDepth);
  random.fill_normal(gamma, 1.0F);
  w.opset("", 21).opset("com.microsoft", 1).initializer("gamma", {kDepth}, gamma);
  w.input("x", DType::f32, {1, "s", kDepth});
  return w;
}

// The second half of a layer as exporters write it that know no addition with a norm: the first sum has a further
// reader, the second has none.
OnnxWriter half_layer() {
  OnnxWriter w = with_gamma();
  Random random(5);
  w.output("y", DType::f32, {1, "s", 40});
  projection(w, random, "x", "branch", kDepth);
  w.node("Add", {"x", "branch"}, {"z"}, {}, {.name = "add"});
  norm(w, "z", "n", "norm");
  projection(w, random, "n", "g", kDepth);
  projection(w, random, "n", "u", kDepth);
  w.node("Sigmoid", {"g"}, {"s"}, {}, {.name = "sigmoid"});
  w.node("Mul", {"s", "g"}, {"a"}, {}, {.name = "silu"}).node("Mul", {"u", "a"}, {"p"}, {}, {.name = "product"});
  projection(w, random, "p", "d", kDepth);
  w.node("Add", {"z", "d"}, {"z2"}, {}, {.name = "add2"});
  norm(w, "z2", "n2", "norm2");
  projection(w, random, "n2", "y", 40);
  return w;
}

std::vector<std::string> fused_nodes(const OnnxWriter& graph, const std::vector<std::string>& no_fuse = {}) {
  cpu::Pool pool(1);
  auto file = formats::OnnxFile::from_bytes(graph.bytes(), std::nullopt).value();
  const auto model = Model::load(std::move(file), pool, cpu::detect_features(), {no_fuse});
  EXPECT_TRUE(model.ok()) << model.error().message();
  std::vector<std::string> names;
  for (const ReportRow& row : (*model)->report()) {
    if (row.owner == Owner::fused) names.emplace_back(row.node);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(AddNorm, TheNormComputesTheSum) {
  EXPECT_EQ(fused_nodes(half_layer(), {"shared_rows", "silu_mul"}), (Names{"add", "add2"}));
  EXPECT_EQ(fused_nodes(half_layer(), kEvery), Names());
  Timeline joint(kNone, 1, half_layer());
  EXPECT_EQ(joint.row("norm").owner, Owner::kernel);
  EXPECT_EQ(joint.row("norm").reason, "computed, with 'add' (add_norm)");
  EXPECT_EQ(joint.row("add").reason, "computed by 'norm', which normalises the sum (add_norm)");
}

TEST(AddNorm, SumsThatTheNormIsNotTheFirstToReadStay) {
  const auto fused = [](auto add_nodes) {
    OnnxWriter w = with_gamma();
    w.output("y", DType::f32, {1, "s", kDepth});
    add_nodes(w);
    return fused_nodes(w, {"shared_rows", "silu_mul"});
  };
  const auto sum = [](OnnxWriter& w, const std::string& a, const std::string& b) {
    w.node("Add", {a, b}, {"z"}, {}, {.name = "add"});
  };
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              sum(w, "x", "x");
              norm(w, "z", "y", "norm");
            }),
            Names{"add"});
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              sum(w, "x", "x");
              w.node("Sigmoid", {"z"}, {"s"});
              norm(w, "z", "n", "norm");
              w.node("Mul", {"n", "s"}, {"y"});
            }),
            Names());
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              w.output("z", DType::f32, {1, "s", kDepth});
              sum(w, "x", "x");
              norm(w, "z", "y", "norm");
            }),
            Names());
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              w.initializer("c", {kDepth}, std::vector<float>(kDepth));
              sum(w, "x", "c");
              norm(w, "z", "y", "norm");
            }),
            Names());
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              sum(w, "x", "x");
              norm(w, "z", "y", "norm", 2);
            }),
            Names());
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              w.input("g", DType::f32, {kDepth});
              sum(w, "g", "g");
              w.node("SimplifiedLayerNormalization", {"x", "z"}, {"y"}, {}, {.name = "norm"});
            }),
            Names());
}

TEST(SiluMul, TheLastProductComputesAllThree) {
  EXPECT_EQ(fused_nodes(half_layer(), {"shared_rows", "add_norm"}), (Names{"sigmoid", "silu"}));
  Timeline joint(kNone, 1, half_layer());
  EXPECT_EQ(joint.row("product").owner, Owner::kernel);
  EXPECT_EQ(joint.row("product").reason, "computed, with 'sigmoid' and 'silu' (silu_mul)");
  EXPECT_EQ(joint.row("silu").reason, "computed by 'product', whose elements it gates (silu_mul)");
  EXPECT_NE(joint.row("product").variant, Timeline(kEvery, 1, half_layer()).row("product").variant);
}

TEST(SiluMul, WhatIsReadElsewhereOrIsNoGateStays) {
  // One output "y"; `a` and `b` are computed.
  const auto fused = [](auto add_nodes) {
    OnnxWriter w = with_gamma();
    w.output("y", DType::f32, {1, "s", kDepth});
    w.node("Mul", {"x", "x"}, {"a"}, {}, {.name = "a"}).node("Sub", {"x", "a"}, {"b"}, {}, {.name = "b"});
    add_nodes(w);
    return fused_nodes(w, {"shared_rows", "add_norm"});
  };
  const auto gate = [](OnnxWriter& w, const std::string& first, const std::string& other, const std::string& b) {
    w.node("Sigmoid", {"a"}, {"s"}, {}, {.name = "sigmoid"}).node("Mul", {first, other}, {"t"}, {}, {.name = "silu"});
    w.node("Mul", {"t", b}, {"p"}, {}, {.name = "product"});
  };
  const auto end = [](OnnxWriter& w, const std::string& other) { w.node("Add", {"p", other}, {"y"}); };
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              gate(w, "a", "s", "b");
              end(w, "x");
            }),
            (Names{"sigmoid", "silu"}));
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              gate(w, "s", "a", "a");
              end(w, "x");
            }),
            (Names{"sigmoid", "silu"}));
  for (const char* read : {"s", "t"}) {
    EXPECT_EQ(fused([&](OnnxWriter& w) {
                gate(w, "a", "s", "b");
                end(w, read);
              }),
              Names())
        << read;
    EXPECT_EQ(fused([&](OnnxWriter& w) {
                w.output(read, DType::f32, {1, "s", kDepth});
                gate(w, "a", "s", "b");
                end(w, "x");
              }),
              Names())
        << read;
  }
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              gate(w, "b", "s", "a");
              end(w, "x");
            }),
            Names());
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              gate(w, "s", "s", "b");
              end(w, "x");
            }),
            Names());
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              gate(w, "a", "s", "t");
              end(w, "x");
            }),
            Names());
  EXPECT_EQ(fused([&](OnnxWriter& w) {
              w.initializer("c", {kDepth}, std::vector<float>(kDepth));
              gate(w, "a", "s", "c");
              end(w, "x");
            }),
            Names());
}

class PassRun : public testing::TestWithParam<std::string> {};

TEST_P(PassRun, GivesTheBitsOfTheGraphWithoutIt) {
  Timeline every(kNone, 2, half_layer()), without({GetParam()}, 2, half_layer()), none(kEvery, 1, half_layer());
  for (const int64_t rows : {1, 2, 3, 17, 300, 1, 0, 5}) {
    for (Timeline* t : {&every, &without, &none}) ASSERT_TRUE(t->feed(rows));
    EXPECT_EQ(every.output(0), none.output(0)) << rows << " rows";
    EXPECT_EQ(without.output(0), none.output(0)) << rows << " rows";
  }
  EXPECT_EQ(every.runner().report().size(), none.runner().report().size());
}

INSTANTIATE_TEST_SUITE_P(Every, PassRun, testing::ValuesIn(kEvery), [](const auto& pass) { return pass.param; });

TEST(EveryPassRun, TheSteadyStateAllocatesNothing) {
  Timeline every(kNone, 2, half_layer());
  ASSERT_TRUE(every.feed(4));
  ASSERT_TRUE(every.again(4, std::nullopt));
  EXPECT_EQ(support::allocations_in([&] {
              for (int i = 0; i < 100; i++) ASSERT_TRUE(every.again(4, std::nullopt));
            }),
            0);
}

}  // namespace
}  // namespace quern::graph
