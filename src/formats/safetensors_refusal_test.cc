// SPDX-License-Identifier: Apache-2.0
// One case per reason to refuse a safetensors file, an index or a folder: each must end in an error that names the
// cause, never in a crash, a huge allocation or an opened checkpoint.
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/safetensors/checkpoint.h"
#include "formats/safetensors/index.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/scratch_folder.h"

namespace quern::formats {
namespace {

using test::safetensors_bytes;
using test::safetensors_file;
using test::tensor_text;

void expect_refused_bytes(const std::string& file, std::string_view cause, Errc code = Errc::bad_model,
                          std::string_view where = "f") {
  const auto header = parse_safetensors_header(test::as_bytes(file), "f");
  ASSERT_FALSE(header.ok()) << "read, but should be refused for: " << cause;
  EXPECT_EQ(header.error().code, code) << header.error().message();
  EXPECT_NE(header.error().what.find(cause), std::string::npos) << header.error().message();
  EXPECT_EQ(header.error().where.find(where), 0u) << header.error().message();
}

// A header with the text between the braces, and a payload of `bytes` bytes.
void expect_refused(const std::string& members, size_t bytes, std::string_view cause, Errc code = Errc::bad_model,
                    std::string_view where = "f") {
  expect_refused_bytes(safetensors_file(members, std::string(bytes, 'x')), cause, code, where);
}

TEST(SafetensorsHeaderRefusal, FileWithoutALength) {
  expect_refused_bytes("", "has 0 bytes");
  expect_refused_bytes(std::string(7, '\0'), "has 7 bytes");
}

TEST(SafetensorsHeaderRefusal, LengthBeyondTheFile) {
  expect_refused_bytes(safetensors_bytes("{}", "", 3), "claims 3 bytes", Errc::bad_model, "f@0");
  expect_refused_bytes(safetensors_bytes("{}", "", UINT64_MAX), "allowed are", Errc::bad_model, "f@0");
  // 8 + length wraps around to a small number.
  expect_refused_bytes(safetensors_bytes("{}", "", UINT64_MAX - 7), "allowed are", Errc::bad_model, "f@0");
}

TEST(SafetensorsHeaderRefusal, LengthAboveTheLimit) {
  const std::string file = safetensors_file(std::string(kMaxSafetensorsHeaderBytes, ' '), "");
  expect_refused_bytes(file, "allowed are 100000000");
}

TEST(SafetensorsHeaderRefusal, TextThatIsNoObject) {
  for (const std::string_view text : {"", "[]", " {}", "1", "\"a\"", "\xef\xbb\xbf{}"}) {
    expect_refused_bytes(safetensors_bytes(text, ""), "does not start with", Errc::bad_model, "f@8");
  }
}

TEST(SafetensorsHeaderRefusal, TextThatIsNotJson) {
  expect_refused_bytes(safetensors_bytes("{", ""), "not JSON", Errc::bad_model, "f@");
  expect_refused_bytes(safetensors_bytes("{}x", ""), "not JSON", Errc::bad_model, "f@2");
  expect_refused_bytes(safetensors_bytes("{}{}", ""), "not JSON", Errc::bad_model, "f@2");
  expect_refused("\"a\":", 0, "not JSON");
  expect_refused("\"\xff\":{}", 0, "not JSON");
  expect_refused_bytes(safetensors_bytes(std::string_view("{}\0", 3), ""), "not JSON", Errc::bad_model, "f@2");
}

TEST(SafetensorsHeaderRefusal, DeepJson) {
  constexpr size_t kDeep = 1000000;
  expect_refused("\"a\":" + std::string(kDeep, '['), 0, "is a list");
  std::string objects;
  for (size_t i = 0; i < kDeep; ++i) objects += "\"a\":{";
  expect_refused(objects, 0, "unknown field");
  expect_refused(R"("a":{"shape":)" + std::string(kDeep, '['), 0, "is a list", Errc::bad_model, "f: tensor 'a': shape");
  expect_refused("\"__metadata__\":" + std::string(kDeep, '['), 0, "is a list");
}

TEST(SafetensorsHeaderRefusal, EntryThatIsNoTensor) {
  for (const char* value : {"1", "-1", "1.5", "null", "true", "\"x\"", "[]"}) {
    expect_refused(std::string("\"a\":") + value, 0, "allowed is an object", Errc::bad_model, "f: tensor 'a'");
  }
}

TEST(SafetensorsHeaderRefusal, MissingUnknownAndRepeatedFields) {
  expect_refused(R"("a":{})", 0, "the field dtype is missing", Errc::bad_model, "f: tensor 'a'");
  expect_refused(R"("a":{"dtype":"U8","data_offsets":[0,0]})", 0, "the field shape is missing");
  expect_refused(R"("a":{"dtype":"U8","shape":[0]})", 0, "the field data_offsets is missing");
  expect_refused(R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1})", 0, "unknown field 'more'");
  expect_refused(R"("a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]})", 0, "twice", Errc::bad_model,
                 "f: tensor 'a': dtype");
  expect_refused(R"("a":{"dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0]})", 0, "twice");
}

