// SPDX-License-Identifier: Apache-2.0
// Owns the passes that make one step of several nodes. Each has a name, can be left out, and leaves every node it took
// in the report. Does not own what joint operators compute (ops/) or when passes run (model.cc).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "graph/ir.h"
#include "graph/step.h"

namespace quern::graph {

// Errors: bad_request for a name that is no pass's; lists those there are.
Result<void> check_pass_names(std::span<const std::string> names);

// Runs every pass but those named in `left_out`. A node that is computed inside another one keeps its place and its
// proto, loses operator, inputs and outputs, and is Owner::fused; its outputs become further outputs of the other.
// Producers and uses of values follow.
void fuse(std::span<const std::string> left_out, Ir& ir, std::span<Step> steps);

}  // namespace quern::graph
