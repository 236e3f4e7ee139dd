// SPDX-License-Identifier: Apache-2.0
// Owns the text of values: as Python's str() prints them, and as json.dumps writes them.
#pragma once

#include <string>

#include "text/jinja/value.h"

namespace quern::text::jinja {

// str(value): texts as they are, "True" and "None" as Python says them, lists and mappings as it prints them. Undefined
// gives nothing. Errors: values whose text is an address in memory.
Result<void> append_text(const Value& value, std::string& out, Budget& budget);
Result<std::string> to_text(const Value& value, Budget& budget);

// json.dumps with these arguments. Without `indent` all is on one line.
struct JsonStyle {
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii_only = false, sorted = false;
};
Result<std::string> to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace quern::text::jinja
