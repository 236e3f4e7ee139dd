// SPDX-License-Identifier: Apache-2.0
// Owns what every line checks about the arguments of Line::forward() before it computes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "model/line.h"

namespace quern::model {

// Errors: bad_request for an id outside [0, info.vocab), by position in `where`.
Result<void> check_ids(const ModelInfo& info, std::span<const int32_t> ids, std::string_view where);

// The first wanted row, counted from the first id of the call, for a timeline of `length` tokens. Errors: those that
// Line::forward() promises about its arguments.
Result<int64_t> check_call(const ModelInfo& info, int64_t length, std::span<const int32_t> ids, Rows wanted,
                           std::span<const float> logits);

}  // namespace quern::model
