// SPDX-License-Identifier: Apache-2.0
// quern run: one prompt in, its continuation out.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/sampling.h"
#include "engine/chat.h"
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
  SamplingFlags sampling;
  std::vector<std::string> stop_strings;
  std::optional<int32_t> log_probs;
  int32_t repeat_guard = engine::GenerateOptions().repeat_guard;
  bool chat = false;
  bool no_think = false;
  std::optional<std::string> load_state;
  std::optional<std::string> save_state;
  engine::EngineOptions opening;
  bool json = false;
};

Result<std::vector<int32_t>> prompt_tokens(const RunOptions& options,
                                           const std::shared_ptr<const engine::Engine>& engine) {
  if (!options.prompt_ids.empty()) return read_ids(options.prompt_ids, "prompt token", engine->info().vocab);
  std::string text;
  if (options.prompt) {
    text = *options.prompt;
  } else {
    QUERN_TRY(text, read_all(options.file ? *options.file : "-"));
  }
  if (options.chat) {
    QUERN_TRY(const auto format, engine::ChatFormat::load(engine));
    const auto thinking = options.no_think ? std::optional(false) : std::nullopt;
    QUERN_TRY(auto prompt, format.prompt(engine::Messages{{{"role", "user"}, {"content", text}}}, thinking));
    return std::move(prompt.ids);
  }
  return engine->encode(text);
}

struct Timings {
  double tokenize_ms = 0;
  double prefill_ms = 0;
};

Json describe_log_probs(const std::vector<engine::TokenLogProbs>& tokens) {
  const auto entry = [](const engine::TokenLogProbs::Entry& e) { return Json{{"id", e.id}, {"log_prob", e.log_prob}}; };
  Json json = Json::array();
  for (const engine::TokenLogProbs& token : tokens) {
    Json row = entry(token.chosen);
    row["top"] = Json::array();
    for (const auto& e : token.top) row["top"].push_back(entry(e));
    json.push_back(row);
  }
  return json;
}

Json describe(const RunOptions& options, const engine::Engine& engine, const engine::Session& session,
              const std::vector<int32_t>& prompt, const engine::SamplingOptions& sampling,
              const engine::Generation& generation, const Timings& timings) {
  const engine::GenerateTimings& t = generation.timings;
  const model::StateCounters counters = session.counters();
  Json json;
  json["text"] = generation.text;
  json["token_ids"] = generation.token_ids;
  json["prompt_ids"] = prompt;
  if (options.log_probs) json["logprobs"] = describe_log_probs(generation.log_probs);
  describe_finish(generation, json);
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
  if (options.save_state) QUERN_TRY_VOID(engine::Session::check_save(*options.save_state));
  Progress progress;
  progress.show(fmt::format("loading {}", options.model));
  QUERN_TRY(const auto engine, engine::Engine::open(options.model, options.opening));
  progress.clear();
  QUERN_TRY(const engine::SamplingOptions chosen, choose_sampling(options.sampling, *engine));

  Timings timings;
  int64_t start = now_ns();
  QUERN_TRY(const std::vector<int32_t> prompt, prompt_tokens(options, engine));
  timings.tokenize_ms = ms_since(start);
  QUERN_TRY(auto session,
            options.load_state ? engine::Session::load(engine, *options.load_state) : engine->new_session());
  if (prompt.empty() && session->tokens().empty()) {
    return bad_request("prompt", "has no tokens, at least one is needed");
  }
  if (prompt.size() <= static_cast<size_t>(engine->info().context_tokens)) {
    // What is asked for is usually short beside the prompt; a long limit is rarely reached.
    constexpr int64_t kMostReserved = 1024;
    QUERN_TRY_VOID(session->reserve(static_cast<int64_t>(session->tokens().size() + prompt.size()) +
                                    std::min<int64_t>(options.max_tokens, kMostReserved)));
  }
  const engine::CancelFlag interrupted = answer_interrupts();
  start = now_ns();
  engine::AppendOptions append;
  append.cancel = interrupted;
  append.progress = [&](int64_t done, int64_t total) {
    progress.show(fmt::format("prompt: {} of {} tokens", done, total));
  };
  QUERN_TRY_VOID(session->append(prompt, append));
  timings.prefill_ms = ms_since(start);
  progress.clear();

  engine::GenerateOptions generate;
  generate.max_tokens = options.max_tokens;
  generate.sampling = chosen;
  generate.stop_strings = options.stop_strings;
  generate.log_probs = options.log_probs;
  generate.repeat_guard = options.repeat_guard;
  generate.cancel = interrupted;
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
    QUERN_TRY_VOID(write_json(describe(options, *engine, *session, prompt, chosen, generation, timings)));
  } else {
    QUERN_TRY_VOID(end_text());
    report_repetition(generation);
  }
  if (options.save_state) QUERN_TRY_VOID(session->save(*options.save_state));
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
  auto* ids = source->add_option_function<std::string>(
      "--prompt-ids", [options](const std::string& word) { options->prompt_ids = split_ids("--prompt-ids", word); },
      "The prompt as token ids in decimal");
  ids->type_name("N,N,...");
  // Also what stands behind an option that is not known, or a prompt without its -p.
  const auto only_a_mark = [](const std::string& word) {
    return word == "-" ? "" : fmt::format("'{}' belongs to no option that is known; a prompt is given with -p", word);
  };
  source->add_option("STDIN", options->stdin_mark, "A single - : standard input")->check(only_a_mark);
  source->require_option(1);
  auto* chat = command->add_flag("--chat", options->chat,
                                 "The prompt is a message; the model's chat template writes it for an answer");
  chat->excludes(ids);
  command->add_flag("--no-think", options->no_think, "With --chat: an answer without reasoning")->needs(chat);
  add_whole<int32_t>(*command, "-n,--max-tokens", options->max_tokens, "Tokens to generate at most (256)", 0);
  add_sampling(*command, options->sampling);
  add_stop(*command, options->stop_strings);
  add_repeat_guard(*command, options->repeat_guard);
  add_whole<int32_t>(*command, "-t,--threads", options->opening.threads,
                     "Compute threads; the usable physical cores without it", 1, engine::kMaxThreads);
  command
      ->add_option("--load-state", options->load_state,
                   "Go on from a timeline that --save-state wrote; the prompt may be empty")
      ->type_name("FILE");
  command->add_option("--save-state", options->save_state, "Write the timeline to a file at the end")
      ->type_name("FILE");
  add_opening(*command, options->opening);
  add_context(*command, options->opening.context_tokens);
  auto* json = command->add_flag("--json", options->json,
                                 "One JSON object with text, ids, timings and counts instead of the text");
  add_whole<int32_t>(*command, "--logprobs", options->log_probs,
                     "With --json: log-probabilities of every token and of the N most likely ones in its place", 0)
      ->needs(json);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace quern::cli
