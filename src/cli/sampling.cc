// SPDX-License-Identifier: Apache-2.0
// The options of sampling.h.
#include "cli/sampling.h"

#include <fmt/format.h>

#include <limits>
#include <random>

#include "cli/arguments.h"

namespace quern::cli {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// ID=X; X may be -inf.
engine::LogitBias read_bias(const std::string& word) {
  const std::string option = "--logit-bias", allowed = "a token id and a number, as in 42=-1.5 or 42=-inf,";
  const size_t equals = word.find('=');
  if (equals == std::string::npos) refuse_word(option, word, allowed);
  const std::string id = word.substr(0, equals), bias = word.substr(equals + 1);
  if (id.empty() || bias.empty()) refuse_word(option, word, allowed);
  engine::LogitBias result;
  result.id = read_whole<int32_t>(option, id, 0, std::numeric_limits<int32_t>::max());
  result.bias =
      bias == "-inf" ? -std::numeric_limits<float>::infinity() : read_number(option, bias, {-kLargest, kLargest});
  return result;
}

}  // namespace

void add_sampling(CLI::App& app, SamplingFlags& to) {
  auto* greedy = app.add_flag("--greedy", to.choice.greedy, "Always the most likely token");
  greedy->excludes(add_number(app, "--temperature", to.choice.temperature,
                              "Flatter above 1, sharper below; 0 is greedy", {0, kLargest}));
  greedy->excludes(
      add_whole<int32_t>(app, "--top-k", to.choice.top_k, "Sample from the K most likely tokens; 0: no limit", 0));
  greedy->excludes(add_number(app, "--top-p", to.choice.top_p,
                              "Sample from the most likely tokens that sum to P, above 0; 1: no limit", {0, 1, true}));
  greedy->excludes(add_number(app, "--min-p", to.choice.min_p,
                              "Sample from tokens at least P times as likely as the most likely one; 0: no limit",
                              {0, 1}));
  add_number(app, "--repeat-penalty", to.choice.repetition_penalty,
             "Divides the logits of tokens of the prompt and the text (multiplies them below 0); 1: none",
             {0, kLargest, true});
  add_number(app, "--presence-penalty", to.choice.presence_penalty,
             "Taken off the logits of tokens that were generated; 0: none", {-kLargest, kLargest});
  add_number(app, "--frequency-penalty", to.choice.frequency_penalty,
             "The same, once for every time that a token was generated; 0: none", {-kLargest, kLargest});
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&to](const std::vector<std::string>& words) {
           to.choice.logit_bias.clear();
           for (const std::string& word : words) to.choice.logit_bias.push_back(read_bias(word));
         },
         "Added to the logit of a token id, -inf: never this token; any number of times")
      ->type_name("ID=X")
      ->allow_extra_args(false);
  add_whole<uint64_t>(app, "--seed", to.seed, "Where the random numbers start; without it, anywhere", 0);
}

void add_stop(CLI::App& app, std::vector<std::string>& to) {
  app.add_option_function<std::vector<std::string>>(
         "--stop", [&to](const std::vector<std::string>& words) { to = words; },
         "End in front of this text; any number of times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
}

void add_repeat_guard(CLI::App& app, int32_t& to) {
  const auto read = [&to](const std::string& word) {
    to = read_whole<int32_t>("--repeat-guard", word, 0, std::numeric_limits<int32_t>::max());
    if (to == 1) refuse_word("--repeat-guard", word, "0 and whole numbers from 2");
  };
  app.add_option_function<std::string>(
         "--repeat-guard", read,
         fmt::format("End a text whose tokens go round in a circle when a cycle came so often ({}); 0: never", to))
      ->type_name("TIMES");
}

void report_repetition(const engine::Generation& generation) {
  if (generation.finish_reason != engine::FinishReason::repetition) return;
  write_message(
      fmt::format("quern: the text went round in a circle of {} tokens and was ended (--repeat-guard 0 goes on)\n",
                  generation.cycle_tokens));
}

void describe_finish(const engine::Generation& generation, Json& json) {
  json["finish_reason"] = std::string(engine::finish_reason_name(generation.finish_reason));
  if (generation.finish_reason == engine::FinishReason::repetition) json["cycle_tokens"] = generation.cycle_tokens;
}

Result<engine::SamplingOptions> choose_sampling(const SamplingFlags& flags, const engine::Engine& engine) {
  engine::SamplingChoice choice = flags.choice;
  choice.seed = flags.seed ? *flags.seed : std::random_device()() | uint64_t{std::random_device()()} << 32;
  QUERN_TRY(engine::SamplingOptions result, engine.choose_sampling(choice));
  QUERN_TRY_VOID(engine::check_sampling(result, engine.info().vocab));
  return result;
}

Json describe_sampling(const engine::SamplingOptions& sampling) {
  const bool greedy = sampling.greedy || sampling.temperature == 0;
  Json json = {{"greedy", greedy}};
  if (!greedy) {
    json["temperature"] = json_number(sampling.temperature);
    json["top_k"] = sampling.top_k;
    json["top_p"] = json_number(sampling.top_p);
    json["min_p"] = json_number(sampling.min_p);
  }
  json["repetition_penalty"] = json_number(sampling.repetition_penalty);
  json["presence_penalty"] = json_number(sampling.presence_penalty);
  json["frequency_penalty"] = json_number(sampling.frequency_penalty);
  if (!greedy) json["seed"] = sampling.seed;
  return json;
}

}  // namespace quern::cli
