// SPDX-License-Identifier: Apache-2.0
// quern bench: times of prompts and of single tokens at several depths, with every sample.
// Does not compare with anything: bench/compare runs this and the others side by side.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "cpu/limits.h"
#include "cpu/read_bandwidth.h"
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
  engine::EngineOptions opening;
  int32_t repetitions = 3;
  std::string output = "table";
};

struct Row {
  std::string name;  // "prefill" or "decode"
  int32_t depth = 0;
  int32_t tokens = 0;  // timed together (prefill) or one by one (decode)
  int threads = 0;
  std::vector<double> samples;  // ms: of the prompt, or of each token
  // Of one decoded token, as the counters give it; 0 for prefill, which reads weights once for many tokens.
  uint64_t weight_bytes_read = 0;
  uint64_t cache_bytes_per_token = 0;  // what one token adds to the past, and what every later one reads of it

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
  // The weights and, on average, the rows of the depth and of the tokens timed before, with the token's own.
  double bytes_read() const {
    return static_cast<double>(weight_bytes_read) +
           (depth + (tokens + 1) / 2.0) * static_cast<double>(cache_bytes_per_token);
  }
};

// Of those that the model takes.
std::vector<int32_t> random_ids(engine::Random& random, int32_t count, const engine::Engine& engine) {
  const std::vector<int32_t>& refused = engine.info().refused_ids;
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) {
    do {
      id = static_cast<int32_t>(random.uniform() * engine.sampled_ids());
    } while (std::ranges::find(refused, id) != refused.end());
  }
  return ids;
}

// One untimed round, then the timed ones.
Result<Row> time_prefill(engine::Session& session, const engine::Engine& engine, int32_t tokens, int32_t repetitions) {
  Row row{"prefill", tokens, tokens, engine.threads(), {}};
  engine::Random random(1);
  for (int32_t r = 0; r <= repetitions; r++) {
    session.reset();
    const auto ids = random_ids(random, tokens, engine);
    const int64_t start = now_ns();
    QUERN_TRY_VOID(session.append(ids));
    if (r > 0) row.samples.push_back(ms_since(start));
  }
  return row;
}

// Makes the session `depth` tokens long. What it has of them stays: which ids they are does not change a time.
Result<void> fill(engine::Session& session, const engine::Engine& engine, int32_t depth, engine::Random& random) {
  const auto length = static_cast<int64_t>(session.tokens().size());
  if (length > depth) return session.rewind(depth);
  return session.append(random_ids(random, static_cast<int32_t>(depth - length), engine));
}

Result<Row> time_decode(engine::Session& session, const engine::Engine& engine, int32_t depth, int32_t tokens,
                        int32_t repetitions) {
  Row row{"decode", depth, tokens, engine.threads(), {}};
  engine::Random random(2);
  QUERN_TRY_VOID(session.reserve(int64_t{depth} + tokens));
  QUERN_TRY_VOID(fill(session, engine, depth, random));
  const model::StateCounters before = session.counters();
  for (int32_t r = 0; r <= repetitions; r++) {
    QUERN_TRY_VOID(session.rewind(depth));
    const auto ids = random_ids(random, tokens, engine);
    for (size_t i = 0; i < ids.size(); i++) {
      const int64_t start = now_ns();
      QUERN_TRY_VOID(session.append(std::span(ids).subspan(i, 1)));
      if (r > 0) row.samples.push_back(ms_since(start));
    }
  }
  const model::StateCounters after = session.counters();
  const uint64_t forwards = after.forwards - before.forwards;
  row.weight_bytes_read = (after.weight_bytes_read - before.weight_bytes_read) / forwards;
  row.cache_bytes_per_token = (after.cache_bytes_appended - before.cache_bytes_appended) / forwards;
  return row;
}

// Where the weights stay in the caches, memory is not what a token waits for, and a percent of its bandwidth says
// nothing.
size_t last_level_cache() {
  const cpu::Topology topology = cpu::read_topology();
  return topology.l3_bytes != 0 ? topology.l3_bytes : topology.l2_bytes;
}

