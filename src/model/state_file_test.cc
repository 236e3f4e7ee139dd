// SPDX-License-Identifier: Apache-2.0
// Holds model/state_file.h: what was written is read, damage and foreign files are refused, nothing half is left
// behind.
#include "model/state_file.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/tiny_qwen3.h"

namespace quern::model {
namespace {

namespace fs = std::filesystem;

class StateFile : public testing::Test {
 protected:
  StateFile() : scratch_("state_file_test"), path_(scratch_.path() / "kept.state") {
    fs::create_directories(scratch_.path());
  }

  void write() {
    StateFileWriter writer = StateFileWriter::create(path_, {{{"kv", "fp16"}, {"layers", 3}}, {5, 6, 7}}).value();
    EXPECT_TRUE(writer.write(std::as_bytes(std::span(payload_))).ok());
    EXPECT_TRUE(writer.finish().ok());
  }
  // Reads everything; the first error on the way.
  Result<void> read() {
    QUERN_TRY(StateFileReader reader, StateFileReader::open(path_, {{"kv", "fp16"}}, 3));
    std::string payload(payload_.size(), ' ');
    QUERN_TRY_VOID(reader.read(std::as_writable_bytes(std::span(payload))));
    QUERN_TRY_VOID(reader.finish());
    EXPECT_EQ(payload, payload_);
    EXPECT_EQ(reader.head().ids, (std::vector<int32_t>{5, 6, 7}));
    return {};
  }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  test::ScratchFolder scratch_;
  fs::path path_;
  const std::string payload_ = "rows of keys and values";
};

TEST_F(StateFile, GivesBackWhatWasWritten) {
  write();
  EXPECT_TRUE(read().ok());
}

TEST_F(StateFile, OtherFactsAreRefusedByName) {
  write();
  EXPECT_TRUE(StateFileReader::open(path_, {{"kv", "fp16"}, {"layers", 3}}, 3).ok());
  const auto other = StateFileReader::open(path_, {{"layers", 3}, {"kv", "fp32"}}, 3);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, Errc::bad_request);
  EXPECT_NE(other.error().message().find("fp16"), std::string::npos) << other.error().message();
  EXPECT_NE(other.error().message().find("fp32"), std::string::npos);
  EXPECT_FALSE(StateFileReader::open(path_, {{"heads", 1}}, 3).ok());
}

// The size of a file says nothing: one with a hole takes no place on a disk.
TEST_F(StateFile, MoreIdsThanTheContextAreRefusedBeforeMemoryIsTaken) {
  write();
  const auto refused = StateFileReader::open(path_, nlohmann::json::object(), 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::too_long);
  EXPECT_NE(refused.error().message().find("3 tokens"), std::string::npos) << refused.error().message();
  constexpr uint64_t kIds = uint64_t{1} << 34;
  std::string large = content();
  const size_t count = large.find("}") + 1;
  large.replace(count, sizeof kIds, reinterpret_cast<const char*>(&kIds), sizeof kIds);
  put(large);
  fs::resize_file(path_, kIds * sizeof(int32_t) + 1000);
  const auto sparse = StateFileReader::open(path_, {{"kv", "fp16"}}, 1 << 20);
  ASSERT_FALSE(sparse.ok());
  EXPECT_EQ(sparse.error().code, Errc::too_long) << sparse.error().message();
  const auto foreign = StateFileReader::open(path_, {{"kv", "fp32"}}, INT64_MAX);
  ASSERT_FALSE(foreign.ok());
  EXPECT_EQ(foreign.error().code, Errc::bad_request);
}

TEST_F(StateFile, EveryDamagedByteAndEveryCutIsNoticed) {
  write();
  const std::string whole = content();
  for (size_t i = 0; i < whole.size(); i++) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    put(damaged);
    const auto done = read();
    EXPECT_FALSE(done.ok()) << i;
    if (!done.ok()) {
      EXPECT_EQ(done.error().code, Errc::bad_request) << done.error().message();
    }
    put(whole.substr(0, i));
    EXPECT_FALSE(read().ok()) << i;
  }
  put(whole + "x");
  EXPECT_FALSE(read().ok());
  put(whole);
  EXPECT_TRUE(read().ok());
}

