// SPDX-License-Identifier: Apache-2.0
// quern run: one prompt in, its continuation out.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace quern::cli {
namespace {

struct RunOptions {
  std::string model;
  std::string stdin_mark;  // "-" when given
  std::optional<std::string> prompt;
  std::optional<std::string> file;
  std::vector<std::string> prompt_ids;
  int32_t max_tokens = 256;
  bool greedy = false;
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<uint64_t> seed;
  int threads = 0;
  std::vector<std::string> no_fuse;
  bool json = false;
};

// ---- interruption ----

std::atomic<bool> interrupted{false};
std::atomic<bool> stoppable{false};  // somebody looks at `interrupted`
static_assert(std::atomic<bool>::is_always_lock_free, "used in a signal handler");
// 128 + SIGINT, as shells report it.
constexpr int kExitInterrupted = 130;

extern "C" void on_interrupt(int) {
  if (!stoppable.load() || interrupted.exchange(true)) _exit(kExitInterrupted);
}

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = &on_interrupt;
  action.sa_flags = SA_RESTART;  // text on its way out is not lost
  sigaction(SIGINT, &action, nullptr);
}

// ---- pieces ----

Result<std::vector<int32_t>> prompt_tokens(const RunOptions& options, const engine::Engine& engine) {
  if (!options.prompt_ids.empty()) return read_ids(options.prompt_ids, "prompt token", engine.info().vocab);
  std::string text;
  if (options.prompt) {
    text = *options.prompt;
  } else {
    QUERN_TRY(text, read_all(options.file ? *options.file : "-"));
  }
  QUERN_TRY(auto ids, engine.encode(text));
  if (ids.empty()) return bad_request("prompt", "has no tokens, at least one is needed");
  return ids;
}

Result<engine::SamplingOptions> sampling(const RunOptions& options, const engine::Engine& engine) {
  engine::SamplingOptions result;
  if (options.greedy) {
    result.greedy = true;
  } else if (options.temperature && options.top_k && options.top_p) {
    result.temperature = *options.temperature;
  } else {
    QUERN_TRY(result, engine.default_sampling());
    if (options.temperature || options.top_k || options.top_p) result.greedy = false;
    if (options.temperature) result.temperature = *options.temperature;
  }
  if (options.top_k) result.top_k = *options.top_k;
  if (options.top_p) result.top_p = *options.top_p;
  result.seed = options.seed ? *options.seed : std::random_device()() | uint64_t{std::random_device()()} << 32;
  QUERN_TRY_VOID(engine::check_sampling(result));
  return result;
}

struct Timings {
  double tokenize_ms = 0;
  double prefill_ms = 0;
};

Json describe_sampling(const engine::SamplingOptions& sampling) {
  if (sampling.greedy || sampling.temperature == 0) return {{"greedy", true}};
  return {{"greedy", false},
          {"temperature", json_number(sampling.temperature)},
          {"top_k", sampling.top_k},
          {"top_p", json_number(sampling.top_p)},
          {"seed", sampling.seed}};
}

Json describe(const engine::Engine& engine, const engine::Session& session, const std::vector<int32_t>& prompt,
              const engine::SamplingOptions& sampling, const engine::Generation& generation, const Timings& timings) {
  const engine::GenerateTimings& t = generation.timings;
  const model::StateCounters counters = session.counters();
  Json json;
  json["text"] = generation.text;
  json["token_ids"] = generation.token_ids;
  json["prompt_ids"] = prompt;
  json["finish_reason"] = std::string(engine::finish_reason_name(generation.finish_reason));
  json["timings"] = {{"load_ms", engine.load_ms()},
                     {"tokenize_ms", timings.tokenize_ms},
                     {"prefill_ms", timings.prefill_ms},
                     {"first_token_ms", timings.tokenize_ms + timings.prefill_ms + t.first_token_ms},
                     {"decode_ms", t.decode_ms},
                     {"decode_ms_per_token", t.decode_ms_per_token()},
                     {"sample_ms", t.sample_ms}};
  json["counts"] = {{"prompt_tokens", prompt.size()},
                    {"generated_tokens", generation.token_ids.size()},
                    {"decode_tokens", t.decode_tokens},
                    {"forwards", counters.forwards},
                    {"bytes_copied", counters.bytes_copied},
                    {"cache_bytes_copied", counters.cache_bytes_copied},
                    {"cache_bytes_appended", counters.cache_bytes_appended},
                    {"weight_bytes_read", counters.weight_bytes_read}};
  json["memory"] = describe_memory(engine, &session);
  json["ownership"] = count_owners(session.graph_report());
  json["sampling"] = describe_sampling(sampling);
  json["threads"] = engine.threads();
  json["isa"] = describe_features(engine.features());
  return json;
}

