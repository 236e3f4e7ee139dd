// SPDX-License-Identifier: Apache-2.0
// quern perplexity: how well a model predicts a text.
#include "engine/perplexity.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "engine/engine.h"

namespace quern::cli {
namespace {

struct Options {
  std::string model;
  std::string file;
  int32_t window_tokens = 0;
  int32_t stride_tokens = 0;
  engine::EngineOptions opening;
  bool json = false;
};

Json describe(const engine::Engine& engine, const engine::Perplexity& result, double tokenize_ms, double score_ms) {
  Json json;
  json["perplexity"] = result.perplexity();
  json["mean_negative_log_likelihood"] = result.mean();
  json["counts"] = {{"tokens", result.tokens},
                    {"scored_tokens", result.scored_tokens},
                    {"windows", result.windows},
                    {"window_tokens", result.window_tokens},
                    {"stride_tokens", result.stride_tokens}};
  json["timings"] = {{"load_ms", engine.load_ms()}, {"tokenize_ms", tokenize_ms}, {"score_ms", score_ms}};
  json["memory"] = describe_memory(engine, nullptr);
  json["threads"] = engine.threads();
  json["isa"] = describe_features(engine.features());
  return json;
}

Result<int> perplexity(const Options& options) {
  QUERN_TRY(const std::string text, read_all(options.file));
  Progress progress;
  progress.show(fmt::format("loading {}", options.model));
  engine::EngineOptions opening = options.opening;
  opening.context_tokens = options.window_tokens;
  QUERN_TRY(const auto engine, engine::Engine::open(options.model, opening));
  progress.clear();

  int64_t start = now_ns();
  QUERN_TRY(const std::vector<int32_t> ids, engine->encode(text));
  const double tokenize_ms = ms_since(start);
  engine::PerplexityOptions wanted;
  wanted.window_tokens = options.window_tokens;
  wanted.stride_tokens = options.stride_tokens;
  wanted.cancel = answer_interrupts();
  wanted.progress = [&](int64_t done, int64_t total) {
    progress.show(fmt::format("text: {} of {} tokens", done, total));
  };
  start = now_ns();
  QUERN_TRY(const engine::Perplexity result, engine::measure_perplexity(*engine, ids, wanted));
  const double score_ms = ms_since(start);
  progress.clear();
  if (options.json) {
    QUERN_TRY_VOID(write_json(describe(*engine, result, tokenize_ms, score_ms)));
  } else {
    QUERN_TRY_VOID(
        write_out(fmt::format("perplexity {:.4f}, mean negative log-likelihood {:.6f}\n"
                              "{} of {} tokens scored, in {} windows of {} tokens, one every {}\n",
                              result.perplexity(), result.mean(), result.scored_tokens, result.tokens, result.windows,
                              result.window_tokens, result.stride_tokens)));
  }
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "perplexity", "Score the tokens of a text: mean negative log-likelihood (nats) and its exponential");
  command->add_option("MODEL", options->model, "The model's folder")->required();
  command->add_option("-f,--file", options->file, "The text; - is standard input")->required();
  add_whole<int32_t>(*command, "--ctx", options->window_tokens,
                     "Tokens in a window; each window is read without what is before it (512)", 2);
  add_whole<int32_t>(
      *command, "--stride", options->stride_tokens,
      "Tokens from one window's start to the next; fewer than --ctx: windows overlap, and every token is "
      "scored in the first that holds it (as many as --ctx)",
      1);
  add_whole<int32_t>(*command, "-t,--threads", options->opening.threads,
                     "Compute threads; the usable physical cores without it", 1, engine::kMaxThreads);
  add_opening(*command, options->opening);
  command->add_flag("--json", options->json, "One JSON object with counts, timings and memory instead of the text");
  command->callback([options, &chosen] { chosen = [options] { return perplexity(*options); }; });
}

}  // namespace quern::cli