TEST(SafetensorsHeaderRefusal, FieldsOfAWrongType) {
  expect_refused(R"("a":{"dtype":3,"shape":[0],"data_offsets":[0,0]})", 0, "is a number, allowed is a text");
  expect_refused(R"("a":{"dtype":["U8"],"shape":[0],"data_offsets":[0,0]})", 0, "is a list, allowed is a text");
  expect_refused(R"("a":{"dtype":"U8","shape":0,"data_offsets":[0,0]})", 0, "allowed is a list");
  expect_refused(R"("a":{"dtype":"U8","shape":["0"],"data_offsets":[0,0]})", 0, "allowed is a whole number");
  expect_refused(R"("a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]})", 0, "negative");
  expect_refused(R"("a":{"dtype":"U8","shape":[0.0],"data_offsets":[0,0]})", 0, "not whole");
  expect_refused(R"("a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]})", 0, "not whole");
  expect_refused(R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0]})", 0, "does not hold two numbers");
  expect_refused(R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]})", 0, "more than two numbers");
  expect_refused(R"("a":{"dtype":"U8","shape":[0],"data_offsets":{"begin":0}})", 0, "is an object");
}

TEST(SafetensorsHeaderRefusal, ElementTypesThatQuernDoesNotHave) {
  for (const char* type : {"F4", "F8_E5M2", "C64", "bf16", ""}) {
    expect_refused(tensor_text("a", type, "[0]", 0, 0), 0, "those that quern has are BF16", Errc::unsupported,
                   "f: tensor 'a': dtype");
  }
}

