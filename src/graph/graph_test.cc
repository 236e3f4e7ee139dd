// SPDX-License-Identifier: Apache-2.0
// Graphs end to end inside this folder: what is refused at load, who owns each node, views and copies, lifetimes, runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "graph/runner.h"
#include "tests/support/allocation_count.h"
#include "tests/support/onnx_writer.h"
#include "tests/support/random.h"
#include "tests/support/scratch_folder.h"

namespace quern::graph {
namespace {

using support::attribute;
using support::OnnxWriter;

OnnxWriter writer() {
  OnnxWriter w;
  w.opset("", 21).opset("com.microsoft", 1);
  return w;
}

std::vector<float> counting(size_t n) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), 1.0F);
  return v;
}

class Graph {
 public:
  explicit Graph(const OnnxWriter& w, int threads = 1)
      : Graph(formats::OnnxFile::from_bytes(w.bytes(), std::nullopt), threads) {}
  explicit Graph(Result<formats::OnnxFile> file, int threads = 1) : pool_(threads) {
    if (!file.ok()) {
      error_ = file.error();
      return;
    }
    auto model = Model::load(std::move(*file), pool_, cpu::detect_features());
    if (!model.ok()) {
      error_ = model.error();
      return;
    }
    model_ = *model;
    runner_ = std::make_unique<Runner>(model_, pool_);
  }

  bool loaded() const { return model_ != nullptr; }
  const Error& error() const { return error_; }
  const Model& model() const { return *model_; }
  Runner& runner() { return *runner_; }

  // Feeds one float tensor per input in declared order.
  bool run(const std::vector<std::pair<ops::Shape, std::vector<float>>>& feeds,
           std::optional<RowRange> rows = std::nullopt) {
    fed_ = feeds;
    inputs_.assign(model_->inputs().size(), {});
    for (auto& t : inputs_) t.present = false;
    for (size_t i = 0; i < fed_.size(); i++) {
      inputs_[i].shape = fed_[i].first;
      inputs_[i].data = fed_[i].second.data();
      inputs_[i].present = true;
    }
    outputs_.resize(model_->outputs().size());
    auto result = runner_->run(inputs_, outputs_, rows);
    if (!result.ok()) error_ = result.error();
    return result.ok();
  }
  bool again() { return runner_->run(inputs_, outputs_).ok(); }
  std::vector<float> output(int j) const {
    const ops::Tensor& t = outputs_[static_cast<size_t>(j)].result;
    return {t.as<float>(), t.as<float>() + t.elements()};
  }
  const ops::Shape& shape(int j) const { return outputs_[static_cast<size_t>(j)].result.shape; }
  std::vector<Output>& outputs() { return outputs_; }

  ReportRow row(const std::string& name) const {
    for (auto& r : runner_->report()) {
      if (r.node == name) return r;
    }
    ADD_FAILURE() << "no node " << name;
    return {};
  }

 private:
  cpu::Pool pool_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Runner> runner_;
  Error error_;
  std::vector<std::pair<ops::Shape, std::vector<float>>> fed_;
  std::vector<ops::Tensor> inputs_;
  std::vector<Output> outputs_;
};

void expect_refused(const OnnxWriter& w, Errc code, const std::string& part) {
  const Graph g(w);
  ASSERT_FALSE(g.loaded());
  EXPECT_EQ(g.error().code, code) << g.error().message();
  EXPECT_NE(g.error().message().find(part), std::string::npos) << g.error().message();
}

// ---- refused at load ----

TEST(Load, AnUnknownOperatorIsUnsupportedByNodeAndName) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2}).node("Cosh", {"x"}, {"y"}, {}, {.name = "odd one"});
  expect_refused(w, Errc::unsupported, "Cosh node 'odd one'");
}

TEST(Load, AnUnknownDomainIsRefused) {
  auto w = writer();
  w.input("x", DType::f32, {2})
      .output("y", DType::f32, {2})
      .node("Add", {"x", "x"}, {"y"}, {}, {.name = "n", .domain = "other"});
  expect_refused(w, Errc::bad_model, "other");
}

TEST(Load, AnOpsetAboveTheTableIsUnsupported) {
  OnnxWriter w;
  w.opset("", 27).input("x", DType::f32, {2}).output("y", DType::f32, {2}).node("Add", {"x", "x"}, {"y"});
  expect_refused(w, Errc::unsupported, "opset 27");
}

