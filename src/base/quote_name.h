// SPDX-License-Identifier: Apache-2.0
// Owns how names and texts from outside are shown in messages.
#pragma once

#include <string>
#include <string_view>

namespace quern {

// The name in single quotes, fit for one line: control bytes, quotes, backslashes and non-ASCII bytes are written \xNN,
// and what is longer than 120 bytes is cut and ends in "...".
std::string quote_name(std::string_view name);

// A name within a path: as it is where nothing has to be escaped or cut, else quoted.
std::string path_name(std::string_view name);

// The text on one line of well-formed UTF-8 without control characters: what is not that is written \xNN, byte by byte.
std::string one_line(std::string_view text);

// A path as the place of an error: as it is, and quoted when it is empty.
std::string path_place(std::string_view path);

}  // namespace quern
