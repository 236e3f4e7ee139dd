// SPDX-License-Identifier: Apache-2.0
// Holds base/error.h: the code tables, Result, the early-return macros and the checks.
#include "base/error.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

namespace quern {
namespace {

constexpr Errc kAll[] = {Errc::bad_model, Errc::unsupported, Errc::bad_request, Errc::too_long, Errc::no_memory,
                         Errc::io,        Errc::cancelled,   Errc::overloaded,  Errc::internal};

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (Errc code : kAll) names.insert(errc_name(code));
  EXPECT_EQ(names.size(), std::size(kAll));
  EXPECT_EQ(errc_name(Errc::bad_model), "bad_model");
  EXPECT_EQ(errc_name(Errc::internal), "internal");
}

// The product contract of the command line.
TEST(Error, ExitCodesAreTheContracts) {
  EXPECT_EQ(exit_code(Errc::bad_model), 3);
  EXPECT_EQ(exit_code(Errc::unsupported), 4);
  EXPECT_EQ(exit_code(Errc::bad_request), 5);
  EXPECT_EQ(exit_code(Errc::too_long), 5);
  EXPECT_EQ(exit_code(Errc::no_memory), 6);
  EXPECT_EQ(exit_code(Errc::io), 7);
  EXPECT_EQ(exit_code(Errc::cancelled), 130);
  EXPECT_EQ(exit_code(Errc::internal), 1);
  for (Errc code : kAll) {
    EXPECT_NE(exit_code(code), 0) << errc_name(code);
    EXPECT_NE(exit_code(code), 2) << "2 is for wrong usage only";
  }
}

TEST(Error, MessagePutsThePlaceFirst) {
  EXPECT_EQ(bad_model("a.onnx@12", "too short").message(), "a.onnx@12: too short");
  EXPECT_EQ(bad_request("", "too short").message(), "too short");
  EXPECT_EQ(bad_model("w", "x").code, Errc::bad_model);
  EXPECT_EQ(unsupported("w", "x").code, Errc::unsupported);
  EXPECT_EQ(bad_request("w", "x").code, Errc::bad_request);
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good(7);
  EXPECT_TRUE(good.ok());
  EXPECT_TRUE(static_cast<bool>(good));
  EXPECT_EQ(*good, 7);
  const Result<int> bad(bad_request("w", "x"));
  EXPECT_FALSE(bad.ok());
  EXPECT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.error().what, "x");
  const Result<void> done;
  EXPECT_TRUE(done.ok());
  const Result<void> failed(bad_request("w", "y"));
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().what, "y");
}

TEST(Result, CarriesMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 3);
}

TEST(Result, AccessToMembers) {
  Result<std::string> result(std::string("abc"));
  EXPECT_EQ(result->size(), 3u);
  result->push_back('d');
  EXPECT_EQ(std::as_const(result)->size(), 4u);
}

TEST(ResultDeathTest, TheValueOfAFailureAborts) {
  Result<int> bad(bad_request("w", "x"));
  EXPECT_DEATH(static_cast<void>(*bad), "internal error at .*value of a failed Result");
  EXPECT_DEATH(static_cast<void>(std::as_const(bad).value()), "value of a failed Result");
}

Result<int> half(int value) {
  if (value % 2 != 0) return bad_request("half", "odd");
  return value / 2;
}

Result<void> positive(int value) {
  if (value <= 0) return bad_request("positive", "not above 0");
  return {};
}

Result<std::string> quarter(int value) {
  QUERN_TRY_VOID(positive(value));
  QUERN_TRY(const int once, half(value));
  QUERN_TRY(const int twice, half(once));
  return std::to_string(twice);
}

TEST(Try, PassesValuesOnAndReturnsTheFirstError) {
  const Result<std::string> good = quarter(12);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, "3");
  EXPECT_EQ(quarter(6).error().what, "odd");
  EXPECT_EQ(quarter(-4).error().where, "positive");
}

TEST(Try, MovesMoveOnlyValues) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto use = [&make]() -> Result<int> {
    QUERN_TRY(const std::unique_ptr<int> p, make());
    return *p;
  };
  EXPECT_EQ(*use(), 5);
}

TEST(CheckDeathTest, AFalseConditionAbortsWithItsTextAndPlace) {
  EXPECT_DEATH(QUERN_CHECK(1 + 1 == 3, "sums are off"), "error_test.cc:[0-9]+: sums are off \\(1 \\+ 1 == 3\\)");
  QUERN_CHECK(1 + 1 == 2, "sums are off");
}

}  // namespace
}  // namespace quern
