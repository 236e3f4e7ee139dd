// SPDX-License-Identifier: Apache-2.0
// Owns the options of commands that generate text: how the next token is chosen, and what ends the text.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/output.h"
#include "engine/engine.h"
#include "engine/generation.h"

namespace quern::cli {

// What the command line says.
struct SamplingFlags {
  engine::SamplingChoice choice;  // but for its seed
  std::optional<uint64_t> seed;   // absent: from anywhere
};

// `to` must outlive the parsing.
void add_sampling(CLI::App& app, SamplingFlags& to);
// --stop TEXT, any number of times.
void add_stop(CLI::App& app, std::vector<std::string>& to);
// --repeat-guard TIMES, of GenerateOptions.
void add_repeat_guard(CLI::App& app, int32_t& to);

// Without a seed of its own, one from anywhere. Errors: those of Engine::choose_sampling() and of
// engine::check_sampling().
Result<engine::SamplingOptions> choose_sampling(const SamplingFlags& flags, const engine::Engine& engine);

// Says on standard error that tokens which go round in a circle ended the text, where they did.
void report_repetition(const engine::Generation& generation);
// What ended a text: "finish_reason" and, for a circle of tokens, its "cycle_tokens".
void describe_finish(const engine::Generation& generation, Json& json);

// What was chosen, without what has no influence.
Json describe_sampling(const engine::SamplingOptions& sampling);

}  // namespace quern::cli
