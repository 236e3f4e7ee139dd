// SPDX-License-Identifier: Apache-2.0
// Owns the program's start and end: the command line, the one message on standard error, the exit code.
// Exit codes come from errors through quern::exit_code(); the only numbers of its own are usage and interruption.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "cli/commands.h"

namespace quern::cli {
namespace {

constexpr int kExitUsage = 2;

int fail(const Error& error) {
  fmt::print(stderr, "quern: {}: {}\n", errc_name(error.code), error.message());
  return exit_code(error.code);
}

int run(int argc, char** argv) {
  CLI::App app("quern runs Qwen models on the CPU.", "quern");
  app.set_version_flag("--version", "quern " QUERN_VERSION);
  app.require_subcommand(1);
  Action chosen;
  add_run(app, chosen);
  add_inspect(app, chosen);
  add_bench(app, chosen);
  add_tokenize(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // Help and version arrive here, too, with exit code 0 and their text for standard output.
    return app.exit(e) == 0 ? 0 : kExitUsage;
  }
  auto done = chosen();
  return done.ok() ? *done : fail(done.error());
}

}  // namespace
}  // namespace quern::cli

int main(int argc, char** argv) {
  // A reader that goes away is an output error like a full disk, not a silent death.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return quern::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return quern::cli::fail({quern::Errc::no_memory, "the memory needed is not available", ""});
  } catch (const std::exception& e) {
    return quern::cli::fail({quern::Errc::internal, e.what(), ""});
  }
}