Json describe(const Row& row, const std::string& model, const std::string& isa, const engine::EngineMemory& memory,
              double read_gbps) {
  Json json = {{"model", json_text(model)},
               {"case", row.name},
               {"depth", row.depth},
               {"tokens", row.tokens},
               {"threads", row.threads},
               {"isa", isa},
               {"kv", memory.model.kv_type},
               {"quern_ms", row.quantile(0.5)},
               {"mean_ms", row.mean()},
               {"deviation_ms", row.deviation()},
               {"p10_ms", row.quantile(0.1)},
               {"p90_ms", row.quantile(0.9)},
               {"tokens_per_second", row.tokens_per_second()},
               {"weight_bytes", memory.model.weight_bytes},
               {"rss_mb", static_cast<double>(memory.peak_resident) / (1 << 20)}};
  if (row.name == "decode") {
    json["weight_bytes_read"] = row.weight_bytes_read;
    json["cache_bytes_per_token"] = row.cache_bytes_per_token;
    const double gbps = row.bytes_read() / row.quantile(0.5) / 1e6;
    json["gbps"] = gbps;
    json["read_gbps"] = read_gbps;
    const size_t cache = last_level_cache();
    json["last_level_cache_bytes"] = cache;
    if (row.weight_bytes_read > cache) json["pct_bandwidth"] = gbps / read_gbps * 100;
  }
  json["samples"] = row.samples;
  return json;
}

Json machine() {
  const cpu::Topology topology = cpu::read_topology();
  return {{"cpu", json_text(topology.model)},   {"physical_cores", topology.physical},
          {"quota", topology.quota.processors}, {"features", describe_features(cpu::detect_features())},
          {"version", QUERN_VERSION},           {"compiler", __VERSION__}};
}

// Rows in one of the forms. All but json are written row by row: what is measured is not lost when a later case fails.
class Report {
 public:
  explicit Report(std::string form) : form_(std::move(form)) {}

  Result<void> add(Json row) {
    const bool first = rows_.empty();
    rows_.push_back(std::move(row));
    if (form_ == "json") return {};
    if (form_ == "jsonl") {
      Json line = {{"machine", machine()}};
      line.update(rows_.back());
      return write_json(line);
    }
    const bool csv = form_ == "csv";
    if (first) QUERN_TRY_VOID(write_out(csv ? fmt::format("{}\n", fmt::join(kColumns, ",")) : table_head()));
    return write_out(csv ? csv_line(rows_.back()) : table_line(rows_.back()));
  }

  Result<void> end() const {
    if (form_ != "json") return {};
    return write_json({{"machine", machine()}, {"rows", rows_}});
  }

 private:
  static constexpr std::string_view kColumns[] = {
      "model",   "case",         "depth",  "tokens", "threads",           "isa",    "kv",   "quern_ms",
      "mean_ms", "deviation_ms", "p10_ms", "p90_ms", "tokens_per_second", "rss_mb", "gbps", "pct_bandwidth"};

  static std::string csv_line(const Json& row) {
    std::vector<std::string> cells;
    for (const auto& column : kColumns) cells.push_back(row.contains(column) ? row[std::string(column)].dump() : "");
    return fmt::format("{}\n", fmt::join(cells, ","));
  }

  static std::string table_head() {
    return fmt::format("{:<8} {:>6} {:>7} {:>7} {:>11} {:>11} {:>11} {:>10} {:>8} {:>9}\n", "case", "depth", "tokens",
                       "threads", "median ms", "10 %", "90 %", "tokens/s", "GB/s", "% of read");
  }

  static std::string table_line(const Json& row) {
    const auto number = [&](const char* name) {
      return row.contains(name) ? fmt::format("{:.1f}", row[name].get<double>()) : "-";
    };
    return fmt::format("{:<8} {:>6} {:>7} {:>7} {:>11.3f} {:>11.3f} {:>11.3f} {:>10.2f} {:>8} {:>9}\n",
                       row["case"].get<std::string>(), row["depth"].get<int>(), row["tokens"].get<int>(),
                       row["threads"].get<int>(), row["quern_ms"].get<double>(), row["p10_ms"].get<double>(),
                       row["p90_ms"].get<double>(), row["tokens_per_second"].get<double>(), number("gbps"),
                       number("pct_bandwidth"));
  }