TEST(Load, AValueDefinedTwiceIsRefused) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2});
  w.node("Add", {"x", "x"}, {"y"}).node("Mul", {"x", "x"}, {"y"});
  expect_refused(w, Errc::bad_model, "defined twice");
}

TEST(Load, AnUndefinedInputIsRefused) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2}).node("Add", {"x", "nowhere"}, {"y"});
  expect_refused(w, Errc::bad_model, "'nowhere'");
}

TEST(Load, ACycleIsRefused) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2});
  w.node("Add", {"x", "b"}, {"a"}).node("Add", {"a", "x"}, {"b"}).node("Add", {"b", "x"}, {"y"});
  expect_refused(w, Errc::bad_model, "cycle");
}

TEST(Load, AnUndefinedGraphOutputIsRefused) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("z", DType::f32, {2}).node("Add", {"x", "x"}, {"y"});
  expect_refused(w, Errc::bad_model, "'z'");
}

TEST(Load, AConstantWithoutAValueTensorIsRefusedByAttribute) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2});
  w.node("Constant", {}, {"c"}, {attribute("value_float", 2.0F)}).node("Mul", {"x", "c"}, {"y"});
  expect_refused(w, Errc::unsupported, "value_float");
}

TEST(Load, NamesAndTextsOfAttributesAreShownEscapedAndCut) {
  const auto norm = [](const std::string& name, const std::string& text) {
    auto w = writer();
    w.input("x", DType::f32, {2}).output("y", DType::f32, {2});
    w.node("Sigmoid", {"x"}, {"y"}, {attribute(name, text)});
    return Graph(w).error();
  };
  EXPECT_EQ(norm("a\xff", "t").what, "the attribute 'a\\xff' = 't' is not known to quern");
  EXPECT_EQ(norm("a", "t\xff").what, "the attribute 'a' = 't\\xff' is not known to quern");
  EXPECT_LT(norm(std::string(160000, 'n'), std::string(160000, 't')).message().size(), 400u);
  EXPECT_EQ(norm("plain", "text").code, Errc::unsupported);
}

TEST(Load, AShapeThatIsComputedFromPayloadIsUnsupported) {
  auto w = writer();
  w.input("x", DType::f32, {"n"}).input("p", DType::i64, {1}).output("y", DType::f32, {"m"});
  w.node("Add", {"p", "p"}, {"s"}).node("Reshape", {"x", "s"}, {"y"}, {}, {.name = "r"});
  // p is a graph input, s is computed from it: the value would have to be read while shapes are resolved.
  expect_refused(w, Errc::unsupported, "decides shapes");
}

TEST(Load, NodesOutOfOrderAreSorted) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2});
  w.node("Add", {"a", "x"}, {"y"}).node("Mul", {"x", "x"}, {"a"});
  Graph g(w);
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{2}, {3, 4}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{12, 20}));
}

TEST(Load, UnusedInitializersAreIgnored) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2}).node("Add", {"x", "x"}, {"y"});
  w.initializer("unused", {3}, counting(3));
  EXPECT_TRUE(Graph(w).loaded());
}

// ---- external data at odd addresses ----

constexpr int64_t kTableRows = 256, kTableWidth = 32, kColumns = 8;
constexpr size_t kTableBytes = kTableRows * kTableWidth * sizeof(float);

