// SPDX-License-Identifier: Apache-2.0
// quern bench: times of prompts and of single tokens at several depths, with every sample.
// Does not compare with anything: bench/compare runs this and the others side by side.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "cpu/topology.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace quern::cli {
namespace {

struct BenchOptions {
  std::string model;
  std::vector<int32_t> prompts = {512};
  std::vector<int32_t> tokens = {32};
  std::vector<int32_t> depths = {0};
  std::vector<int32_t> threads;
  std::vector<std::string> no_fuse;
  int32_t repetitions = 3;
  std::string output = "table";
};

struct Row {
  std::string name;  // "prefill" or "decode"
  int32_t depth = 0;
  int32_t tokens = 0;  // timed together (prefill) or one by one (decode)
  int threads = 0;
  std::vector<double> samples;  // ms: of the prompt, or of each token

  double quantile(double q) const {
    std::vector<double> sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    const double at = q * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<size_t>(at);
    const size_t high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
  }
  double mean() const {
    double sum = 0;
    for (const double s : samples) sum += s;
    return sum / static_cast<double>(samples.size());
  }
  double deviation() const {
    if (samples.size() < 2) return 0;
    double sum = 0;
    for (const double s : samples) sum += (s - mean()) * (s - mean());
    return std::sqrt(sum / static_cast<double>(samples.size() - 1));
  }
  double tokens_per_second() const { return (name == "prefill" ? tokens : 1) * 1000.0 / quantile(0.5); }
};

std::vector<int32_t> random_ids(engine::Random& random, int32_t count, int32_t limit) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.uniform() * limit);
  return ids;
}

// One untimed round, then the timed ones.
Result<Row> time_prefill(engine::Session& session, const engine::Engine& engine, int32_t tokens, int32_t repetitions) {
  Row row{"prefill", tokens, tokens, engine.threads(), {}};
  engine::Random random(1);
  for (int32_t r = 0; r <= repetitions; r++) {
    session.reset();
    const auto ids = random_ids(random, tokens, engine.sampled_ids());
    const int64_t start = now_ns();
    QUERN_TRY_VOID(session.append(ids));
    if (r > 0) row.samples.push_back(ms_since(start));
  }
  return row;
}

Result<Row> time_decode(engine::Session& session, const engine::Engine& engine, int32_t depth, int32_t tokens,
                        int32_t repetitions) {
  Row row{"decode", depth, tokens, engine.threads(), {}};
  engine::Random random(2);
  session.reset();
  QUERN_TRY_VOID(session.reserve(int64_t{depth} + tokens));
  QUERN_TRY_VOID(session.append(random_ids(random, depth, engine.sampled_ids())));
  for (int32_t r = 0; r <= repetitions; r++) {
    QUERN_TRY_VOID(session.rewind(depth));
    const auto ids = random_ids(random, tokens, engine.sampled_ids());
    for (size_t i = 0; i < ids.size(); i++) {
      const int64_t start = now_ns();
      QUERN_TRY_VOID(session.append(std::span(ids).subspan(i, 1)));
      if (r > 0) row.samples.push_back(ms_since(start));
    }
  }
  return row;
}

Json describe(const Row& row, const std::string& model, const std::string& isa, const engine::EngineMemory& memory) {
  return {{"model", json_text(model)},
          {"case", row.name},
          {"depth", row.depth},
          {"tokens", row.tokens},
          {"threads", row.threads},
          {"isa", isa},
          {"kv", "fp32"},
          {"quern_ms", row.quantile(0.5)},
          {"mean_ms", row.mean()},
          {"deviation_ms", row.deviation()},
          {"p90_ms", row.quantile(0.9)},
          {"tokens_per_second", row.tokens_per_second()},
          {"weight_bytes", memory.model.weight_bytes},
          {"rss_mb", static_cast<double>(memory.peak_resident) / (1 << 20)},
          {"samples", row.samples}};
}

constexpr std::string_view kColumns[] = {"model",    "case",    "depth",        "tokens", "threads",          "isa",
                                         "quern_ms", "mean_ms", "deviation_ms", "p90_ms", "tokens_per_second"};

