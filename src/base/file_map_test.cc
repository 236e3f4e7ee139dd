// SPDX-License-Identifier: Apache-2.0
// Holds base/file_map.h: what can be mapped, what is refused, moves, and dropping pages without losing content.
#include "base/file_map.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace quern {
namespace {

class FileMapTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        std::filesystem::temp_directory_path() / ("quern_file_map_" + std::to_string(::getpid()) + "_" + info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

std::string text_of(const FileMap& map) {
  return {reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()};
}

// Longer than a few pages, no page like another.
std::string long_text() {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i) + ",";
  return text;
}

TEST_F(FileMapTest, MapsTheWholeFile) {
  for (const std::string& text : {std::string("x"), std::string("a\0b\xff", 4), long_text()}) {
    const Result<FileMap> map = FileMap::open(put("file", text));
    ASSERT_TRUE(map.ok());
    EXPECT_EQ(text_of(*map), text);
  }
}

TEST_F(FileMapTest, AnEmptyFileIsAnEmptySpan) {
  const Result<FileMap> map = FileMap::open(put("empty", ""));
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE(map->bytes().empty());
}

TEST_F(FileMapTest, AMissingFileIsAnIoErrorThatNamesThePath) {
  const std::filesystem::path path = folder_ / "missing";
  const Result<FileMap> map = FileMap::open(path);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().code, Errc::io);
  EXPECT_EQ(map.error().where, path.string());
  EXPECT_NE(map.error().what.find("No such file"), std::string::npos);
}

TEST_F(FileMapTest, WhatIsNotARegularFileIsRefused) {
  for (const std::filesystem::path& path : {folder_, std::filesystem::path("/dev/null")}) {
    const Result<FileMap> map = FileMap::open(path);
    ASSERT_FALSE(map.ok()) << path;
    EXPECT_EQ(map.error().code, Errc::io);
    EXPECT_EQ(map.error().where, path.string());
  }
}

TEST_F(FileMapTest, AFileWithoutPermissionIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::filesystem::path path = put("secret", "x");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const Result<FileMap> map = FileMap::open(path);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().code, Errc::io);
}

TEST_F(FileMapTest, MovesKeepTheBytesWhereTheyAre) {
  Result<FileMap> opened = FileMap::open(put("file", "hello"));
  ASSERT_TRUE(opened.ok());
  FileMap a = *std::move(opened);
  const std::byte* const data = a.bytes().data();
  FileMap b(std::move(a));
  EXPECT_EQ(b.bytes().data(), data);
  EXPECT_TRUE(a.bytes().empty());  // NOLINT: a moved-from map is empty by contract
  FileMap c;
  c = std::move(b);
  EXPECT_EQ(c.bytes().data(), data);
  EXPECT_EQ(text_of(c), "hello");
}

TEST_F(FileMapTest, AMapOutlivesTheDirectoryEntry) {
  const std::filesystem::path path = put("file", "hello");
  const Result<FileMap> map = FileMap::open(path);
  ASSERT_TRUE(map.ok());
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(*map), "hello");
}

TEST_F(FileMapTest, ContentStaysReadableAfterItsPagesAreDropped) {
  const std::string text = long_text();
  const Result<FileMap> map = FileMap::open(put("file", text));
  ASSERT_TRUE(map.ok());
  ASSERT_EQ(text_of(*map), text);
  const auto bytes = map->bytes();
  for (const auto part : {bytes, bytes.subspan(1), bytes.subspan(5, 10), bytes.subspan(4096, 4096), bytes.first(0)}) {
    map->drop_pages(part);
    ASSERT_EQ(text_of(*map), text);
  }
}

TEST_F(FileMapTest, PartsAreCopiedAndAFileThatBecameShorterIsAnError) {
  const std::string text = long_text();
  const std::filesystem::path path = put("file", text);
  const Result<FileMap> map = FileMap::open(path);
  ASSERT_TRUE(map.ok());
  std::string copied(7, ' ');
  const auto out = std::as_writable_bytes(std::span(copied));
  ASSERT_TRUE(map->copy(map->bytes().subspan(4093, 7), out).ok());
  EXPECT_EQ(copied, text.substr(4093, 7));
  ASSERT_TRUE(map->copy(map->bytes().last(7), out).ok());
  EXPECT_EQ(copied, text.substr(text.size() - 7));
  EXPECT_TRUE(map->copy(map->bytes().last(0), {}).ok());
  std::filesystem::resize_file(path, text.size() - 1);
  const auto cut = map->copy(map->bytes().last(7), out);
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(cut.error().code, Errc::io);
}

}  // namespace
}  // namespace quern