// A table, a weight, a scale, axes and integers that are read where they lie, and an addend that is not; `shift` bytes
// lie in front of the first.
void save_external_graph(size_t shift, const std::filesystem::path& folder) {
  support::ExternalFile data("model.onnx.data");
  data.bytes().resize(shift);
  support::Random random(3);
  const auto floats = [&](int64_t n) {
    std::vector<float> v(static_cast<size_t>(n));
    random.fill_normal(v);
    return v;
  };
  auto w = writer();
  w.initializer(data.tensor("table", {kTableRows, kTableWidth}, floats(kTableRows * kTableWidth)));
  w.initializer(data.tensor("weight", {kTableWidth, kColumns}, floats(kTableWidth * kColumns)));
  w.initializer(data.tensor("scale", {kTableWidth}, floats(kTableWidth)));
  w.initializer(data.tensor("addend", {kColumns}, floats(kColumns)));
  w.initializer(data.tensor("axes", {1}, std::vector<int64_t>{1}));
  w.initializer(data.tensor("integers", {20}, std::vector<int64_t>(20, -7)));
  w.input("x", DType::f32, {"s"});
  w.output("y", DType::f32, {"s", kColumns}).output("sums", DType::f32, {"s"}).output("floats", DType::f32, {20});
  w.node("Cast", {"x"}, {"ids"}, {attribute("to", 7)}).node("Gather", {"table", "ids"}, {"rows"});
  w.node("SimplifiedLayerNormalization", {"rows", "scale"}, {"normed"}).node("MatMul", {"normed", "weight"}, {"m"});
  w.node("Add", {"m", "addend"}, {"y"}, {}, {.name = "add"});
  w.node("ReduceSum", {"rows", "axes"}, {"sums"}, {attribute("keepdims", 0)});
  w.node("Cast", {"integers"}, {"floats"}, {attribute("to", 1)});
  w.save(folder / "model.onnx");
  data.save(folder);
}

TEST(ExternalData, AtOddAddressesOnlyWhatIsReadElementByElementIsCopied) {
  std::vector<std::vector<float>> expected;
  for (const size_t shift : {0u, 1u}) {
    const test::ScratchFolder folder("quern-graph");
    save_external_graph(shift, folder.path());
    const auto weights = [] { return cpu::memory_usage().current[static_cast<size_t>(cpu::MemoryTag::weights)]; };
    const size_t before = weights();
    Graph g(formats::OnnxFile::open(folder.path() / "model.onnx"));
    ASSERT_TRUE(g.loaded()) << g.error().message();
    const size_t copied = g.model().memory().copied_bytes;
    EXPECT_LT(copied, kTableBytes);
    EXPECT_EQ(copied, shift == 0 ? 0 : kColumns * sizeof(float));
    EXPECT_GE(weights() - before, copied);
    EXPECT_EQ(weights() == before, copied == 0);
    for (const auto& value : g.model().values()) {
      const bool aligned = reinterpret_cast<uintptr_t>(value.constant.data) % alignof(float) == 0;
      const bool addend = value.constant.shape == ops::Shape{kColumns};
      EXPECT_TRUE(value.constant.data == nullptr || aligned == (shift == 0 || addend));
    }
    ASSERT_TRUE(g.run({{{4}, {5, 0, 255, 5}}})) << g.error().message();
    const std::vector<std::vector<float>> seen = {g.output(0), g.output(1), g.output(2)};
    EXPECT_EQ(seen[2], std::vector<float>(20, -7));
    if (shift == 0) expected = seen;
    EXPECT_EQ(seen, expected);
  }
}

// ---- owners, views, copies ----

OnnxWriter shape_arithmetic() {
  auto w = writer();
  w.input("x", DType::f32, {"b", "t"}).output("total", DType::i32, {}).output("y", DType::f32, {"b", "t"});
  w.node("Constant", {}, {"one"}, {attribute("value", support::tensor("", {}, std::vector<int64_t>{1}))},
         {.name = "one"});
  w.node("Shape", {"x"}, {"s"}, {}, {.name = "shape"});
  w.node("Gather", {"s", "one"}, {"g"}, {}, {.name = "gather"});
  w.node("Cast", {"g"}, {"total"}, {attribute("to", int64_t{6})}, {.name = "cast"});
  w.node("Add", {"x", "x"}, {"y"}, {}, {.name = "add"});
  return w;
}

TEST(Owners, ArithmeticOnShapesIsPreparedAndNeverRuns) {
  Graph g(shape_arithmetic());
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{2, 3}, counting(6)}}));
  EXPECT_EQ(*g.outputs()[0].result.as<int32_t>(), 3);
  for (const char* node : {"one", "shape", "gather", "cast"}) EXPECT_EQ(g.row(node).owner, Owner::prepared) << node;
  EXPECT_EQ(g.row("add").owner, Owner::kernel);
}

TEST(Owners, EveryNodeHasAnOwnerAndKernelsNameTheirVariant) {
  Graph g(shape_arithmetic());
  for (const auto& row : g.model().report()) {
    EXPECT_FALSE(row.reason.empty());
    EXPECT_EQ(row.owner == Owner::kernel, !row.variant.empty()) << row.node;
  }
}

