// SPDX-License-Identifier: Apache-2.0
// Errors of the event stream. The parser itself does not recurse.
#include "formats/safetensors/events.h"

#include <fmt/format.h>

#include <utility>

#include "formats/json_fault.h"

namespace quern::formats {

Result<void> JsonEvents::parse(std::string_view text) {
  // The parser takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    return bad_model(fmt::format("{}@{}", where_, zero), "the file is not JSON from here on");
  }
  const bool complete = nlohmann::json::sax_parse(text.begin(), text.end(), this);
  if (error_) return std::move(*error_);
  QUERN_CHECK(complete, "a parse that ends early has a reason");
  return {};
}

bool JsonEvents::parse_error(size_t byte, const std::string& token, const nlohmann::json::exception& error) {
  const JsonFault fault = json_fault(byte, token, error);
  return fail(bad_model(fmt::format("{}@{}", where_, fault.byte), std::string(fault.what)));
}

bool JsonEvents::fail(Error error) {
  error_ = std::move(error);
  return false;
}

bool JsonEvents::unexpected(std::string_view what) {
  return fail(
      bad_model(fmt::format("{}: {}", where_, next_value()), fmt::format("is {}, allowed is {}", what, expected())));
}

}  // namespace quern::formats
