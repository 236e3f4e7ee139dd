// SPDX-License-Identifier: Apache-2.0
// Owns how a JSON text becomes a value, what is said of one that cannot be read, and where, and how values are shown in
// errors. Does not own bounds on size and depth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace quern::formats {

struct JsonFault {
  size_t byte = 0;
  std::string_view what;
};

// From what the parser hands to parse_error() of a receiver.
inline JsonFault json_fault(size_t position, const std::string& token, const nlohmann::json::exception& error) {
  constexpr int kNumberOverflow = 406;
  if (error.id == kNumberOverflow) {
    return {position - std::min(position, token.size()), "the number here is beyond the range of a double"};
  }
  // The parser counts the byte that does not fit, too.
  return {position - std::min<size_t>(position, 1), "the file is not JSON from here on"};
}

// Of a text that the parser refuses. It takes a zero byte for the end of the text, so that is a fault as well.
inline JsonFault find_json_fault(std::string_view text) {
  struct Finder final : nlohmann::json_sax<nlohmann::json> {
    JsonFault fault;
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(size_t) override { return true; }
    bool key(string_t&) override { return true; }
    bool end_object() override { return true; }
    bool start_array(size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception& error) override {
      fault = json_fault(position, token, error);
      return false;
    }
  } finder;
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &finder)) {
    finder.fault = {std::min(text.find('\0'), text.size()), "the file is not JSON from here on"};
  }
  return finder.fault;
}

// The value of a text; where it is not JSON, a discarded value and the fault. A zero byte is one.
inline nlohmann::json parse_text(std::string_view text, JsonFault& fault) {
  nlohmann::json parsed(nlohmann::json::value_t::discarded);
  if (text.find('\0') == text.npos) parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_discarded()) fault = find_json_fault(text);
  return parsed;
}

// A value as JSON in ASCII, cut behind `most` bytes.
inline std::string show_json(const nlohmann::json& value, size_t most) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= most ? text : text.substr(0, most) + "...";
}

}  // namespace quern::formats
