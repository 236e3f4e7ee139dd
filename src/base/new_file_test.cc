// SPDX-License-Identifier: Apache-2.0
// Holds base/new_file.h: a file appears whole or not at all, and what was there stays until then.
#include "base/new_file.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "tests/support/scratch_folder.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

class NewFileTest : public testing::Test {
 protected:
  NewFileTest() : scratch_("new_file_test"), path_(scratch_.path() / "kept") {
    fs::create_directories(scratch_.path());
  }

  static Result<void> write(NewFile& file, std::string_view text) { return file.write(std::as_bytes(std::span(text))); }
  static std::string content(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  ptrdiff_t files() const { return std::distance(fs::directory_iterator(scratch_.path()), fs::directory_iterator()); }

  test::ScratchFolder scratch_;
  fs::path path_;
};

TEST_F(NewFileTest, AppearsWholeForItsOwnerAlone) {
  std::ofstream(path_) << "before";
  fs::permissions(path_, fs::perms::others_read, fs::perm_options::add);
  {
    NewFile file = NewFile::create(path_).value();
    ASSERT_TRUE(write(file, "af").ok());
    ASSERT_TRUE(write(file, "ter").ok());
    EXPECT_EQ(content(path_), "before");
    ASSERT_TRUE(file.finish().ok());
  }
  EXPECT_EQ(content(path_), "after");
  EXPECT_EQ(files(), 1);
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(NewFileTest, LeavesNothingWhenItIsNotFinished) {
  std::ofstream(path_) << "before";
  {
    NewFile file = NewFile::create(path_).value();
    ASSERT_TRUE(write(file, "after").ok());
  }
  EXPECT_EQ(content(path_), "before");
  EXPECT_EQ(files(), 1);
}

TEST_F(NewFileTest, ReplacesWhatALinkLeadsToAndNothingButFiles) {
  const fs::path link = scratch_.path() / "link";
  fs::create_symlink("kept", link);
  NewFile file = NewFile::create(link).value();
  ASSERT_TRUE(write(file, "after").ok() && file.finish().ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(content(path_), "after");
  for (const fs::path& place : {fs::path("/dev/null"), scratch_.path(), scratch_.path() / ""}) {
    const auto refused = NewFile::create(place);
    ASSERT_FALSE(refused.ok()) << place;
    EXPECT_EQ(refused.error().code, Errc::io);
    EXPECT_NE(refused.error().message().find("is not a regular file"), std::string::npos) << refused.error().message();
  }
  EXPECT_EQ(NewFile::create(scratch_.path() / "nothing" / "there").error().code, Errc::io);
}

}  // namespace
}  // namespace quern