TEST_F(StateFile, FactsAreStringsAndIntegers) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& fact : {deep, "{\"a\":" + deep + "}", std::string("null"), std::string("1.5")}) {
    const std::string head = "{\"kv\":" + fact + "}";
    const auto bytes = static_cast<uint32_t>(head.size());
    put("QUERNST1" + std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + head + std::string(16, '\0'));
    const auto reader = StateFileReader::open(path_, {{"kv", "fp16"}}, 1 << 20);
    ASSERT_FALSE(reader.ok());
    EXPECT_EQ(reader.error().code, Errc::bad_request);
    EXPECT_NE(reader.error().what.find("strings and integers"), std::string::npos) << reader.error().message();
  }
}

TEST_F(StateFile, AnUnfinishedFileLeavesTheOldOneAlone) {
  write();
  const std::string before = content();
  {
    StateFileWriter writer = StateFileWriter::create(path_, {{{"kv", "int8"}}, {}}).value();
    EXPECT_TRUE(writer.write(std::as_bytes(std::span(payload_))).ok());
  }
  EXPECT_EQ(content(), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), fs::directory_iterator()), 1);
}

TEST_F(StateFile, WhatIsNoRegularFileIsNotReplacedAndLinksAreFollowed) {
  write();
  const fs::path pipe = scratch_.path() / "pipe", link = scratch_.path() / "link", loose = scratch_.path() / "loose";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(StateFileWriter::create(pipe, {}).error().code, Errc::io);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(StateFileWriter::create(scratch_.path(), {}).error().code, Errc::io);
  EXPECT_EQ(StateFileWriter::create("", {}).error().code, Errc::io);
  fs::create_symlink("kept.state", link);
  fs::create_symlink("later.state", loose);
  for (const fs::path& path : {link, loose}) {
    StateFileWriter writer = StateFileWriter::create(path, {{{"kv", "int8"}}, {}}).value();
    ASSERT_TRUE(writer.finish().ok());
    EXPECT_TRUE(fs::is_symlink(path));
  }
  for (const char* name : {"kept.state", "later.state"}) {
    EXPECT_TRUE(StateFileReader::open(scratch_.path() / name, {{"kv", "int8"}}, 0).ok());
  }
}

TEST_F(StateFile, WritersOfOnePathDoNotMeet) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; k++) write();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(read().ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), fs::directory_iterator()), 1);
}

TEST_F(StateFile, PlacesThatCannotBeWrittenOrReadAreInputOutputErrors) {
  const auto writer = StateFileWriter::create(scratch_.path() / "nowhere" / "f", {});
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.error().code, Errc::io);
  const auto reader = StateFileReader::open(scratch_.path() / "nothing", {}, 0);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, Errc::io);
  EXPECT_EQ(StateFileReader::open(scratch_.path(), {}, 0).error().code, Errc::io);
}

TEST(Fingerprint, NoticesAByteInEveryMebibyteOfLargePieces) {
  std::vector<std::byte> large(size_t{70} << 20), small(1000);
  const auto print = [&] {
    const std::span<const std::byte> pieces[] = {small, large};
    return fingerprint(pieces);
  };
  const uint64_t before = print();
  for (size_t at = 100; at < large.size(); at += size_t{1} << 20) {
    large[at] = std::byte{1};
    EXPECT_NE(print(), before);
    large[at] = std::byte{0};
  }
  large.back() = std::byte{1};
  EXPECT_NE(print(), before);
  large.back() = std::byte{0};
  small[999] = std::byte{1};
  EXPECT_NE(print(), before);
  small[999] = std::byte{0};
  EXPECT_EQ(print(), before);
  large.pop_back();
  EXPECT_NE(print(), before);
}

}  // namespace
}  // namespace quern::model