  std::string form_;
  std::vector<Json> rows_;
};

// What cannot be measured is refused before anything is.
Result<void> check_lengths(const BenchOptions& options, const engine::Engine& engine) {
  const auto largest = [](const std::vector<int32_t>& of) {
    return of.empty() ? 0 : *std::max_element(of.begin(), of.end());
  };
  const int64_t context = engine.info().context_tokens;
  const int64_t decode = largest(options.tokens) == 0 ? 0 : int64_t{largest(options.depths)} + largest(options.tokens);
  const auto check = [&](const char* what, int64_t tokens) -> Result<void> {
    if (tokens <= context) return {};
    return Error{Errc::too_long, fmt::format("has {} tokens, the context holds {}", tokens, context), what};
  };
  QUERN_TRY_VOID(check("longest prompt", largest(options.prompts)));
  return check("largest depth with the tokens behind it", decode);
}

// GB/s of memory well beyond the caches, and little of what there is. Afterwards the peak of resident memory counts
// anew: what the measurement takes is not the model's.
Result<double> measure_bandwidth(cpu::Pool& pool) {
  constexpr size_t kMost = size_t{256} << 20;
  const cpu::MemoryLimits memory = cpu::read_memory_limits();
  auto gbps = cpu::measure_read_bandwidth(pool, memory.bound.empty() ? kMost : std::min(kMost, memory.available / 4));
  std::ofstream("/proc/self/clear_refs") << "5";
  return gbps;
}

Result<int> bench(const BenchOptions& options) {
  Progress progress;
  Report report(options.output);
  const char* cap = std::getenv("QUERN_ISA");
  const std::string isa = cap == nullptr || *cap == '\0' ? "auto" : cap;
  const std::vector<int32_t> threads = options.threads.empty() ? std::vector<int32_t>{0} : options.threads;
  for (const int32_t count : threads) {
    progress.show(fmt::format("loading {}", options.model));
    engine::EngineOptions engine_options = options.opening;
    engine_options.threads = count;
    engine_options.with_text = false;
    QUERN_TRY(const auto engine, engine::Engine::open(options.model, engine_options));
    QUERN_TRY_VOID(check_lengths(options, *engine));
    progress.show(fmt::format("read bandwidth, {} threads", engine->threads()));
    const size_t opening_peak = engine->memory().peak_resident;
    QUERN_TRY(const double read_gbps, measure_bandwidth(engine->pool()));
    const auto add = [&](const Row& row) {
      progress.clear();
      engine::EngineMemory memory = engine->memory();
      memory.peak_resident = std::max(memory.peak_resident, opening_peak);
      return report.add(describe(row, options.model, isa, memory, read_gbps));
    };
    QUERN_TRY(auto session, engine->new_session());
    for (const int32_t prompt : options.prompts) {
      if (prompt == 0) continue;
      progress.show(fmt::format("prefill of {} tokens, {} threads", prompt, engine->threads()));
      QUERN_TRY(const Row row, time_prefill(*session, *engine, prompt, options.repetitions));
      QUERN_TRY_VOID(add(row));
    }
    for (const int32_t depth : options.depths) {
      for (const int32_t tokens : options.tokens) {
        if (tokens == 0) continue;
        progress.show(fmt::format("decode of {} tokens at depth {}, {} threads", tokens, depth, engine->threads()));
        QUERN_TRY(const Row row, time_decode(*session, *engine, depth, tokens, options.repetitions));
        QUERN_TRY_VOID(add(row));
      }
    }
  }
  QUERN_TRY_VOID(report.end());
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
  add_opening(*command, options->opening);
  add_context(*command, options->opening.context_tokens);
  command->add_option("--output", options->output, "table, csv, json or jsonl")
      ->check(CLI::IsMember({"table", "csv", "json", "jsonl"}));
  command->callback([options, &chosen] { chosen = [options] { return bench(*options); }; });
}

}  // namespace quern::cli
