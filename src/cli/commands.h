// SPDX-License-Identifier: Apache-2.0
// Owns the list of the program's commands: what main.cc needs of each. Each command is one source file.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/error.h"

namespace quern::cli {

// Runs a parsed command. The value is the process's exit code, 0 unless the command was interrupted.
using Action = std::function<Result<int>()>;

// Each adds its subcommands to `app`; the one that is parsed sets `chosen`.
void add_run(CLI::App& app, Action& chosen);
void add_chat(CLI::App& app, Action& chosen);
void add_inspect(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);
void add_perplexity(CLI::App& app, Action& chosen);
void add_tokenize(CLI::App& app, Action& chosen);  // tokenize and detokenize

}  // namespace quern::cli