TEST(SafetensorsHeaderRefusal, TooManyExtents) {
  expect_refused(tensor_text("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1), 1, "more than 8 extents");
}

TEST(SafetensorsHeaderRefusal, ShapesThatOverflow) {
  expect_refused(tensor_text("a", "U8", "[9223372036854775808]", 0, 0), 0, "is too large");
  expect_refused(tensor_text("a", "U8", "[4294967296,4294967296]", 0, 0), 0, "too many elements");
  expect_refused(tensor_text("a", "I64", "[2305843009213693952]", 0, 0), 0, "too many elements");
  // Refused wherever the zero stands.
  expect_refused(tensor_text("a", "U8", "[4294967296,4294967296,0]", 0, 0), 0, "too many elements");
  expect_refused(tensor_text("a", "U8", "[0,4294967296,4294967296]", 0, 0), 0, "too many elements");
}

TEST(SafetensorsHeaderRefusal, SizesThatDoNotFitTypeAndShape) {
  expect_refused(tensor_text("a", "BF16", "[3]", 0, 8), 8, "span 8 bytes, but bfloat16 of shape [3] needs 6");
  expect_refused(tensor_text("a", "F32", "[]", 0, 8), 8, "needs 4");
  expect_refused(tensor_text("a", "F32", "[0]", 0, 8), 8, "needs 0");
}

TEST(SafetensorsHeaderRefusal, OffsetsOutsideOfThePayload) {
  expect_refused(tensor_text("a", "U8", "[8]", 0, 8), 7, "allowed are two ascending numbers up to 7");
  expect_refused(tensor_text("a", "U8", "[4]", 8, 4), 8, "ascending");
  expect_refused(tensor_text("a", "U8", "[1]", UINT64_MAX, 0), 8, "ascending");
}

TEST(SafetensorsHeaderRefusal, Overlap) {
  const std::string a = tensor_text("a", "U8", "[4]", 0, 4);
  expect_refused(a + "," + tensor_text("b", "U8", "[4]", 3, 7), 7, "overlap those of tensor 'a'", Errc::bad_model,
                 "f: tensor 'b'");
  expect_refused(a + "," + tensor_text("b", "U8", "[4]", 0, 4), 4, "overlap");
  expect_refused(a + "," + tensor_text("b", "U8", "[0]", 2, 2), 4, "overlap");
}

TEST(SafetensorsHeaderRefusal, Gap) {
  const std::string a = tensor_text("a", "U8", "[4]", 0, 4);
  expect_refused(a + "," + tensor_text("b", "U8", "[3]", 5, 8), 8, "no tensor has the bytes from 4", Errc::bad_model,
                 "f: tensor 'b'");
  expect_refused(tensor_text("b", "U8", "[3]", 1, 4), 4, "no tensor has the bytes from 0");
  expect_refused(a, 5, "the tensors end at byte 4 of 5");
  expect_refused("", 1, "the tensors end at byte 0 of 1");
}

TEST(SafetensorsHeaderRefusal, NameThatIsThereTwice) {
  const std::string a = tensor_text("a", "U8", "[4]", 0, 4);
  expect_refused(a + "," + tensor_text("b", "U8", "[1]", 4, 5) + "," + tensor_text("a", "U8", "[4]", 5, 9), 9, "twice",
                 Errc::bad_model, "f: tensor 'a'");
  // Spelled in two ways.
  expect_refused(a + "," + tensor_text("\\u0061", "U8", "[4]", 4, 8), 8, "twice");
  expect_refused(R"("__metadata__":{},"__metadata__":{})", 0, "twice", Errc::bad_model, "f: __metadata__");
}

TEST(SafetensorsHeaderRefusal, MetadataThatIsNoTexts) {
  expect_refused(R"("__metadata__":"pt")", 0, "is a text, allowed is an object", Errc::bad_model, "f: __metadata__");
  expect_refused(R"("__metadata__":{"format":1})", 0, "is a number, allowed is a text");
  expect_refused(R"("__metadata__":{"format":{}})", 0, "is an object, allowed is a text");
}

// ---- index ----

void expect_index_refused(const std::string& json, std::string_view cause, std::string_view where = "i: weight_map") {
  const auto index = parse_safetensors_index(json, "i");
  ASSERT_FALSE(index.ok()) << json.substr(0, 200);
  EXPECT_EQ(index.error().code, Errc::bad_model);
  EXPECT_NE(index.error().what.find(cause), std::string::npos) << index.error().message();
  EXPECT_EQ(index.error().where.find(where), 0u) << index.error().message();
}

TEST(SafetensorsIndexRefusal, TextThatIsNotAnIndex) {
  expect_index_refused("", "not JSON", "i@0");
  expect_index_refused(R"({"weight_map":{"a":"f"})", "not JSON", "i@");
  expect_index_refused(R"({"metadata":1e999,"weight_map":{"a":"f"}})", "beyond the range", "i@12");
  expect_index_refused("[]", "is a list, allowed is an object", "i: index");
  expect_index_refused("3", "is a number", "i: index");
  expect_index_refused("{}", "missing");
  expect_index_refused(R"({"weight_map":[]})", "is a list, allowed is an object");
  expect_index_refused(R"({"weight_map":null})", "is null");
  expect_index_refused(R"({"weight_map":{"a":7}})", "is a number, allowed is the name of a file",
                       "i: weight_map: tensor 'a'");
  expect_index_refused(R"({"weight_map":{"a":{}}})", "is an object");
  expect_index_refused(R"({"weight_map":{"a":["f"]}})", "is a list");
}

TEST(SafetensorsIndexRefusal, KeyThatIsThereTwice) {
  expect_index_refused(R"({"weight_map":{"a":"f","b":"f","a":"g"}})", "'a' is there twice");
  expect_index_refused(R"({"weight_map":{},"weight_map":{}})", "twice");
}

TEST(SafetensorsIndexRefusal, DeepJson) {
  const std::string deep(1000000, '[');
  expect_index_refused(R"({"metadata":)" + deep, "nests deeper than 64", "i");
  expect_index_refused(R"({"weight_map":)" + deep, "is a list");
}

TEST(SafetensorsIndexRefusal, FileNamesThatLeaveTheFolder) {
  for (const char* name : {"", ".", "..", "../f", "/f", "sub/f", "a/../f", "..\\\\f", "f\\u0000"}) {
    expect_index_refused(R"({"weight_map":{"a":")" + std::string(name) + R"("}})", "a file in the same folder",
                         "i: weight_map: tensor 'a'");
  }
}

TEST(SafetensorsIndexRefusal, TooLarge) {
  expect_index_refused(std::string(kMaxSafetensorsIndexBytes + 1, ' '), "allowed are 100000000", "i");
}

// ---- folder ----

class SafetensorsFolderRefusal : public testing::Test {
 protected:
  SafetensorsFolderRefusal() : scratch_("safetensors") {}

  void expect_refused(std::string_view cause, std::string_view file, Errc code = Errc::bad_model) {
    const auto checkpoint = SafetensorsCheckpoint::open(scratch_.path());
    ASSERT_FALSE(checkpoint.ok());
    EXPECT_EQ(checkpoint.error().code, code);
    EXPECT_NE(checkpoint.error().what.find(cause), std::string::npos) << checkpoint.error().message();
    EXPECT_NE(checkpoint.error().where.find(file), std::string::npos) << checkpoint.error().message();
  }
  void shard(const std::string& name, const std::string& tensor) {
    scratch_.file(name, safetensors_file(tensor_text(tensor, "U8", "[2]", 0, 2), "xx"));
  }

  test::ScratchFolder scratch_;
};

TEST_F(SafetensorsFolderRefusal, NothingThere) { expect_refused("the file is missing", "model.safetensors"); }

TEST_F(SafetensorsFolderRefusal, FolderInPlaceOfAFile) {
  std::filesystem::create_directory(scratch_.path() / "model.safetensors");
  expect_refused("not a regular file", "model.safetensors");
}

TEST_F(SafetensorsFolderRefusal, OneFileAndAnIndex) {
  shard("model.safetensors", "a");
  scratch_.file("model.safetensors.index.json", R"({"weight_map":{"a":"model.safetensors"}})");
  expect_refused("allowed is one of them", scratch_.path().string());
}

TEST_F(SafetensorsFolderRefusal, ShardThatIsMissing) {
  shard("one", "a");
  scratch_.file("model.safetensors.index.json", R"({"weight_map":{"a":"one","b":"two"}})");
  expect_refused("in 'two': the file is missing", "model.safetensors.index.json: weight_map: tensor 'b'");
  std::filesystem::create_directory(scratch_.path() / "two");
  expect_refused("in 'two': is not a regular file", "model.safetensors.index.json: weight_map: tensor 'b'");
  // A name so long is no file's.
  scratch_.file("model.safetensors.index.json", R"({"weight_map":{"a":")" + std::string(160000, 'n') + R"("}})");
  const Error error = SafetensorsCheckpoint::open(scratch_.path()).error();
  EXPECT_LT(error.message().size(), scratch_.path().string().size() + 400) << error.message().substr(0, 400);
}

TEST_F(SafetensorsFolderRefusal, TensorThatItsShardLacks) {
  shard("one", "a");
  shard("two", "b");
  scratch_.file("model.safetensors.index.json", R"({"weight_map":{"a":"one","b":"two","c":"one"}})");
  expect_refused("tensor 'c' is missing", "one");
  scratch_.file("model.safetensors.index.json", R"({"weight_map":{"a":"two","b":"two"}})");
  expect_refused("tensor 'a' is missing", "two");
}

TEST_F(SafetensorsFolderRefusal, TensorThatTheIndexDoesNotPlace) {
  shard("one", "a");
  scratch_.file(
      "two", safetensors_file(tensor_text("a", "U8", "[1]", 0, 1) + "," + tensor_text("b", "U8", "[1]", 1, 2), "xx"));
  scratch_.file("model.safetensors.index.json", R"({"weight_map":{"a":"one","b":"two"}})");
  expect_refused("tensor 'a' is in the file 'two'", "model.safetensors.index.json");
}

TEST_F(SafetensorsFolderRefusal, DamagedShardIsNamed) {
  scratch_.file("one", "short");
  scratch_.file("model.safetensors.index.json", R"({"weight_map":{"a":"one"}})");
  expect_refused("has 5 bytes", "one");
}

}  // namespace
}  // namespace quern::formats
