// SPDX-License-Identifier: Apache-2.0
// Owns the JSON shapes that more than one command prints: ownership counts, memory, instruction sets.
#pragma once

#include <span>
#include <string>

#include "cli/output.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace quern::cli {

// {"nodes", "kernel", "prepared", "view", "fused"}: the last four sum to the first.
Json count_owners(std::span<const model::NodeReport> report);
// Bytes, by purpose. `session` may be null.
Json describe_memory(const engine::Engine& engine, const engine::Session* session);
// "scalar avx2 ...": what may be used.
std::string describe_features(const cpu::Features& features);

}  // namespace quern::cli