// x [1, S, 8] -> Split 4, 2, 2 -> first piece seen as heads of 2, normed; the others added.
OnnxWriter split_graph() {
  auto w = writer();
  w.input("x", DType::f32, {1, "s", 8}).output("y", DType::f32, {1, "n", 2}).output("z", DType::f32, {1, "s", 2});
  w.initializer("sizes", {3}, std::vector<int64_t>{4, 2, 2}).initializer("heads", {3}, std::vector<int64_t>{0, -1, 2});
  w.initializer("gamma", {2}, std::vector<float>{1, 1});
  w.node("Add", {"x", "x"}, {"x2"}, {}, {.name = "twice"});
  w.node("Split", {"x2", "sizes"}, {"a", "b", "c"}, {attribute("axis", int64_t{-1})}, {.name = "split"});
  w.node("Reshape", {"a", "heads"}, {"h"}, {}, {.name = "reshape"});
  w.node("SimplifiedLayerNormalization", {"h", "gamma"}, {"y"}, {attribute("epsilon", 0.0F)}, {.name = "norm"});
  w.node("Add", {"b", "c"}, {"z"}, {}, {.name = "sum"});
  return w;
}

TEST(Views, PiecesOfOneRowAreViewsWithoutCopies) {
  Graph g(split_graph());
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{1, 1, 8}, counting(8)}}));
  EXPECT_EQ(g.output(1), (std::vector<float>{2 * (5 + 7), 2 * (6 + 8)}));
  EXPECT_EQ(g.runner().counters().bytes_copied, 0u);
}

TEST(Views, StridedPiecesAreCopiedOnlyForConsumersThatNeedThem) {
  Graph g(split_graph());
  ASSERT_TRUE(g.run({{{1, 3, 8}, counting(24)}}));
  EXPECT_EQ(g.output(1), (std::vector<float>{24, 28, 56, 60, 88, 92}));
  // Rows of the normed heads: (1,2) (3,4) | (9,10) (11,12) | (17,18) (19,20), doubled; the norm cancels the factor.
  const auto y = g.output(0);
  ASSERT_EQ(g.shape(0), (ops::Shape{1, 6, 2}));
  EXPECT_FLOAT_EQ(y[0] / y[1], 0.5F);
  EXPECT_FLOAT_EQ(y[4] / y[5], 0.9F);
  EXPECT_FLOAT_EQ(y[10] / y[11], 0.95F);
  // b and c, three rows of two floats each; a stays a strided view.
  EXPECT_EQ(g.runner().counters().bytes_copied, 2u * 3 * 2 * sizeof(float));
  EXPECT_EQ(g.row("split").owner, Owner::kernel);
  EXPECT_EQ(g.row("reshape").owner, Owner::view);
  EXPECT_EQ(g.row("reshape").bytes_copied, 0u);
}

TEST(Views, AViewKeepsItsStorageAliveWhenItsSourceIsDeadAndIsReadLate) {
  // a = x + x; v = Reshape(a); several nodes that could reuse a's place; v is read at the end.
  auto w = writer();
  w.input("x", DType::f32, {4}).output("y", DType::f32, {2, 2});
  w.initializer("shape", {2}, std::vector<int64_t>{2, 2});
  w.node("Add", {"x", "x"}, {"a"}).node("Reshape", {"a", "shape"}, {"v"});
  w.node("Mul", {"x", "x"}, {"b"})
      .node("Mul", {"b", "b"}, {"c"})
      .node("Mul", {"c", "c"}, {"d"})
      .node("Sub", {"d", "d"}, {"e"});
  w.node("Reshape", {"e", "shape"}, {"f"}).node("Add", {"v", "f"}, {"y"});
  Graph g(w);
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{4}, {1, 2, 3, 4}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{2, 4, 6, 8}));
}

TEST(Views, AViewOfACopiedPieceKeepsThePieceAlive) {
  auto w = writer();
  w.input("x", DType::f32, {2, 4})
      .output("y", DType::f32, {1, 4})
      .initializer("sizes", {2}, std::vector<int64_t>{2, 2});
  w.initializer("flat", {2}, std::vector<int64_t>{1, 4});
  w.node("Split", {"x", "sizes"}, {"a", "b"}, {attribute("axis", int64_t{1})}).node("Reshape", {"a", "flat"}, {"v"});
  w.node("Sigmoid", {"b"}, {"t"}).node("Add", {"v", "v"}, {"y"});
  Graph g(w);
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{2, 4}, counting(8)}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{2, 4, 10, 12}));
}

