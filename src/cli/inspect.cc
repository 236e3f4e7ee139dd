// SPDX-License-Identifier: Apache-2.0
// quern inspect: what a model is and who executes each of its nodes; the kernel variants, the operators, the machine.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "cpu/limits.h"
#include "cpu/topology.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "ops/registry.h"

namespace quern::cli {
namespace {

struct InspectOptions {
  std::string subject;
  engine::EngineOptions opening;
  bool json = false;
};

// ---- a model ----

Json describe_model(const model::ModelInfo& info) {
  Json json = {{"model_type", json_text(info.model_type)},
               {"folder", json_text(info.folder.string())},
               {"context_tokens", info.context_tokens},
               {"model_context_tokens", info.model_context_tokens},
               {"vocab", info.vocab},
               {"layers", info.layers},
               {"hidden", info.hidden},
               {"heads", info.heads},
               {"kv_heads", info.kv_heads},
               {"head_size", info.head_size},
               {"eos_token_ids", info.eos_ids}};
  json["bos_token_id"] = info.bos_id ? Json(*info.bos_id) : Json();
  json["pad_token_id"] = info.pad_id ? Json(*info.pad_id) : Json();
  json["sampling"] = {{"do_sample", info.sampling.do_sample},
                      {"temperature", json_number(info.sampling.temperature)},
                      {"top_k", info.sampling.top_k},
                      {"top_p", json_number(info.sampling.top_p)}};
  for (const auto& [name, value] : info.facts) json[json_text(name)] = json_text(value);
  return json;
}

Json describe_nodes(const std::vector<model::NodeReport>& report) {
  Json nodes = Json::array();
  for (const model::NodeReport& row : report) {
    nodes.push_back({{"name", json_text(row.node)},
                     {"op", json_text(row.op)},
                     {"domain", json_text(row.domain)},
                     {"owner", row.owner},
                     {"variant", row.variant},
                     {"reason", json_text(row.reason)},
                     {"bytes_copied", row.bytes_copied}});
  }
  return nodes;
}

// One row an operator, most bytes of prepared weights first: reading those is what a token's time goes to.
Json describe_ops(const std::vector<model::NodeReport>& report) {
  struct Sum {
    int64_t nodes = 0;
    size_t weight_bytes = 0;
    std::set<std::string> variants;
  };
  std::map<std::string, Sum> sums;
  size_t all = 0;
  for (const model::NodeReport& row : report) {
    Sum& sum = sums[json_text(row.op)];
    sum.nodes++;
    sum.weight_bytes += row.weight_bytes;
    if (!row.variant.empty()) sum.variants.insert(row.variant);
    all += row.weight_bytes;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::ranges::stable_sort(rows, std::greater(), [](const auto& row) { return row.second.weight_bytes; });
  Json ops = Json::array();
  for (const auto& [op, sum] : rows) {
    const double share = all == 0 ? 0 : static_cast<double>(sum.weight_bytes) / static_cast<double>(all);
    ops.push_back({{"op", op},
                   {"nodes", sum.nodes},
                   {"weight_bytes", sum.weight_bytes},
                   {"share", share},
                   {"variants", sum.variants}});
  }
  return ops;
}

std::string ops_table(const Json& ops) {
  std::string text = fmt::format("{:<34} {:>6} {:>14} {:>7}  VARIANTS\n", "OPERATOR", "NODES", "WEIGHT BYTES", "SHARE");
  for (const Json& row : ops) {
    text +=
        fmt::format("{:<34} {:>6} {:>14} {:>6.1f}%  {}\n", row["op"].get<std::string>(), row["nodes"].get<int64_t>(),
                    row["weight_bytes"].get<size_t>(), row["share"].get<double>() * 100,
                    fmt::join(row["variants"].get<std::vector<std::string>>(), ", "));
  }
  return text;
}

std::string memory_line(const engine::MemoryEstimate& m, int32_t context_tokens) {
  const auto mb = [](size_t bytes) { return static_cast<double>(bytes) / 1e6; };
  return fmt::format(
      "{:<16} {:.0f} MB: program {:.0f}, tokenizer {:.0f}, weights {:.0f}, {} tokens of context {:.0f}, workspace "
      "{:.0f}; of mapped files up to {:.0f} more, which give way; {:.0f} MB are available ({})\n",
      "memory", mb(m.total()), mb(m.program), mb(m.tokenizer), mb(m.weights), context_tokens, mb(m.cache),
      mb(m.workspace), mb(m.mapped), mb(m.available), m.bound);
}

std::string table(const engine::Engine& engine, const Json& model, const std::vector<model::NodeReport>& report) {
  std::string text;
  for (const auto& [name, value] : model.items()) {
    text += fmt::format("{:<16} {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  text += memory_line(engine.memory().estimate, engine.info().context_tokens);
  text += fmt::format("{:<16} {}\n\n", "threads", engine.threads());
  text += ops_table(describe_ops(report));
  const Json counts = count_owners(report);
  text += fmt::format("\n{} nodes: {} kernel, {} prepared, {} view, {} fused\n\n", counts["nodes"].get<int64_t>(),
                      counts["kernel"].get<int64_t>(), counts["prepared"].get<int64_t>(), counts["view"].get<int64_t>(),
                      counts["fused"].get<int64_t>());
  size_t op_width = 2, variant_width = 7;
  for (const model::NodeReport& row : report) {
    op_width = std::max(op_width, json_text(row.op).size());
    variant_width = std::max(variant_width, row.variant.size());
  }
  text += fmt::format("{:<8} {:<{}} {:<{}} {:>12} NODE  (REASON)\n", "OWNER", "OP", op_width, "VARIANT", variant_width,
                      "COPIED");
  for (const model::NodeReport& row : report) {
    text += fmt::format("{:<8} {:<{}} {:<{}} {:>12} {}  ({})\n", row.owner, json_text(row.op), op_width, row.variant,
                        variant_width, row.bytes_copied, json_text(row.node), json_text(row.reason));
  }
  return text;
}

Result<int> inspect_model(const InspectOptions& options) {
  Progress progress;
  progress.show(fmt::format("loading {}", options.subject));
  engine::EngineOptions engine_options = options.opening;
  engine_options.with_text = false;
  QUERN_TRY(const auto engine, engine::Engine::open(options.subject, engine_options));
  std::unique_ptr<engine::Session> session;
  if (!engine->info().weights_stay_mapped) {
    // The figures of nodes are those of decoding one token behind one other.
    QUERN_TRY(session, engine->new_session());
    for (const int32_t id : {0, 0}) QUERN_TRY_VOID(session->append(std::array{id}));
  }
  progress.clear();
  const auto report = session ? session->graph_report() : engine->line().graph_report(nullptr);
  const Json model = describe_model(engine->info());
  if (options.json) {
    Json memory = describe_memory(*engine, session.get());
    memory["weights_by_op"] = describe_ops(report);
    QUERN_TRY_VOID(write_json({{"model", model},
                               {"nodes", describe_nodes(report)},
                               {"counts", count_owners(report)},
                               {"memory", std::move(memory)}}));
  } else {
    QUERN_TRY_VOID(write_out(table(*engine, model, report)));
  }
  return 0;
}

// ---- kernels, ops, cpu ----

std::string refusal(cpu::Isa isa, const cpu::Features& detected, const cpu::Features& usable) {
  if (usable.has(isa)) return "";
  if (!detected.has(isa)) return fmt::format("the processor lacks {}", cpu::isa_name(isa));
  const char* cap = std::getenv("QUERN_ISA");
  return fmt::format("QUERN_ISA={} leaves out {}", cap == nullptr ? "" : cap, cpu::isa_name(isa));
}

// Why a variant does not run: "" for the one that does. `chosen` is the first usable one of its role.
std::string passed_over(const ops::VariantInfo& variant, const ops::VariantInfo* chosen, const cpu::Features& detected,
                        const cpu::Features& usable) {
  if (&variant == chosen) return "";
  const std::string refused = refusal(variant.isa, detected, usable);
  return refused.empty() ? fmt::format("{} comes first", cpu::isa_name(chosen->isa)) : refused;
}

Result<int> inspect_kernels(const InspectOptions& options) {
  const cpu::Features detected = cpu::detect_features();
  QUERN_TRY(const cpu::Features usable, cpu::usable_features());
  Json rows = Json::array();
  std::string text = fmt::format("{:<18} {:<14} {:<11} {:<36} {}\n", "ROOM", "ROLE", "ISA", "SYMBOL (best first)",
                                 "CHOSEN, OR WHY NOT");
  for (const ops::RoomEntry& room : ops::room_table()) {
    const auto variants = room.variants();
    for (const ops::VariantInfo& variant : variants) {
      const auto chosen = std::ranges::find_if(
          variants, [&](const auto& other) { return other.role == variant.role && usable.has(other.isa); });
      const std::string reason = passed_over(variant, &*chosen, detected, usable);
      rows.push_back({{"room", std::string(room.room)},
                      {"role", std::string(variant.role)},
                      {"isa", std::string(cpu::isa_name(variant.isa))},
                      {"symbol", std::string(variant.symbol)},
                      {"usable", usable.has(variant.isa)},
                      {"chosen", reason.empty()},
                      {"reason", reason}});
      text += fmt::format("{:<18} {:<14} {:<11} {:<36} {}\n", room.room, variant.role, cpu::isa_name(variant.isa),
                          variant.symbol, reason.empty() ? "chosen" : reason);
    }
  }
  QUERN_TRY_VOID(options.json ? write_json({{"kernels", std::move(rows)}}) : write_out(text));
  return 0;
}

Result<int> inspect_ops(const InspectOptions& options) {
  Json rows = Json::array();
  std::string text = fmt::format("{:<14} {:<34} {:<8} {}\n", "DOMAIN", "OPERATOR", "OPSETS", "ROOM");
  for (const ops::OpEntry& entry : ops::op_table()) {
    const std::string domain(entry.domain.empty() ? "ai.onnx" : entry.domain);
    rows.push_back({{"domain", domain},
                    {"op", std::string(entry.op)},
                    {"first_opset", entry.first_opset},
                    {"last_opset", entry.last_opset},
                    {"room", std::string(entry.room)}});
    text += fmt::format("{:<14} {:<34} {:<8} {}\n", domain, entry.op,
                        fmt::format("{}-{}", entry.first_opset, entry.last_opset), entry.room);
  }
  QUERN_TRY_VOID(options.json ? write_json({{"ops", std::move(rows)}}) : write_out(text));
  return 0;
}

std::string for_people(const Json& value) {
  if (value.is_object()) {
    return fmt::format("{}: {} cores, {:.1f} GB", value["node"].get<int>(), value["cores"].get<int>(),
                       value["memory_bytes"].get<double>() / 1e9);
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// What there is several of takes a line each.
std::string cpu_lines(const Json& json) {
  std::string text;
  for (const auto& [name, value] : json.items()) {
    const bool nothing = value.empty() || value == "" || (name == "quota" && value == 0.0);
    for (const Json& one : nothing ? Json::array({"none"}) : value.is_array() ? value : Json::array({value})) {
      text += fmt::format("{:<19} {}\n", name, for_people(one));
    }
  }
  return text;
}

Result<int> inspect_cpu(const InspectOptions& options) {
  const cpu::Topology topology = cpu::read_topology();
  const cpu::MemoryLimits memory = cpu::read_memory_limits();
  const cpu::Features detected = cpu::detect_features();
  QUERN_TRY(const cpu::Features usable, cpu::usable_features());
  Json json = {{"model", json_text(topology.model)},
               {"logical_processors", topology.logical},
               {"physical_cores", topology.physical},
               {"fastest_cores", topology.fastest},
               {"quota", topology.quota.processors},
               {"quota_file", json_text(topology.quota.file)},
               {"default_threads", topology.threads},
               {"threads_reason", json_text(topology.threads_reason)},
               {"numa_nodes", Json::array()},
               {"huge_pages", topology.huge_pages},
               {"l1d_bytes", topology.l1d_bytes},
               {"l2_bytes", topology.l2_bytes},
               {"l3_bytes", topology.l3_bytes},
               {"memory_bytes", memory.total},
               {"available_bytes", memory.available},
               {"available_bound", json_text(memory.bound)},
               {"detected", describe_features(detected)},
               {"usable", describe_features(usable)},
               {"refused", Json::array()}};
  for (const cpu::NumaNode& node : topology.nodes) {
    json["numa_nodes"].push_back({{"node", node.id}, {"cores", node.cores}, {"memory_bytes", node.memory_bytes}});
  }
  for (const cpu::Isa isa : cpu::kIsas) {
    if (const std::string reason = refusal(isa, detected, usable); !reason.empty()) json["refused"].push_back(reason);
  }
  QUERN_TRY_VOID(options.json ? write_json(json) : write_out(cpu_lines(json)));
  return 0;
}

Result<int> inspect(const InspectOptions& options) {
  if (options.subject == "kernels") return inspect_kernels(options);
  if (options.subject == "ops") return inspect_ops(options);
  if (options.subject == "cpu") return inspect_cpu(options);
  return inspect_model(options);
}

}  // namespace

void add_inspect(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "Show what a model is and who executes each of its nodes");
  command->add_option("MODEL", options->subject, "The model's folder, or one of: kernels, ops, cpu")->required();
  add_opening(*command, options->opening);
  add_context(*command, options->opening.context_tokens);
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return inspect(*options); }; });
}

}  // namespace quern::cli
