// SPDX-License-Identifier: Apache-2.0
// Owns the program's start and end: the command line, the one message on standard error, the exit code.
// Exit codes come from errors through quern::exit_code(); the only numbers of its own are usage and interruption.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/quote_name.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace quern::cli {
namespace {

constexpr int kExitUsage = 2;

int fail(const Error& error) {
  // Whoever interrupted knows it.
  if (error.code != Errc::cancelled) {
    write_message(fmt::format("quern: {}: {}\n", errc_name(error.code), one_line(error.message())));
  }
  return exit_code(error.code);
}

int fail_usage(const CLI::App& app, std::string_view what) {
  const auto commands = app.get_subcommands();
  const std::string command = commands.empty() ? "quern" : "quern " + commands.front()->get_name();
  write_message(fmt::format("quern: usage: {}; see {} --help\n", one_line(what), command));
  return kExitUsage;
}

// CLI11 names words it does not know only where no command is missing.
int fail_command(const CLI::App& app, const std::string& word) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return fail_usage(app, fmt::format("{} is not a command, commands are {}", quote_name(word), names));
}

int run(int argc, char** argv) {
  CLI::App app("quern runs Qwen models on the CPU.", "quern");
  app.set_version_flag("--version", "quern " QUERN_VERSION);
  app.require_subcommand(1);
  Action chosen;
  add_run(app, chosen);
  add_chat(app, chosen);
  add_inspect(app, chosen);
  add_bench(app, chosen);
  add_perplexity(app, chosen);
  add_tokenize(app, chosen);
  try {
    std::vector<std::string> words = words_of(app, argc, argv);
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    app.parse(std::move(words));
  } catch (const CLI::Success& e) {
    // Help and version.
    std::ostringstream text, unused;
    app.exit(e, text, unused);
    const Result<void> written = write_out(text.str());
    return written.ok() ? 0 : fail(written.error());
  } catch (const CLI::RequiredError& e) {
    if (app.get_subcommands().empty() && app.remaining_size() > 0) return fail_command(app, app.remaining().front());
    return fail_usage(app, e.what());
  } catch (const CLI::ParseError& e) {
    return fail_usage(app, e.what());
  }
  auto done = chosen();
  return done.ok() ? *done : fail(done.error());
}

}  // namespace
}  // namespace quern::cli

int main(int argc, char** argv) {
  quern::cli::watch_interrupts();
  // A reader that goes away is an output error like a full disk, not a silent death.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // so is a file at its size limit
  quern::cli::hold_standard_streams();
  try {
    return quern::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return quern::cli::fail({quern::Errc::no_memory, "the memory needed is not available", ""});
  } catch (const std::exception& e) {
    return quern::cli::fail({quern::Errc::internal, e.what(), ""});
  }
}
