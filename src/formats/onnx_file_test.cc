// SPDX-License-Identifier: Apache-2.0
// What must hold of opening an ONNX file that is right, with its data inline, typed, external or tied.
// Files that are wrong: onnx_refusal_test.cc.
#include "formats/onnx/onnx_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/support/onnx_writer.h"

namespace quern::formats {
namespace {

namespace fs = std::filesystem;
using namespace quern::support;
using Storage = TensorProto::Storage;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "quern_onnx_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

template <class T>
std::vector<T> values_of(const OnnxFile& file, const TensorProto& tensor) {
  const Result<std::span<const std::byte>> bytes = file.bytes_of(tensor);
  EXPECT_TRUE(bytes.ok()) << (bytes.ok() ? "" : bytes.error().message());
  if (!bytes.ok()) return {};
  EXPECT_EQ(bytes->size() % sizeof(T), 0u);
  std::vector<T> out(bytes->size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes->data(), bytes->size());
  return out;
}

OnnxFile opened(const OnnxWriter& model) {
  Result<OnnxFile> file = OnnxFile::from_bytes(model.bytes(), std::nullopt);
  if (!file.ok()) ADD_FAILURE() << file.error().message();
  return std::move(file).value();
}

OnnxWriter with_opset() {
  OnnxWriter model;
  model.opset("", 21);
  return model;
}

TEST(OnnxFile, StructureIsAsWritten) {
  OnnxWriter model;
  model.ir_version(10).opset("ai.onnx", 26).opset("com.microsoft", 1);
  model.input("x", DType::f32, {"batch", 4, ""}).input(value_info("rankless", 7, std::nullopt));
  model.output("y", DType::i64, {}).annotate("mid", DType::f16, {-1, 0});
  model.initializer("w", {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  model.node("GroupQueryAttention", {"x", "", "w", "", ""}, {"a", "", "b"},
             {attribute("num_heads", 16), attribute("scale", 0.5), attribute("mode", "linear"),
              attribute("perm", std::vector<int64_t>{0, -1, 2}), attribute("alphas", std::vector<float>{0.25f, -3.0f}),
              attribute("words", std::vector<std::string>{"a", ""}),
              attribute("value", tensor("c", {2}, std::vector<int64_t>{7, -8}))},
             {.name = "/model/layers.0/attn [0, -1, 128]", .domain = "com.microsoft"});
  model.node("Relu", {"a"}, {"y"}, {}, {.name = "", .domain = "ai.onnx"});
  const OnnxFile file = opened(model);

  EXPECT_EQ(file.model().ir_version, 10);
  EXPECT_EQ(file.model().producer_name, "quern tests");
  EXPECT_EQ(file.opset(""), 26);
  EXPECT_EQ(file.opset("ai.onnx"), 26);
  EXPECT_EQ(file.opset("com.microsoft"), 1);
  EXPECT_EQ(file.opset("ai.onnx.ml"), std::nullopt);

  const GraphProto& graph = file.graph();
  EXPECT_EQ(graph.name, "main");
  ASSERT_EQ(graph.inputs.size(), 2u);
  const ValueInfoProto& x = graph.inputs[0];
  EXPECT_EQ(x.name, "x");
  EXPECT_TRUE(x.is_tensor);
  EXPECT_EQ(x.dtype, DType::f32);
  EXPECT_TRUE(x.has_shape);
  ASSERT_EQ(x.dims.size(), 3u);
  EXPECT_EQ(x.dims[0].kind, DimProto::Kind::kSymbol);
  EXPECT_EQ(x.dims[0].symbol, "batch");
  EXPECT_EQ(x.dims[1].kind, DimProto::Kind::kValue);
  EXPECT_EQ(x.dims[1].value, 4);
  EXPECT_EQ(x.dims[2].kind, DimProto::Kind::kUnknown);
  EXPECT_FALSE(graph.inputs[1].has_shape);
  ASSERT_EQ(graph.outputs.size(), 1u);
  EXPECT_TRUE(graph.outputs[0].has_shape);
  EXPECT_TRUE(graph.outputs[0].dims.empty());
  ASSERT_EQ(graph.value_info.size(), 1u);
  EXPECT_EQ(graph.value_info[0].dims[0].kind, DimProto::Kind::kUnknown) << "a negative dimension is not a size";
  EXPECT_EQ(graph.value_info[0].dims[1].kind, DimProto::Kind::kValue);

  ASSERT_EQ(graph.nodes.size(), 2u);
  const NodeProto& node = graph.nodes[0];
  EXPECT_EQ(node.name, "/model/layers.0/attn [0, -1, 128]");
  EXPECT_EQ(node.op_type, "GroupQueryAttention");
  EXPECT_EQ(node.domain, "com.microsoft");
  EXPECT_EQ(node.inputs, (std::vector<std::string_view>{"x", "", "w", "", ""}));
  EXPECT_EQ(node.outputs, (std::vector<std::string_view>{"a", "", "b"}));
  ASSERT_EQ(node.attributes.size(), 7u);
  EXPECT_EQ(node.attribute("num_heads")->type, AttributeType::kInt);
  EXPECT_EQ(node.attribute("num_heads")->i, 16);
  EXPECT_EQ(node.attribute("scale")->type, AttributeType::kFloat);
  EXPECT_EQ(node.attribute("scale")->f, 0.5f);
  EXPECT_EQ(node.attribute("mode")->s, "linear");
  EXPECT_EQ(node.attribute("perm")->ints, (std::vector<int64_t>{0, -1, 2}));
  EXPECT_EQ(node.attribute("alphas")->floats, (std::vector<float>{0.25f, -3.0f}));
  EXPECT_EQ(node.attribute("words")->strings, (std::vector<std::string_view>{"a", ""}));
  ASSERT_NE(node.attribute("value")->tensor, nullptr);
  EXPECT_EQ(values_of<int64_t>(file, *node.attribute("value")->tensor), (std::vector<int64_t>{7, -8}));
  EXPECT_EQ(node.attribute("missing"), nullptr);
  EXPECT_EQ(graph.nodes[1].domain, "");

  ASSERT_EQ(graph.initializers.size(), 1u);
  const TensorProto& w = graph.initializers[0];
  EXPECT_EQ(w.dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w.elements, 6);
  EXPECT_EQ(w.storage, Storage::kRaw);
  EXPECT_EQ(values_of<float>(file, w), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(OnnxFile, GraphAttributeKeepsItsTypeAlone) {
  OnnxWriter model = with_opset();
  model.node("If", {"c"}, {"y"}, {WireWriter().text(1, "then_branch").message(6, WireWriter()).varint(20, 5)});
  const OnnxFile file = opened(model);
  EXPECT_EQ(file.graph().nodes[0].attributes[0].type, AttributeType::kGraph);
  EXPECT_EQ(attribute_type_name(AttributeType::kGraph), "GRAPH");
}

TEST(OnnxFile, RawDataIsNotCopied) {
  OnnxWriter model = with_opset();
  model.initializer("w", {3}, std::vector<uint8_t>{9, 8, 7});
  const OnnxFile file = opened(model);
  const TensorProto& w = file.graph().initializers[0];
  EXPECT_EQ(file.bytes_of(w).value().data(), w.raw.data());
}

TEST(OnnxFile, ViewsSurviveMoves) {
  OnnxWriter model = with_opset();
  model.initializer("weight with a name beyond any small buffer", {1}, std::vector<uint8_t>{9});
  OnnxFile first = opened(model);
  const TensorProto* tensor = &first.graph().initializers[0];
  OnnxFile second = std::move(first);
  EXPECT_EQ(tensor, &second.graph().initializers[0]);
  EXPECT_EQ(tensor->name, "weight with a name beyond any small buffer");
  EXPECT_EQ(values_of<uint8_t>(second, *tensor), (std::vector<uint8_t>{9}));
}

TEST(OnnxFile, TypedFieldsAreDecodedPackedOrNot) {
  OnnxWriter model = with_opset();
  const auto packed = [](std::initializer_list<int64_t> numbers) {
    WireWriter w;
    for (const int64_t n : numbers) w.raw_varint(static_cast<uint64_t>(n));
    return w;
  };
  model.initializer(
      tensor_head("f32", 1, {3}).fixed32(4, 1.5f).message(4, WireWriter().raw_value(2.5f).raw_value(-0.f)));
  model.initializer(tensor_head("i64", 7, {2}).message(7, packed({-1, int64_t{1} << 40})));
  model.initializer(tensor_head("i32", 6, {3}).varint(5, -5).varint(5, 6).message(5, packed({2147483647})));
  model.initializer(tensor_head("i8", 3, {2}).message(5, packed({-128, 127})));
  model.initializer(tensor_head("u8", 2, {2}).message(5, packed({0, 255})));
  model.initializer(tensor_head("f16", 10, {1}).message(5, packed({0x3c00})));
  model.initializer(tensor_head("u4", 21, {3}).message(5, packed({0x21, 0x03})));
  model.initializer(tensor_head("f64", 11, {2}).fixed64(10, 0.1).message(10, WireWriter().raw_value(-0.2)));
  model.initializer(tensor_head("u64", 13, {1}).message(11, packed({-1})));
  model.initializer(tensor_head("u32", 12, {1}).message(11, packed({4294967295})));
  model.initializer(tensor_head("bool", 9, {2}).message(5, packed({1, 0})));
  const OnnxFile file = opened(model);
  const std::vector<TensorProto>& t = file.graph().initializers;
  EXPECT_EQ(values_of<float>(file, t[0]), (std::vector<float>{1.5f, 2.5f, -0.f}));
  EXPECT_EQ(values_of<int64_t>(file, t[1]), (std::vector<int64_t>{-1, int64_t{1} << 40}));
  EXPECT_EQ(values_of<int32_t>(file, t[2]), (std::vector<int32_t>{-5, 6, 2147483647}));
  EXPECT_EQ(values_of<int8_t>(file, t[3]), (std::vector<int8_t>{-128, 127}));
  EXPECT_EQ(values_of<uint8_t>(file, t[4]), (std::vector<uint8_t>{0, 255}));
  EXPECT_EQ(values_of<uint16_t>(file, t[5]), (std::vector<uint16_t>{0x3c00}));
  EXPECT_EQ(values_of<uint8_t>(file, t[6]), (std::vector<uint8_t>{0x21, 0x03}));
  EXPECT_EQ(values_of<double>(file, t[7]), (std::vector<double>{0.1, -0.2}));
  EXPECT_EQ(values_of<uint64_t>(file, t[8]), (std::vector<uint64_t>{~uint64_t{0}}));
  EXPECT_EQ(values_of<uint32_t>(file, t[9]), (std::vector<uint32_t>{4294967295u}));
  EXPECT_EQ(values_of<uint8_t>(file, t[10]), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(file.bytes_of(t[0]).value().data(), file.bytes_of(t[0]).value().data()) << "decoded once";
}

TEST(OnnxFile, TypedFieldsMayBeAskedForByManyThreads) {
  OnnxWriter model = with_opset();
  WireWriter numbers;
  for (uint64_t i = 0; i < 2000; ++i) numbers.raw_varint(i);
  for (int i = 0; i < 8; ++i)
    model.initializer(tensor_head(std::string(1, static_cast<char>('a' + i)), 7, {2000}).message(7, numbers));
  const OnnxFile file = opened(model);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const TensorProto& t : file.graph().initializers) EXPECT_EQ(values_of<int64_t>(file, t)[1999], 1999);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(OnnxFile, TensorsWithoutElementsNeedNoData) {
  OnnxWriter model = with_opset();
  model.initializer(tensor_head("none", 1, {0, 4}));
  model.initializer(tensor_head("roi", 1, {0}).payload(4, {}));
  model.initializer("raw", {3, 0}, std::vector<float>{});
  model.initializer("scalar", {}, std::vector<float>{4});
  const OnnxFile file = opened(model);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(values_of<float>(file, file.graph().initializers[i]).empty());
  EXPECT_EQ(values_of<float>(file, file.graph().initializers[3]), (std::vector<float>{4}));
}

TEST(OnnxFile, NumbersMayBeWrittenLongAndUnknownFieldsAreSkipped) {
  OnnxWriter model = with_opset();
  WireWriter odd;
  odd.varint(99, 5).fixed32(100, 1).fixed64(101, 1).text(102, "later");
  WireWriter dims;  // 2 as a varint of ten bytes
  dims.tag(1, 0);
  for (const uint8_t b : std::initializer_list<uint8_t>{130, 128, 128, 128, 128, 128, 128, 128, 128, 0}) {
    dims.raw_value(b);
  }
  const uint8_t raw[2] = {3, 4};
  model.initializer(
      WireWriter().append(odd).append(dims).varint(2, 2).text(8, "w").payload(9, std::as_bytes(std::span(raw))));
  model.graph_extra(odd).model_extra(odd);
  const OnnxFile file = opened(model);
  EXPECT_EQ(file.graph().initializers[0].dims, (std::vector<int64_t>{2}));
}

TEST(OnnxFile, TypesThatQuernLacksAreRefusedByNameWhenTheirBytesAreAskedFor) {
  OnnxWriter model = with_opset();
  const uint8_t raw[2] = {3, 4};
  model.initializer(tensor_head("f8", 17, {2}).payload(9, std::as_bytes(std::span(raw))));
  model.initializer(tensor_head("text", 8, {1}).text(6, "hello"));
  model.initializer(tensor_head("later", 99, {1}).payload(9, std::as_bytes(std::span(raw))));
  const OnnxFile file = opened(model);
  const std::vector<std::string> names = {"float8e4m3fn", "string", "type 99"};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto bytes = file.bytes_of(file.graph().initializers[i]);
    ASSERT_FALSE(bytes.ok());
    EXPECT_EQ(bytes.error().code, Errc::unsupported);
    EXPECT_NE(bytes.error().what.find(names[i]), std::string::npos) << bytes.error().message();
  }
}

TEST(OnnxFile, ExternalDataIsMappedFromAnyOffset) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "weights");
  ExternalFile data("weights/all.data");
  OnnxWriter model = with_opset();
  model.initializer(data.tensor("odd", {3}, std::vector<uint8_t>{1, 2, 3}));
  model.initializer(data.tensor("unaligned", {2}, std::vector<float>{0.5f, -1.0f}));
  const std::vector<uint8_t> nibbles = {0x21, 0x43, 0x05};
  model.initializer(data.raw("int4", DType::i4, {5}, std::as_bytes(std::span(nibbles))));
  model.node("Constant", {}, {"c"}, {attribute("value", data.tensor("", {1}, std::vector<int64_t>{77}))});
  data.save(folder.path());
  model.save(folder.path() / "model.onnx");
  const Result<OnnxFile> file = OnnxFile::open(folder.path() / "model.onnx");
  ASSERT_TRUE(file.ok()) << file.error().message();
  const GraphProto& graph = file->graph();
  EXPECT_EQ(values_of<uint8_t>(*file, graph.initializers[0]), (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_EQ(values_of<float>(*file, graph.initializers[1]), (std::vector<float>{0.5f, -1.0f}));
  EXPECT_EQ(values_of<uint8_t>(*file, graph.initializers[2]), (std::vector<uint8_t>{0x21, 0x43, 0x05}));
  EXPECT_EQ(values_of<int64_t>(*file, *graph.nodes[0].attributes[0].tensor), (std::vector<int64_t>{77}));
}

TEST(OnnxFile, AbsentOffsetIsZeroAndAbsentLengthIsComputed) {
  const TemporaryFolder folder;
  ExternalFile data("d");
  (void)data.tensor("", {3}, std::vector<float>{1, 2, 3});
  data.save(folder.path());
  OnnxWriter model = with_opset();
  model.initializer(external_tensor("a", DType::f32, {1}, "d", std::nullopt, std::nullopt));
  model.initializer(external_tensor("b", DType::f32, {2}, "d", "4", std::nullopt));
  const Result<OnnxFile> file = OnnxFile::from_bytes(model.bytes(), folder.path());
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(values_of<float>(*file, file->graph().initializers[0]), (std::vector<float>{1}));
  EXPECT_EQ(values_of<float>(*file, file->graph().initializers[1]), (std::vector<float>{2, 3}));
}

TEST(OnnxFile, EqualRangesAreTiedStorageAlsoUnderTwoSpellings) {
  const TemporaryFolder folder;
  ExternalFile data("d");
  OnnxWriter model = with_opset();
  model.initializer(data.tensor("a", {2}, std::vector<float>{1, 2}));
  model.initializer(external_tensor("b", DType::u8, {8}, "./d", "0", "8"));
  model.initializer(external_tensor("empty", DType::u8, {0}, "d", "3", "0"));
  data.save(folder.path());
  const Result<OnnxFile> file = OnnxFile::from_bytes(model.bytes(), folder.path());
  ASSERT_TRUE(file.ok()) << file.error().message();
  const std::vector<TensorProto>& t = file->graph().initializers;
  EXPECT_EQ(file->bytes_of(t[0]).value().data(), file->bytes_of(t[1]).value().data());
}

TEST(OnnxFile, LinksInsideOfTheFolderAreFollowed) {
  const TemporaryFolder folder;
  ExternalFile data("real");
  (void)data.tensor("a", {1}, std::vector<float>{3});
  data.save(folder.path());
  fs::create_symlink("real", folder.path() / "link");
  OnnxWriter model = with_opset();
  model.initializer(external_tensor("a", DType::f32, {1}, "link", "0", "4"));
  model.save(folder.path() / "model.onnx");
  const Result<OnnxFile> file = OnnxFile::open(folder.path() / "model.onnx");
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(values_of<float>(*file, file->graph().initializers[0]), (std::vector<float>{3}));
}

// Resident pages of the process that belong to files, in bytes.
size_t resident_file_bytes() {
  long total = 0, resident = 0, shared = 0;
  FILE* statm = std::fopen("/proc/self/statm", "r");
  if (statm == nullptr || std::fscanf(statm, "%ld %ld %ld", &total, &resident, &shared) != 3) shared = 0;
  if (statm != nullptr) std::fclose(statm);
  return static_cast<size_t>(shared) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(OnnxFile, UnusedBytesAreNeverTouchedAndDroppedPagesStopBeingResident) {
  constexpr size_t kBytes = size_t{32} << 20;
  const TemporaryFolder folder;
  ExternalFile data("d");
  OnnxWriter model = with_opset();
  model.initializer(data.tensor("external", {int64_t{kBytes}}, std::vector<uint8_t>(kBytes, 7)));
  model.initializer("inline", {int64_t{kBytes}}, std::vector<uint8_t>(kBytes, 8));
  data.save(folder.path());
  model.save(folder.path() / "model.onnx");
  data.bytes() = {};

  const size_t before = resident_file_bytes();
  const Result<OnnxFile> file = OnnxFile::open(folder.path() / "model.onnx");
  ASSERT_TRUE(file.ok()) << file.error().message();
  // The kernel maps up to 2 MiB around a page that is read.
  constexpr size_t kSlack = size_t{8} << 20;
  EXPECT_LT(resident_file_bytes(), before + kSlack);
  for (const TensorProto& t : file->graph().initializers) {
    const std::span<const std::byte> bytes = file->bytes_of(t).value();
    size_t sum = 0;
    for (const std::byte b : bytes) sum += static_cast<size_t>(b);
    EXPECT_EQ(sum % kBytes, 0u);
    EXPECT_GT(resident_file_bytes(), before + kBytes / 2);
    file->drop_pages(bytes);
    EXPECT_LT(resident_file_bytes(), before + kSlack);
    EXPECT_EQ(bytes[kBytes / 2], bytes[0]) << "the content stays";
  }
}

TEST(OnnxFile, DroppingPagesOfAModelInMemoryKeepsItsContent) {
  constexpr size_t kBytes = size_t{1} << 20;
  OnnxWriter model = with_opset();
  model.initializer("w", {int64_t{kBytes}}, std::vector<uint8_t>(kBytes, 8));
  const OnnxFile file = opened(model);
  const std::span<const std::byte> bytes = file.bytes_of(file.graph().initializers[0]).value();
  file.drop_pages(bytes);
  for (size_t i = 0; i < kBytes; i += 512) ASSERT_EQ(bytes[i], std::byte{8});
}

}  // namespace
}  // namespace quern::formats