TEST(Views, AReshapeThatLeavesTheGraphIsCopied) {
  auto w = writer();
  w.input("x", DType::f32, {4}).output("y", DType::f32, {2, 2}).initializer("shape", {2}, std::vector<int64_t>{2, 2});
  w.node("Reshape", {"x", "shape"}, {"y"}, {}, {.name = "r"});
  Graph g(w);
  ASSERT_TRUE(g.run({{{4}, {1, 2, 3, 4}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(g.row("r").owner, Owner::kernel);
  EXPECT_EQ(g.row("r").bytes_copied, 4 * sizeof(float));
}

TEST(Storage, AnInputIsNeverOverwrittenInPlace) {
  auto w = writer();
  w.input("x", DType::f32, {4}).output("y", DType::f32, {4});
  w.node("Sigmoid", {"x"}, {"a"}).node("Mul", {"x", "a"}, {"y"});
  Graph g(w);
  std::vector<float> x{1, 2, 3, 4};
  ASSERT_TRUE(g.run({{{4}, x}}));
  const auto first = g.output(0);
  ASSERT_TRUE(g.again());
  EXPECT_EQ(g.output(0), first);
}

TEST(Storage, AValueWithALaterReaderIsNotOverwrittenInPlace) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("y", DType::f32, {2});
  w.node("Add", {"x", "x"}, {"a"}).node("Mul", {"a", "a"}, {"b"}).node("Sub", {"b", "a"}, {"y"});
  Graph g(w);
  ASSERT_TRUE(g.run({{{2}, {1, 2}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{2, 12}));
}

TEST(Storage, TwoOutputsDoNotTakeTheSameInputsPlace) {
  auto w = writer();
  w.input("x", DType::f32, {1, 2}).output("z", DType::f32, {1, 2}).initializer("gamma", {2}, std::vector<float>{1, 1});
  w.node("Add", {"x", "x"}, {"a"});
  w.node("SkipSimplifiedLayerNormalization", {"a", "x", "gamma"}, {"y", "", "", "sum"}, {attribute("epsilon", 0.0F)},
         {.name = "norm", .domain = "com.microsoft"});
  w.node("Sub", {"sum", "y"}, {"z"});
  Graph g(w);
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{1, 2}, {1, 1}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{2, 2}));  // the sum is 3, its norm is 1
}

TEST(Storage, UnwantedOutputsAreNotAllocatedForTheCaller) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("a", DType::f32, {2}).output("y", DType::f32, {2});
  w.node("Add", {"x", "x"}, {"a"}).node("Add", {"a", "x"}, {"y"});
  Graph g(w);
  g.outputs().resize(2);
  g.outputs()[0].wanted = false;
  ASSERT_TRUE(g.run({{{2}, {1, 2}}}));
  EXPECT_EQ(g.outputs()[0].storage.size(), 0u);
  EXPECT_EQ(g.output(1), (std::vector<float>{3, 6}));
}

TEST(Storage, ConstantsAndInputsMayBeOutputs) {
  auto w = writer();
  w.input("x", DType::f32, {2}).output("x", DType::f32, {2}).output("c", DType::f32, {3});
  w.initializer("c", {3}, counting(3));
  Graph g(w);
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{2}, {7, 8}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{7, 8}));
  EXPECT_EQ(g.output(1), (std::vector<float>{1, 2, 3}));
}

// ---- runs ----

