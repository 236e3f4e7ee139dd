// SPDX-License-Identifier: Apache-2.0
// Owns the grammar of statements, and the whole way from source to a checked template.
#pragma once

#include <string_view>

#include "text/jinja/syntax.h"

namespace quern::text::jinja {

// Errors: bad_model (the template is broken), unsupported (it uses what quern lacks); `where` is "line N".
Result<ScopedBody> parse_template(std::string_view source);

}  // namespace quern::text::jinja