Result<int> run(const RunOptions& options) {
  watch_interrupts();
  Progress progress;
  progress.show(fmt::format("loading {}", options.model));
  engine::EngineOptions engine_options;
  engine_options.threads = options.threads;
  engine_options.no_fuse = options.no_fuse;
  QUERN_TRY(const auto engine, engine::Engine::open(options.model, engine_options));
  progress.clear();
  QUERN_TRY(const engine::SamplingOptions chosen, sampling(options, *engine));

  Timings timings;
  int64_t start = now_ns();
  QUERN_TRY(const std::vector<int32_t> prompt, prompt_tokens(options, *engine));
  timings.tokenize_ms = ms_since(start);
  QUERN_TRY(auto session, engine->new_session());
  if (prompt.size() <= static_cast<size_t>(engine->info().context_tokens)) {
    // What is asked for is usually short beside the prompt; a long limit is rarely reached.
    constexpr int64_t kMostReserved = 1024;
    QUERN_TRY_VOID(
        session->reserve(static_cast<int64_t>(prompt.size()) + std::min<int64_t>(options.max_tokens, kMostReserved)));
  }
  stoppable.store(true);
  start = now_ns();
  engine::AppendOptions append;
  append.cancel = &interrupted;
  append.progress = [&](int64_t done, int64_t total) {
    progress.show(fmt::format("prompt: {} of {} tokens", done, total));
  };
  QUERN_TRY_VOID(session->append(prompt, append));
  timings.prefill_ms = ms_since(start);
  progress.clear();

  engine::GenerateOptions generate;
  generate.max_tokens = options.max_tokens;
  generate.sampling = chosen;
  generate.cancel = &interrupted;
  Result<void> written;
  if (!options.json) {
    generate.on_token = [&](std::string_view text, int32_t) {
      written = write_out(text);
      return written.ok();
    };
  }
  QUERN_TRY(const engine::Generation generation, session->generate(generate));
  QUERN_TRY_VOID(std::move(written));
  if (options.json) {
    QUERN_TRY_VOID(write_json(describe(*engine, *session, prompt, chosen, generation, timings)));
  } else {
    QUERN_TRY_VOID(end_text());
  }
  return generation.finish_reason == engine::FinishReason::cancelled ? kExitInterrupted : 0;
}

}  // namespace

void add_run(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      app.add_subcommand("run", "Continue a prompt: text to standard output, everything else to standard error");
  command->add_option("MODEL", options->model, "The model's folder")->required();
  auto* source = command->add_option_group("prompt", "Where the prompt comes from");
  source->add_option("-p,--prompt", options->prompt, "The prompt itself");
  source->add_option("-f,--file", options->file, "A file that holds the prompt");
  source
      ->add_option_function<std::string>(
          "--prompt-ids", [options](const std::string& word) { options->prompt_ids = split_ids("--prompt-ids", word); },
          "The prompt as token ids in decimal")
      ->type_name("N,N,...");
  source->add_option("STDIN", options->stdin_mark, "A single - : standard input")->check(CLI::IsMember({"-"}));
  source->require_option(1);
  add_whole<int32_t>(*command, "-n,--max-tokens", options->max_tokens, "Tokens to generate at most (256)", 0);
  auto* greedy = command->add_flag("--greedy", options->greedy, "Always the most likely token");
  greedy->excludes(add_number(*command, "--temperature", options->temperature,
                              "Flatter above 1, sharper below; 0 is greedy", std::numeric_limits<float>::max(), false));
  greedy->excludes(
      add_whole<int32_t>(*command, "--top-k", options->top_k, "Sample from the K most likely tokens; 0: no limit", 0));
  greedy->excludes(add_number(*command, "--top-p", options->top_p,
                              "Sample from the most likely tokens that sum to P, above 0; 1: no limit", 1, true));
  add_whole<uint64_t>(*command, "--seed", options->seed, "Where the random numbers start; without it, anywhere", 0);
  add_whole<int32_t>(*command, "-t,--threads", options->threads,
                     "Compute threads; the usable physical cores without it", 1, engine::kMaxThreads);
  add_no_fuse(*command, options->no_fuse);
  command->add_flag("--json", options->json, "One JSON object with text, ids, timings and counts instead of the text");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace quern::cli
