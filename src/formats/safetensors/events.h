// SPDX-License-Identifier: Apache-2.0
// Owns reading JSON as a stream of events, for files with so many entries that a tree of them would cost many times
// their size. Does not own what the entries mean (header.cc and index.cc do).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quern::formats {

// Receives the events of one parse; the function names are nlohmann's protocol, false ends the parse. What a derived
// class does not take is refused, so nesting is never deeper than the derived class asks for.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonEvents(std::string_view where) : where_(where) {}

  // Errors: bad_model with "<where>@<byte>" as the place where the text is not JSON, and those of fail().
  Result<void> parse(std::string_view text);

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a number that is not whole"); }
  bool string(string_t&) override { return unexpected("a text"); }
  bool binary(binary_t&) override { return unexpected("binary content"); }
  bool start_object(size_t) override { return unexpected("an object"); }
  bool start_array(size_t) override { return unexpected("a list"); }
  bool key(string_t&) override = 0;
  bool end_object() override = 0;
  bool end_array() override { return true; }
  bool parse_error(size_t byte, const std::string& token, const nlohmann::json::exception& error) override;

 protected:
  // Keeps the refusal; returns false for the parser.
  bool fail(Error error);
  bool unexpected(std::string_view what);

  const std::string& where() const { return where_; }
  // What the next value is, for error texts: for example "shape of tensor 'w'".
  virtual std::string next_value() const = 0;
  virtual std::string expected() const = 0;

 private:
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace quern::formats
