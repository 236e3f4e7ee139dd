// SPDX-License-Identifier: Apache-2.0
// Holds cpu/features.h: detection against what the kernel says about the CPU, and the cap by name and by environment.
#include "cpu/features.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>

namespace quern::cpu {
namespace {

constexpr Features kEverything{true, true, true, true};

// Sets QUERN_ISA for the length of a test, or removes it.
class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* before = ::getenv("QUERN_ISA")) before_ = before;
    if (value != nullptr) {
      ::setenv("QUERN_ISA", value, 1);
    } else {
      ::unsetenv("QUERN_ISA");
    }
  }
  ~Environment() {
    if (before_) {
      ::setenv("QUERN_ISA", before_->c_str(), 1);
    } else {
      ::unsetenv("QUERN_ISA");
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::optional<std::string> before_;
};

TEST(Features, DetectionAgreesWithTheKernel) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "x86-64 only";
#else
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags";
  const auto has = [&flags](const char* name) { return flags.count(name) != 0; };
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const Features found = detect_features();
  EXPECT_EQ(found.avx2, avx2);
  EXPECT_EQ(found.avxvnni, avx2 && has("avx_vnni"));
  EXPECT_EQ(found.avx512vnni,
            avx2 && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") && has("avx512_vnni"));
  EXPECT_EQ(found.avx512bf16, found.avx512vnni && has("avx512_bf16"));
#endif
}

TEST(Features, ScalarIsAlwaysUsable) {
  EXPECT_TRUE(Features{}.has(Isa::scalar));
  EXPECT_FALSE(Features{}.has(Isa::avx2));
}

TEST(Features, ACapKeepsExactlyTheNamedSet) {
  const Result<Features> scalar = cap_features(kEverything, "scalar");
  ASSERT_TRUE(scalar.ok());
  EXPECT_FALSE(scalar->avx2 || scalar->avxvnni || scalar->avx512vnni);
  const Result<Features> avx2 = cap_features(kEverything, "avx2");
  ASSERT_TRUE(avx2.ok());
  EXPECT_TRUE(avx2->avx2);
  EXPECT_FALSE(avx2->avxvnni || avx2->avx512vnni);
  const Result<Features> avxvnni = cap_features(kEverything, "avxvnni");
  ASSERT_TRUE(avxvnni.ok());
  EXPECT_TRUE(avxvnni->avx2 && avxvnni->avxvnni);
  EXPECT_FALSE(avxvnni->avx512vnni);
  const Result<Features> avx512vnni = cap_features(kEverything, "avx512vnni");
  ASSERT_TRUE(avx512vnni.ok());
  EXPECT_TRUE(avx512vnni->avx2 && avx512vnni->avx512vnni);
  EXPECT_FALSE(avx512vnni->avxvnni || avx512vnni->avx512bf16);
  const Result<Features> avx512bf16 = cap_features(kEverything, "avx512bf16");
  ASSERT_TRUE(avx512bf16.ok());
  EXPECT_TRUE(avx512bf16->avx2 && avx512bf16->avx512vnni && avx512bf16->avx512bf16);
  EXPECT_FALSE(avx512bf16->avxvnni);
}

TEST(Features, EverySetHasItsName) {
  for (Isa isa : kIsas) {
    const Result<Features> capped = cap_features(kEverything, isa_name(isa));
    ASSERT_TRUE(capped.ok()) << isa_name(isa);
    EXPECT_TRUE(capped->has(isa)) << isa_name(isa);
  }
}

TEST(Features, AskingForWhatTheCpuLacksIsAnError) {
  const Features only_avx2{true, false, false};
  const Result<Features> refused = cap_features(only_avx2, "avx512vnni");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::bad_request);
  EXPECT_NE(refused.error().what.find("avx512vnni"), std::string::npos);
  EXPECT_NE(refused.error().what.find("scalar, avx2"), std::string::npos);
}

TEST(Features, UnknownNamesAreErrorsThatListTheKnownOnes) {
  for (const char* name : {"", "sse4", "AVX2", "avx2 "}) {
    const Result<Features> refused = cap_features(kEverything, name);
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().code, Errc::bad_request);
    EXPECT_NE(refused.error().what.find("scalar, avx2, avxvnni, avx512vnni, avx512bf16"), std::string::npos);
  }
}

TEST(Features, TheEnvironmentCaps) {
  const Environment environment("scalar");
  const Result<Features> usable = usable_features();
  ASSERT_TRUE(usable.ok());
  EXPECT_FALSE(usable->avx2 || usable->avxvnni || usable->avx512vnni || usable->avx512bf16);
}

TEST(Features, AnUnknownNameInTheEnvironmentIsAnErrorThatNamesTheVariable) {
  const Environment environment("mmx");
  const Result<Features> usable = usable_features();
  ASSERT_FALSE(usable.ok());
  EXPECT_EQ(usable.error().code, Errc::bad_request);
  EXPECT_EQ(usable.error().where, "QUERN_ISA");
}

TEST(Features, WithoutTheVariableOrWithAnEmptyOneEverythingDetectedIsUsable) {
  const Features found = detect_features();
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    const Environment environment(value);
    const Result<Features> usable = usable_features();
    ASSERT_TRUE(usable.ok());
    EXPECT_EQ(usable->avx2, found.avx2);
    EXPECT_EQ(usable->avxvnni, found.avxvnni);
    EXPECT_EQ(usable->avx512vnni, found.avx512vnni);
    EXPECT_EQ(usable->avx512bf16, found.avx512bf16);
  }
}

}  // namespace
}  // namespace quern::cpu
