// SPDX-License-Identifier: Apache-2.0
// Owns arithmetic and order between values, as Python defines them. Integers have 64 bits here: what does not fit is
// refused.
#pragma once

#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace quern::text::jinja {

// Operation add, subtract, multiply, divide, floor_divide or modulo.
Result<Value> calculate(Operation operation, const Value& a, const Value& b, Budget& budget);

// -value for minus, +value for plus.
Result<Value> signed_value(Operation operation, const Value& value);

Result<bool> compare(Comparison comparison, const Value& a, const Value& b, Budget& budget);

}  // namespace quern::text::jinja