std::string csv(const std::vector<Json>& rows) {
  std::string text = fmt::format("{}\n", fmt::join(kColumns, ","));
  for (const Json& row : rows) {
    std::vector<std::string> cells;
    for (const auto& column : kColumns) cells.push_back(row[std::string(column)].dump());
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

std::string table(const std::vector<Json>& rows) {
  std::string text = fmt::format("{:<8} {:>6} {:>7} {:>7} {:>12} {:>12} {:>12} {:>12}\n", "case", "depth", "tokens",
                                 "threads", "median ms", "mean ms", "deviation", "tokens/s");
  for (const Json& row : rows) {
    text += fmt::format("{:<8} {:>6} {:>7} {:>7} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.2f}\n",
                        row["case"].get<std::string>(), row["depth"].get<int>(), row["tokens"].get<int>(),
                        row["threads"].get<int>(), row["quern_ms"].get<double>(), row["mean_ms"].get<double>(),
                        row["deviation_ms"].get<double>(), row["tokens_per_second"].get<double>());
  }
  return text;
}

Json machine() {
  const cpu::Topology topology = cpu::read_topology();
  return {{"cpu", json_text(topology.model)},
          {"physical_cores", topology.physical},
          {"features", describe_features(cpu::detect_features())},
          {"version", QUERN_VERSION}};
}

Result<int> bench(const BenchOptions& options) {
  Progress progress;
  std::vector<Json> rows;
  const char* cap = std::getenv("QUERN_ISA");
  const std::string isa = cap == nullptr || *cap == '\0' ? "auto" : cap;
  const std::vector<int32_t> threads = options.threads.empty() ? std::vector<int32_t>{0} : options.threads;
  for (const int32_t count : threads) {
    progress.show(fmt::format("loading {}", options.model));
    engine::EngineOptions engine_options;
    engine_options.threads = count;
    engine_options.no_fuse = options.no_fuse;
    engine_options.with_text = false;
    QUERN_TRY(const auto engine, engine::Engine::open(options.model, engine_options));
    const auto add = [&](const Row& row) { rows.push_back(describe(row, options.model, isa, engine->memory())); };
    QUERN_TRY(auto session, engine->new_session());
    for (const int32_t prompt : options.prompts) {
      if (prompt == 0) continue;
      progress.show(fmt::format("prefill of {} tokens, {} threads", prompt, engine->threads()));
      QUERN_TRY(const Row row, time_prefill(*session, *engine, prompt, options.repetitions));
      add(row);
    }
    for (const int32_t depth : options.depths) {
      for (const int32_t tokens : options.tokens) {
        if (tokens == 0) continue;
        progress.show(fmt::format("decode of {} tokens at depth {}, {} threads", tokens, depth, engine->threads()));
        QUERN_TRY(const Row row, time_decode(*session, *engine, depth, tokens, options.repetitions));
        add(row);
      }
    }
  }
  progress.clear();
  if (options.output == "csv") {
    QUERN_TRY_VOID(write_out(csv(rows)));
  } else if (options.output == "json") {
    QUERN_TRY_VOID(write_json({{"machine", machine()}, {"rows", rows}}));
  } else if (options.output == "jsonl") {
    for (const Json& row : rows) QUERN_TRY_VOID(write_json(row));
  } else {
    QUERN_TRY_VOID(write_out(table(rows)));
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "Measure prompts and single tokens; random token ids");
  command->add_option("MODEL", options->model, "The model's folder")->required();
  add_whole_list(*command, "-p,--prompt-tokens", options->prompts, "Lengths of prompts to compute (512; 0: none)", 0,
                 INT32_MAX);
  add_whole_list(*command, "-n,--tokens", options->tokens, "Numbers of single tokens to compute (32; 0: none)", 0,
                 INT32_MAX);
  add_whole_list(*command, "-d,--depth", options->depths, "Tokens before the single tokens (0)", 0, INT32_MAX);
  add_whole_list(*command, "-t,--threads", options->threads, "Compute threads (the usable physical cores)", 1,
                 engine::kMaxThreads);
  add_whole<int32_t>(*command, "-r,--repetitions", options->repetitions, "Timed rounds after one untimed (3)", 1,
                     100000);
  add_no_fuse(*command, options->no_fuse);
  command->add_option("--output", options->output, "table, csv, json or jsonl")
      ->check(CLI::IsMember({"table", "csv", "json", "jsonl"}));
  command->callback([options, &chosen] { chosen = [options] { return bench(*options); }; });
}

}  // namespace quern::cli
