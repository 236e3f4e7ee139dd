// SPDX-License-Identifier: Apache-2.0
// Drives the sampler in bulk for tests/oracle: one JSON object per line in, one per line out. Not a product command.
//   {"logits":[...], "options":{SamplingOptions by name, "logit_bias":{"ID":X}}, "prompt":[...], "generated":[...],
//    "masked":[...], "draws":N}  -> {"counts":{"ID":times}}
// Each draw starts from the same history: `generated` is forced by rows in which nothing else is possible.
// Any failure is {"error":{"code","what","where"}}.
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace {

using nlohmann::json;
using quern::Result;
using quern::engine::Sampler;
using quern::engine::SamplingOptions;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingOptions read_options(const json& o) {
  SamplingOptions options;
  options.greedy = o.value("greedy", options.greedy);
  options.temperature = o.value("temperature", options.temperature);
  options.top_k = o.value("top_k", options.top_k);
  options.top_p = o.value("top_p", options.top_p);
  options.min_p = o.value("min_p", options.min_p);
  options.repetition_penalty = o.value("repetition_penalty", options.repetition_penalty);
  options.presence_penalty = o.value("presence_penalty", options.presence_penalty);
  options.frequency_penalty = o.value("frequency_penalty", options.frequency_penalty);
  options.seed = o.value("seed", options.seed);
  const json biases = o.value("logit_bias", json::object());
  for (const auto& [id, bias] : biases.items()) {
    // JSON has no infinity.
    options.logit_bias.push_back({std::stoi(id), bias.is_null() ? -kInfinity : bias.get<float>()});
  }
  return options;
}

Result<json> answer(const json& request) {
  const std::vector<float> logits = request.at("logits");
  const SamplingOptions options = read_options(request.at("options"));
  QUERN_TRY_VOID(quern::engine::check_sampling(options, static_cast<int32_t>(logits.size())));
  const std::vector<int32_t> prompt = request.at("prompt"), generated = request.at("generated"),
                             masked = request.at("masked");
  std::map<std::string, int> counts;
  for (int draw = 0; draw < request.at("draws").get<int>(); draw++) {
    SamplingOptions seeded = options;
    seeded.seed = options.seed + static_cast<uint64_t>(draw);
    Sampler sampler(seeded, masked);
    sampler.see_prompt(prompt);
    for (const int32_t id : generated) {
      std::vector<float> row(logits.size(), -kInfinity);
      row[static_cast<size_t>(id)] = 0;
      QUERN_TRY(const int32_t forced, sampler.sample(row));
      QUERN_CHECK(forced == id, "a row with one possible id");
    }
    QUERN_TRY(const int32_t id, sampler.sample(logits));
    counts[std::to_string(id)]++;
  }
  return json{{"counts", counts}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto result = answer(json::parse(line));
    if (result.ok()) {
      std::cout << result->dump() << std::endl;
    } else {
      const quern::Error& e = result.error();
      const json error = {{"code", quern::errc_name(e.code)}, {"what", e.what}, {"where", e.where}};
      std::cout << json{{"error", error}}.dump() << std::endl;
    }
  }
  return 0;
}