TEST(Run, ADefaultMayBeLeftOutOrOverridden) {
  auto w = writer();
  w.input("x", DType::f32, {2}).input("d", DType::f32, {2}).output("y", DType::f32, {2});
  w.initializer("d", {2}, std::vector<float>{10, 20}).node("Add", {"x", "d"}, {"y"});
  Graph g(w);
  ASSERT_TRUE(g.run({{{2}, {1, 2}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{11, 22}));
  ASSERT_TRUE(g.run({{{2}, {1, 2}}, {{2}, {5, 6}}}));
  EXPECT_EQ(g.output(0), (std::vector<float>{6, 8}));
}

TEST(Run, MissingInputsWrongRanksAndExtentsAreBadRequestsWithTheName) {
  auto w = writer();
  w.input("x", DType::f32, {"n", 2}).output("y", DType::f32, {"n", 2}).node("Add", {"x", "x"}, {"y"});
  Graph g(w);
  EXPECT_FALSE(g.run({}));
  EXPECT_EQ(g.error().code, Errc::bad_request);
  EXPECT_NE(g.error().message().find("'x'"), std::string::npos);
  EXPECT_FALSE(g.run({{{4}, counting(4)}}));
  EXPECT_NE(g.error().message().find("[4], expected [n, 2]"), std::string::npos) << g.error().message();
  EXPECT_FALSE(g.run({{{2, 3}, counting(6)}}));
  EXPECT_TRUE(g.run({{{3, 2}, counting(6)}}));
  EXPECT_TRUE(g.run({{{0, 2}, {}}}));
}

TEST(Run, SizesMayGrowAndShrinkBetweenRuns) {
  Graph g(split_graph());
  for (int64_t s : {1, 7, 3, 64, 1, 0, 5}) {
    ASSERT_TRUE(g.run({{{1, s, 8}, counting(static_cast<size_t>(s) * 8)}})) << g.error().message();
    const auto z = g.output(1);
    for (size_t r = 0; r < static_cast<size_t>(s); r++) EXPECT_EQ(z[2 * r], 2 * (r * 8 + 5 + r * 8 + 7)) << s;
  }
}

TEST(Run, ABoundOutputIsWrittenInPlaceAndTooSmallOnesAreRefused) {
  auto w = writer();
  w.input("x", DType::f32, {"n"}).output("y", DType::f32, {"n"}).node("Add", {"x", "x"}, {"y"});
  Graph g(w);
  g.outputs().resize(1);
  std::vector<float> memory(3, -1);
  g.outputs()[0].bound = memory.data();
  g.outputs()[0].bound_bytes = 2 * sizeof(float);
  EXPECT_FALSE(g.run({{{3}, counting(3)}}));
  EXPECT_EQ(memory[0], -1);
  ASSERT_TRUE(g.run({{{2}, counting(2)}}));
  EXPECT_EQ(memory, (std::vector<float>{2, 4, -1}));
}

OnnxWriter matmul_graph() {
  auto w = writer();
  w.input("x", DType::f32, {1, "s", 2}).output("y", DType::f32, {1, "s", 3});
  w.initializer("w", {2, 3}, std::vector<float>{1, 0, 1, 0, 1, 1});
  w.node("Add", {"x", "x"}, {"x2"}).node("MatMul", {"x2", "w"}, {"y"});
  return w;
}

TEST(Run, WantedRowsAreTheSameBitsAsThoseOfAWholeRun) {
  Graph g(matmul_graph());
  ASSERT_TRUE(g.loaded()) << g.error().message();
  ASSERT_TRUE(g.run({{{1, 5, 2}, counting(10)}}));
  const auto whole = g.output(0);
  for (int64_t first = 0; first <= 5; first++) {
    for (int64_t count = 0; first + count <= 5; count++) {
      ASSERT_TRUE(g.run({{{1, 5, 2}, counting(10)}}, RowRange{0, first, count}));
      ASSERT_EQ(g.shape(0), (ops::Shape{1, count, 3}));
      EXPECT_EQ(g.output(0), std::vector<float>(whole.begin() + first * 3, whole.begin() + (first + count) * 3));
    }
  }
  EXPECT_FALSE(g.run({{{1, 5, 2}, counting(10)}}, RowRange{0, 3, 3}));
  EXPECT_EQ(g.error().code, Errc::bad_request);
}

TEST(Run, TheSteadyStateAllocatesNothing) {
  Graph g(split_graph(), 2);
  ASSERT_TRUE(g.run({{{1, 4, 8}, counting(32)}}));
  ASSERT_TRUE(g.again());
  const auto usage = cpu::memory_usage();
  const int64_t allocations = support::allocations_in([&] {
    for (int i = 0; i < 100; i++) ASSERT_TRUE(g.again());
  });
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(cpu::memory_usage().allocations, usage.allocations);
}

}  // namespace
}  // namespace quern::graph
