// SPDX-License-Identifier: Apache-2.0
// One case per reason to refuse an ONNX file: each must end in an error that names the cause, never in a crash, a huge
// allocation or an opened model.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "formats/onnx/onnx_file.h"
#include "tests/support/onnx_writer.h"

namespace quern::formats {
namespace {

namespace fs = std::filesystem;
using namespace quern::support;

class OnnxRefusal : public ::testing::Test {
 protected:
  OnnxRefusal() {
    std::string pattern = (fs::temp_directory_path() / "quern_onnx_XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    folder_ = root_ / "model";
    fs::create_directory(folder_);
    model_.opset("", 21);
  }
  ~OnnxRefusal() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  // A file of `bytes` bytes.
  static void put(const fs::path& path, size_t bytes) {
    std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
  }

  void expect_refused(Errc code, std::string_view cause) {
    model_.save(folder_ / "model.onnx");
    const Result<OnnxFile> file = OnnxFile::open(folder_ / "model.onnx");
    ASSERT_FALSE(file.ok()) << "opened, but should be refused for: " << cause;
    EXPECT_EQ(file.error().code, code) << file.error().message();
    EXPECT_NE(file.error().what.find(cause), std::string::npos) << file.error().message();
    EXPECT_NE(file.error().where.find("model.onnx"), std::string::npos) << file.error().message();
  }
  void expect_damaged(std::string_view cause) { expect_refused(Errc::bad_model, cause); }

  // The same for a tensor whose bytes lie in the file "d" of 100 bytes.
  void expect_external_damaged(std::string_view location, std::optional<std::string> offset,
                               std::optional<std::string> length, std::string_view cause) {
    put(folder_ / "d", 100);
    model_.initializer(external_tensor("w", DType::f32, {5}, location, std::move(offset), std::move(length)));
    expect_damaged(cause);
  }

  void expect_undecodable(const WireWriter& tensor_proto, std::string_view cause) {
    model_.initializer(tensor_proto);
    const Result<OnnxFile> file = OnnxFile::from_bytes(model_.bytes(), std::nullopt);
    ASSERT_TRUE(file.ok()) << file.error().message();
    const auto bytes = file->bytes_of(file->graph().initializers[0]);
    ASSERT_FALSE(bytes.ok());
    EXPECT_EQ(bytes.error().code, Errc::bad_model);
    EXPECT_NE(bytes.error().what.find(cause), std::string::npos) << bytes.error().message();
  }

  fs::path root_;
  fs::path folder_;
  OnnxWriter model_;
};

TEST_F(OnnxRefusal, EveryPrefixOfAModel) {
  model_.input("x", DType::f32, {"batch", 4}).output("y", DType::f32, {"batch", 2});
  model_.initializer("w", {4, 2}, std::vector<float>(8));
  model_.initializer(tensor_head("typed", 7, {2}).varint(7, 300).varint(7, -1));
  model_.node("MatMul", {"x", "w"}, {"y"}, {attribute("alpha", 0.5), attribute("perm", std::vector<int64_t>{0, 1})});
  const std::vector<std::byte> whole = model_.bytes();
  ASSERT_TRUE(OnnxFile::from_bytes(whole, std::nullopt).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const Result<OnnxFile> file =
        OnnxFile::from_bytes({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)}, std::nullopt);
    ASSERT_FALSE(file.ok()) << "opened with " << size << " of " << whole.size() << " bytes";
    EXPECT_EQ(file.error().code, Errc::bad_model);
    EXPECT_FALSE(file.error().where.empty());
  }
}

TEST_F(OnnxRefusal, EveryChangedByteEndsOneWayOrTheOther) {
  model_.input("x", DType::f32, {"batch", 4}).output("y", DType::f32, {"batch", 2});
  model_.initializer("w", {4, 2}, std::vector<float>(8));
  model_.initializer(tensor_head("typed", 7, {2}).varint(7, 300).varint(7, -1));
  model_.node("MatMul", {"x", "w"}, {"y"}, {attribute("alpha", 0.5)});
  std::vector<std::byte> bytes = model_.bytes();
  for (std::byte& b : bytes) {
    const std::byte original = b;
    for (int value = 0; value < 256; ++value) {
      b = static_cast<std::byte>(value);
      const Result<OnnxFile> file = OnnxFile::from_bytes(bytes, std::nullopt);
      if (!file.ok()) continue;
      for (const TensorProto& t : file->graph().initializers) (void)file->bytes_of(t).ok();
    }
    b = original;
  }
}

TEST_F(OnnxRefusal, MissingAndEmptyFilesAndFolders) {
  EXPECT_EQ(OnnxFile::open(folder_ / "absent.onnx").error().code, Errc::bad_model);
  put(folder_ / "empty.onnx", 0);
  EXPECT_EQ(OnnxFile::open(folder_ / "empty.onnx").error().code, Errc::bad_model);
  EXPECT_EQ(OnnxFile::open(folder_).error().code, Errc::io);
  EXPECT_EQ(OnnxFile::from_bytes({}, std::nullopt).error().code, Errc::bad_model);
}

TEST_F(OnnxRefusal, NumberOfMoreThan64Bits) {
  WireWriter w;
  w.tag(9, 0);
  for (int i = 0; i < 9; ++i) w.raw_value(uint8_t{0xff});
  model_.model_extra(w.raw_value(uint8_t{0x02}));
  expect_damaged("more than 64 bits");
}

TEST_F(OnnxRefusal, NumberThatNeverEnds) {
  WireWriter w;
  w.tag(9, 0);
  for (int i = 0; i < 11; ++i) w.raw_value(uint8_t{0x80});
  model_.model_extra(w);
  expect_damaged("more than 64 bits");
}

TEST_F(OnnxRefusal, LengthBeyondTheMessage) {
  model_.graph_extra(WireWriter().tag(10, 2).raw_varint(1000));
  expect_damaged("needs 1000 bytes");
}

TEST_F(OnnxRefusal, LengthOneByteBeyondTheMessageButInsideOfTheFile) {
  model_.graph_extra(WireWriter().message(1, WireWriter().text(4, "Relu").tag(1, 2).raw_varint(1)));
  expect_damaged("needs 1 bytes, but its message has 0 left");
}

TEST_F(OnnxRefusal, LengthBeyondTheAddressSpace) {
  model_.model_extra(WireWriter().tag(6, 2).raw_varint(~uint64_t{0}));
  expect_damaged("needs 18446744073709551615 bytes");
}

TEST_F(OnnxRefusal, GroupsAndReservedWireTypes) {
  model_.model_extra(WireWriter().tag(6, 3));
  expect_damaged("wire type 3");
}

TEST_F(OnnxRefusal, FieldNumberZero) {
  model_.model_extra(WireWriter().tag(0, 0).raw_varint(1));
  expect_damaged("field tag 0");
}

TEST_F(OnnxRefusal, KnownFieldOfAnotherWireType) {
  model_.model_extra(WireWriter().varint(2, 5));
  expect_damaged("wire type 0");
}

TEST_F(OnnxRefusal, IrVersionBeforeOperatorSetsOrFromTheFuture) {
  model_.ir_version(2);
  expect_refused(Errc::unsupported, "IR version is 2");
  model_.ir_version(15);
  expect_refused(Errc::unsupported, "IR version is 15");
}

TEST_F(OnnxRefusal, NoOperatorSet) {
  model_ = OnnxWriter();
  expect_damaged("no operator set");
}

TEST_F(OnnxRefusal, TwoVersionsOfOneOperatorSet) {
  model_.opset("ai.onnx", 22);
  expect_damaged("21 and 22");
}

TEST_F(OnnxRefusal, OperatorSetVersionZero) {
  model_.opset("com.microsoft", 0);
  expect_damaged("version 0");
}

TEST_F(OnnxRefusal, TwoGraphs) {
  model_.model_extra(WireWriter().message(7, WireWriter()));
  expect_damaged("graph is there twice");
}

TEST_F(OnnxRefusal, ModelLocalFunctions) {
  model_.model_extra(WireWriter().message(25, WireWriter()));
  expect_refused(Errc::unsupported, "functions");
}

TEST_F(OnnxRefusal, FunctionOverloads) {
  model_.graph_extra(WireWriter().message(1, WireWriter().text(4, "Relu").text(8, "mine")));
  expect_refused(Errc::unsupported, "overload 'mine'");
}

TEST_F(OnnxRefusal, SparseInitializers) {
  model_.graph_extra(WireWriter().message(15, WireWriter()));
  expect_refused(Errc::unsupported, "sparse");
}

TEST_F(OnnxRefusal, SegmentedTensor) {
  model_.initializer(tensor_head("w", 1, {0}).message(3, WireWriter()));
  expect_refused(Errc::unsupported, "segments");
}

TEST_F(OnnxRefusal, NodeWithoutOperator) {
  model_.node("", {"x"}, {"y"}, {}, {.name = "lonely", .domain = ""});
  expect_damaged("'lonely' has no operator type");
}

TEST_F(OnnxRefusal, AttributeTwice) {
  model_.node("Relu", {"x"}, {"y"}, {attribute("axis", 1), attribute("b", 1), attribute("axis", 1)});
  expect_damaged("attribute 'axis' twice");
}

TEST_F(OnnxRefusal, AttributeWithoutName) {
  model_.node("Relu", {"x"}, {"y"}, {attribute("", 1)});
  expect_damaged("no name");
}

TEST_F(OnnxRefusal, AttributeOfUnknownType) {
  model_.node("Relu", {"x"}, {"y"}, {WireWriter().text(1, "a").varint(20, 15)});
  expect_damaged("has type 15");
}

TEST_F(OnnxRefusal, AttributeWithoutType) {
  model_.node("Relu", {"x"}, {"y"}, {WireWriter().text(1, "a").varint(3, 1)});
  expect_damaged("has type 0");
}

TEST_F(OnnxRefusal, FloatAttributeHoldingAnInteger) {
  model_.node("Relu", {"x"}, {"y"}, {WireWriter().text(1, "a").varint(3, 1).varint(20, 1)});
  expect_damaged("says it is FLOAT");
}

TEST_F(OnnxRefusal, TensorAttributeWithoutTensor) {
  model_.node("Constant", {}, {"y"}, {WireWriter().text(1, "value").varint(20, 4)});
  expect_damaged("says it is TENSOR");
}

TEST_F(OnnxRefusal, AttributeReferenceOutsideOfAFunction) {
  model_.node("Relu", {"x"}, {"y"}, {WireWriter().text(1, "a").text(21, "outer").varint(20, 2)});
  expect_damaged("refers to attribute 'outer'");
}

TEST_F(OnnxRefusal, RawDataOfAnotherSize) {
  model_.initializer("w", {4, 2}, std::vector<float>(7));
  expect_damaged("holds 28 bytes, but its type and shape need 32");
}

TEST_F(OnnxRefusal, RawDataTooLong) {
  model_.initializer("w", {3}, std::vector<float>(4));
  expect_damaged("holds 16 bytes, but its type and shape need 12");
}

TEST_F(OnnxRefusal, NoDataAtAll) {
  model_.initializer(tensor_head("w", 1, {1}));
  expect_damaged("holds 0 bytes");
}

TEST_F(OnnxRefusal, NegativeDimension) {
  model_.initializer(tensor_head("w", 1, {2, -1}));
  expect_damaged("dimension -1");
}

TEST_F(OnnxRefusal, ShapeWhoseProductOverflows) {
  model_.initializer(tensor_head("w", 1, {int64_t{1} << 32, int64_t{1} << 32}));
  expect_damaged("not a 64-bit number");
}

TEST_F(OnnxRefusal, ShapeThatOverflowsBesidesAZero) {
  model_.initializer(tensor_head("w", 1, {0, int64_t{1} << 32, int64_t{1} << 32}));
  expect_damaged("not a 64-bit number");
}

TEST_F(OnnxRefusal, ShapeWhoseBytesOverflow) {
  model_.initializer(tensor_head("w", 1, {int64_t{1} << 62}));
  expect_damaged("not a 64-bit number");
}

TEST_F(OnnxRefusal, RawAndTypedData) {
  model_.initializer(tensor_head("w", 7, {1}).varint(7, 1).text(9, "12345678"));
  expect_damaged("raw and typed data");
}

TEST_F(OnnxRefusal, TwoTypedFields) {
  model_.initializer(tensor_head("w", 7, {1}).varint(7, 1).varint(5, 1));
  expect_damaged("fields 7 and 5");
}

TEST_F(OnnxRefusal, TypedFieldOfAnotherType) {
  model_.initializer(tensor_head("w", 7, {1}).varint(5, 1));
  expect_damaged("in field 5, which is not for this type");
}

TEST_F(OnnxRefusal, TooFewTypedValues) {
  expect_undecodable(tensor_head("w", 7, {3}).varint(7, 1).varint(7, 1), "holds 2 values, but its shape needs 3");
}

TEST_F(OnnxRefusal, TooManyTypedValues) {
  expect_undecodable(tensor_head("w", 7, {1}).varint(7, 1).varint(7, 1), "more than 1 values");
}

TEST_F(OnnxRefusal, TypedShapeThatAsksForMoreThanTheFileCanHold) {
  expect_undecodable(tensor_head("w", 7, {int64_t{1} << 40}).varint(7, 1), "less than 1099511627776 values");
}

TEST_F(OnnxRefusal, TypedValueOutsideOfItsType) {
  expect_undecodable(tensor_head("w", 2, {1}).varint(5, 256), "value 0 is 256");
}

TEST_F(OnnxRefusal, TypedNumberCutShort) {
  expect_undecodable(tensor_head("w", 1, {1}).text(4, "abc"), "ends inside a number");
}

TEST_F(OnnxRefusal, DataLocationOutOfRange) {
  model_.initializer(tensor_head("w", 1, {0}).varint(14, 2));
  expect_damaged("data location");
}

TEST_F(OnnxRefusal, ExternalWithInlineData) {
  model_.initializer(external_tensor("w", DType::f32, {1}, "d", "0", "4").text(9, "1234"));
  expect_damaged("both inside and outside");
}

TEST_F(OnnxRefusal, ExternalWithoutLocation) {
  model_.initializer(tensor_head("w", 1, {1}).varint(14, 1));
  expect_damaged("no location");
}

TEST_F(OnnxRefusal, ExternalLocationTwice) {
  model_.initializer(
      external_tensor("w", DType::f32, {1}, "d", "0", "4").message(13, WireWriter().text(1, "location").text(2, "e")));
  expect_damaged("location twice");
}

TEST_F(OnnxRefusal, ExternalAbsoluteLocation) {
  put(folder_ / "d", 20);
  model_.initializer(external_tensor("w", DType::f32, {5}, (folder_ / "d").string(), "0", "20"));
  expect_damaged("absolute");
}

TEST_F(OnnxRefusal, ExternalLocationAboveTheFolder) {
  put(root_ / "secret", 20);
  expect_external_damaged("../secret", "0", "20", "outside of the model's folder");
}

TEST_F(OnnxRefusal, ExternalLocationInASiblingWithTheFolderNameAsPrefix) {
  fs::create_directory(root_ / "model2");
  put(root_ / "model2" / "d", 20);
  expect_external_damaged("../model2/d", "0", "20", "outside of the model's folder");
}

TEST_F(OnnxRefusal, ExternalLocationThroughALinkToAFile) {
  put(root_ / "secret", 20);
  fs::create_symlink("../secret", folder_ / "link");
  expect_external_damaged("link", "0", "20", "outside of the model's folder");
}

TEST_F(OnnxRefusal, ExternalLocationThroughALinkToAFolder) {
  put(root_ / "secret", 20);
  fs::create_directory_symlink(root_, folder_ / "out");
  expect_external_damaged("out/secret", "0", "20", "outside of the model's folder");
}

TEST_F(OnnxRefusal, ExternalLocationThroughALinkIntoNowhere) {
  fs::create_symlink("../absent", folder_ / "link");
  expect_external_damaged("link", "0", "20", "missing");
}

TEST_F(OnnxRefusal, ExternalLocationThroughACircleOfLinks) {
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  expect_external_damaged("a", "0", "20", "cannot be resolved");
}

TEST_F(OnnxRefusal, ExternalFileMissing) { expect_external_damaged("absent", "0", "20", "missing"); }

TEST_F(OnnxRefusal, ExternalLocationOfAFolder) {
  fs::create_directory(folder_ / "sub");
  expect_external_damaged("sub", "0", "20", "not a regular file");
}

TEST_F(OnnxRefusal, ExternalLocationEmpty) { expect_external_damaged("", "0", "20", "not a file name"); }

TEST_F(OnnxRefusal, ExternalLocationWithNul) {
  expect_external_damaged(std::string_view("d\0x", 3), "0", "20", "not a file name");
}

TEST_F(OnnxRefusal, ExternalOffsetNegative) {
  expect_external_damaged("d", "-4", "20", "offset of an external tensor");
}

TEST_F(OnnxRefusal, ExternalOffsetNotANumber) { expect_external_damaged("d", "4x", "20", "'4x'"); }

TEST_F(OnnxRefusal, ExternalOffsetEmpty) { expect_external_damaged("d", "", "20", "offset of an external tensor"); }

TEST_F(OnnxRefusal, ExternalOffsetBeyond64Bits) {
  expect_external_damaged("d", "18446744073709551616", "20", "offset of an external tensor");
}

TEST_F(OnnxRefusal, ExternalOffsetBeyondTheFile) { expect_external_damaged("d", "101", std::nullopt, "has 100"); }

TEST_F(OnnxRefusal, ExternalEndBeyondTheFile) { expect_external_damaged("d", "81", "20", "has 100"); }

TEST_F(OnnxRefusal, ExternalOffsetWhoseEndWrapsAround) {
  expect_external_damaged("d", "9223372036854775807", "20", "has 100");
}

TEST_F(OnnxRefusal, ExternalLengthNegative) {
  expect_external_damaged("d", "0", "-20", "length of an external tensor");
}

TEST_F(OnnxRefusal, ExternalLengthNotANumber) {
  expect_external_damaged("d", "0", "0x14", "length of an external tensor");
}

TEST_F(OnnxRefusal, ExternalLengthOfAnotherShape) {
  expect_external_damaged("d", "0", "24", "length is 24 bytes, but type and shape need 20");
}

TEST_F(OnnxRefusal, ExternalFileCutShort) {
  ExternalFile data("d");
  model_.initializer(data.tensor("w", {5}, std::vector<float>(5)));
  data.bytes().pop_back();
  data.save(folder_);
  expect_damaged("has 19");
}

TEST_F(OnnxRefusal, ExternalPartialOverlapInAnyOrder) {
  put(folder_ / "d", 100);
  model_.initializer(external_tensor("late", DType::u8, {10}, "d", "50", "10"));
  model_.initializer(external_tensor("early", DType::u8, {51}, "./d", "0", "51"));
  expect_damaged("overlap those of tensor 'early'");
}

TEST_F(OnnxRefusal, ExternalOverlapWithEqualStart) {
  put(folder_ / "d", 100);
  model_.initializer(external_tensor("a", DType::u8, {10}, "d", "0", "10"));
  model_.initializer(external_tensor("b", DType::u8, {11}, "d", "0", "11"));
  expect_damaged("overlap");
}

TEST_F(OnnxRefusal, ExternalOverlapOfAConstantsTensor) {
  put(folder_ / "d", 100);
  model_.initializer(external_tensor("a", DType::u8, {10}, "d", "0", "10"));
  model_.node("Constant", {}, {"c"}, {attribute("value", external_tensor("b", DType::u8, {2}, "d", "9", "2"))});
  expect_damaged("overlap");
}

TEST_F(OnnxRefusal, ExternalOfAnUnknownTypeBeyondTheFile) {
  put(folder_ / "d", 100);
  WireWriter w = tensor_head("w", 99, {5});
  w.message(13, WireWriter().text(1, "location").text(2, "d"))
      .message(13, WireWriter().text(1, "length").text(2, "101"));
  model_.initializer(w.varint(14, 1));
  expect_damaged("has 100");
}

TEST_F(OnnxRefusal, ExternalDataOfAModelInMemoryWithoutAFolder) {
  model_.initializer(external_tensor("w", DType::f32, {1}, "d", "0", "4"));
  const Result<OnnxFile> file = OnnxFile::from_bytes(model_.bytes(), std::nullopt);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Errc::bad_request);
  EXPECT_NE(file.error().what.find("'d'"), std::string::npos) << file.error().message();
}

TEST_F(OnnxRefusal, CrowdOfEmptyNodesIsRefusedBeforeItTakesMemory) {
  WireWriter crowd;
  for (size_t i = 0; i < 2'000'000; ++i) crowd.tag(13, 2).raw_varint(0);
  model_.graph_extra(crowd);
  expect_damaged("MiB of memory");
}

}  // namespace
}  // namespace quern::formats
