// SPDX-License-Identifier: Apache-2.0
// Owns the question which variables of a template hide those of the conversation (ScopedBody::hidden), and which calls
// can have a macro behind them.
#pragma once

#include "text/jinja/syntax.h"

namespace quern::text::jinja {

// Fills in `hidden` of every scope. Errors: unsupported (a call of a name that the template never writes).
Result<void> resolve_scopes(ScopedBody& whole);

}  // namespace quern::text::jinja
