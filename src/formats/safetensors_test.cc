// SPDX-License-Identifier: Apache-2.0
// What the safetensors reader makes of files: one that the format's own library wrote, and folders of several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "base/file_map.h"
#include "formats/safetensors/checkpoint.h"
#include "formats/safetensors/index.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/scratch_folder.h"

namespace quern::formats {
namespace {

namespace fs = std::filesystem;
using test::safetensors_bytes;
using test::safetensors_file;
using test::tensor_text;

std::vector<int64_t> shape_of(const SafetensorsTensor& t) { return {t.shape.begin(), t.shape.end()}; }

template <class T>
std::vector<T> values_of(const SafetensorsTensor& t) {
  std::vector<T> values(t.bytes.size() / sizeof(T));
  std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
  return values;
}

// testdata/safetensors/make.py says what is in the file.
class LibraryFile : public testing::Test {
 protected:
  void SetUp() override {
    auto map = FileMap::open(fs::path(QUERN_SOURCE_DIR) / "testdata/safetensors/types.safetensors");
    ASSERT_TRUE(map.ok());
    map_ = std::move(*map);
    auto header = parse_safetensors_header(map_.bytes(), "types");
    ASSERT_TRUE(header.ok()) << header.error().message();
    header_ = std::move(*header);
  }
  const SafetensorsTensor& tensor(std::string_view name) const {
    const SafetensorsTensor* found = find_tensor(header_.tensors, name);
    QUERN_CHECK(found != nullptr, "the file has it");
    return *found;
  }
  FileMap map_;
  SafetensorsHeader header_;
};

TEST_F(LibraryFile, EveryTypeWithItsShapeAndValues) {
  EXPECT_EQ(header_.tensors.size(), 18u);
  const auto holds = [&]<class T>(const char* name, DType dtype, std::vector<T> values) {
    EXPECT_EQ(tensor(name).dtype, dtype) << name;
    EXPECT_EQ(shape_of(tensor(name)), (std::vector<int64_t>{3, 2})) << name;
    EXPECT_EQ(values_of<T>(tensor(name)), values) << name;
  };
  holds("bf16", DType::bf16, std::vector<uint16_t>{0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0});
  holds("f16", DType::f16, std::vector<uint16_t>{0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500});
  holds("f8_e4m3", DType::f8_e4m3, std::vector<uint8_t>{0, 0x38, 0x40, 0x44, 0x48, 0x4a});
  holds("f32", DType::f32, std::vector<float>{0, 1, 2, 3, 4, 5});
  holds("f64", DType::f64, std::vector<double>{0, 1, 2, 3, 4, 5});
  holds("i64", DType::i64, std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  holds("i32", DType::i32, std::vector<int32_t>{0, 1, 2, 3, 4, 5});
  holds("i16", DType::i16, std::vector<int16_t>{0, 1, 2, 3, 4, 5});
  holds("i8", DType::i8, std::vector<int8_t>{0, 1, 2, 3, 4, 5});
  holds("u64", DType::u64, std::vector<uint64_t>{0, 1, 2, 3, 4, 5});
  holds("u32", DType::u32, std::vector<uint32_t>{0, 1, 2, 3, 4, 5});
  holds("u16", DType::u16, std::vector<uint16_t>{0, 1, 2, 3, 4, 5});
  holds("u8", DType::u8, std::vector<uint8_t>{0, 1, 2, 3, 4, 5});
  holds("bool", DType::boolean, std::vector<uint8_t>{1, 0, 0, 1, 1, 1});
}

TEST_F(LibraryFile, ScalarsEmptyTensorsAndEscapedNames) {
  EXPECT_TRUE(tensor("scalar").shape.empty());
  EXPECT_EQ(values_of<float>(tensor("scalar")), std::vector<float>{2.5f});
  EXPECT_EQ(shape_of(tensor("empty")), (std::vector<int64_t>{2, 0, 3}));
  EXPECT_TRUE(tensor("empty").bytes.empty());
  EXPECT_EQ(values_of<uint8_t>(tensor("n\xc3\xa4me \"quoted\"\\")), std::vector<uint8_t>{7});
}

TEST_F(LibraryFile, TensorsAscendByName) {
  const auto before = [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name < b.name; };
  EXPECT_TRUE(std::is_sorted(header_.tensors.begin(), header_.tensors.end(), before));
  EXPECT_EQ(find_tensor(header_.tensors, "absent"), nullptr);
  EXPECT_EQ(find_tensor(header_.tensors, ""), nullptr);
  EXPECT_EQ(find_tensor(header_.tensors, "zz"), nullptr);
}

TEST_F(LibraryFile, EveryShorterFileIsRefused) {
  for (size_t size = 0; size < map_.bytes().size(); ++size) {
    EXPECT_FALSE(parse_safetensors_header(map_.bytes().first(size), "cut").ok()) << size;
  }
}

TEST(SafetensorsHeader, NoTensorsAndPaddingOfAnyLength) {
  for (const char* text :
       {"{}", "{}      ", "{\"__metadata__\":{}}", "{\"__metadata__\":{\"a\":\"b\",\"c\":\"d\"}}\n"}) {
    const std::string file = safetensors_bytes(text, "");
    const auto header = parse_safetensors_header(test::as_bytes(file), "f");
    ASSERT_TRUE(header.ok()) << header.error().message();
    EXPECT_TRUE(header->tensors.empty());
  }
}

TEST(SafetensorsHeader, TensorsMayStandInAnyOrderOfTheirPlaces) {
  const std::string file =
      safetensors_file(tensor_text("a", "U8", "[2]", 3, 5) + "," + tensor_text("b", "U8", "[3]", 0, 3) + "," +
                           tensor_text("c", "F32", "[0,7]", 3, 3),
                       "bbbaa");
  const auto header = parse_safetensors_header(test::as_bytes(file), "f");
  ASSERT_TRUE(header.ok()) << header.error().message();
  EXPECT_EQ(values_of<char>(header->tensors[0]), (std::vector<char>{'a', 'a'}));
  EXPECT_EQ(values_of<char>(header->tensors[1]), (std::vector<char>{'b', 'b', 'b'}));
}

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() : scratch_("safetensors") {}
  // Tensors of one byte each, the first letter of their file.
  void shard(const std::string& name, const std::vector<std::string>& tensors) {
    std::string text, payload;
    for (const std::string& tensor : tensors) {
      if (!text.empty()) text += ",";
      text += tensor_text(tensor, "U8", "[1]", payload.size(), payload.size() + 1);
      payload += name[0];
    }
    scratch_.file(name, safetensors_file(text, payload));
  }
  test::ScratchFolder scratch_;
};

TEST_F(Checkpoint, OneFile) {
  shard("model.safetensors", {"b", "a"});
  const auto checkpoint = SafetensorsCheckpoint::open(scratch_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_EQ(checkpoint->file_count(), 1u);
  EXPECT_EQ(checkpoint->payload_bytes(), 2u);
  ASSERT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "a");
  EXPECT_EQ(checkpoint->find("c"), nullptr);
}

TEST_F(Checkpoint, ManyFilesThroughTheirIndex) {
  shard("one.safetensors", {"d", "b"});
  shard("two.safetensors", {"c", "a"});
  shard("unused.safetensors", {"e"});
  scratch_.file("model.safetensors.index.json",
                R"({"metadata":{"total_size":4,"more":[[],{"weight_map":"x"}]},"weight_map":{"a":"two.safetensors",)"
                R"("b":"one.safetensors","c":"two.safetensors","d":"one.safetensors"},"after":null})");
  auto opened = SafetensorsCheckpoint::open(scratch_.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const SafetensorsCheckpoint checkpoint = std::move(*opened);
  EXPECT_EQ(checkpoint.file_count(), 2u);
  std::string found;
  for (const SafetensorsTensor& t : checkpoint.tensors()) {
    found += std::string(t.name) + static_cast<char>(t.bytes[0]);
    EXPECT_EQ(fs::path(checkpoint.file_of(t)).filename().string()[0], static_cast<char>(t.bytes[0]));
  }
  EXPECT_EQ(found, "atboctdo");
  checkpoint.drop_pages(checkpoint.find("a")->bytes);
  EXPECT_EQ(checkpoint.find("a")->bytes[0], std::byte{'t'});
}

TEST_F(Checkpoint, LinksToFilesElsewhereAreFollowed) {
  // The download cache of the Hugging Face library keeps the files apart and links to them.
  fs::create_directory(scratch_.path() / "blobs");
  fs::create_directory(scratch_.path() / "model");
  shard("blobs/x", {"a"});
  fs::create_symlink("../blobs/x", scratch_.path() / "model" / "model.safetensors");
  const auto checkpoint = SafetensorsCheckpoint::open(scratch_.path() / "model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_EQ(checkpoint->tensors().size(), 1u);
}

TEST(SafetensorsIndex, FilesAndTensors) {
  const auto index = parse_safetensors_index(R"({"weight_map":{"b":"f2","a":"f1","c":"f2"}})", "i");
  ASSERT_TRUE(index.ok()) << index.error().message();
  std::map<std::string, std::string> map;
  for (const auto& entry : index->tensors) map[entry.tensor] = index->files[static_cast<size_t>(entry.file)];
  EXPECT_EQ(map, (std::map<std::string, std::string>{{"a", "f1"}, {"b", "f2"}, {"c", "f2"}}));
  EXPECT_EQ(index->files.size(), 2u);
}

}  // namespace
}  // namespace quern::formats
