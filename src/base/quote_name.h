// SPDX-License-Identifier: Apache-2.0
// Owns how a name out of a file is shown in an error text.
#pragma once

#include <string>
#include <string_view>

namespace quern {

// The name in single quotes, fit for one line: control bytes, quotes, backslashes and non-ASCII bytes are written \xNN,
// and what is longer than 120 bytes is cut and ends in "...".
std::string quote_name(std::string_view name);

}  // namespace quern
