// SPDX-License-Identifier: Apache-2.0
// quern inspect: what a model is and who executes each of its nodes; the kernel variants, the operators, the machine.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "cpu/topology.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "ops/registry.h"

namespace quern::cli {
namespace {

struct InspectOptions {
  std::string subject;
  std::vector<std::string> no_fuse;
  bool json = false;
};

// ---- a model ----

Json describe_model(const model::ModelInfo& info) {
  Json json = {{"model_type", json_text(info.model_type)},
               {"folder", json_text(info.folder.string())},
               {"context_tokens", info.context_tokens},
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

std::string table(const Json& model, const std::vector<model::NodeReport>& report) {
  std::string text;
  for (const auto& [name, value] : model.items()) {
    text += fmt::format("{:<16} {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
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
  engine::EngineOptions engine_options;
  engine_options.with_text = false;
  engine_options.no_fuse = options.no_fuse;
  QUERN_TRY(const auto engine, engine::Engine::open(options.subject, engine_options));
  // The figures of nodes are those of decoding one token behind one other.
  QUERN_TRY(auto session, engine->new_session());
  for (const int32_t id : {0, 0}) QUERN_TRY_VOID(session->append(std::array{id}));
  progress.clear();
  const auto report = session->graph_report();
  const Json model = describe_model(engine->info());
  if (options.json) {
    QUERN_TRY_VOID(write_json({{"model", model},
                               {"nodes", describe_nodes(report)},
                               {"counts", count_owners(report)},
                               {"memory", describe_memory(*engine, session.get())}}));
  } else {
    QUERN_TRY_VOID(write_out(table(model, report)));
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

Result<int> inspect_kernels(const InspectOptions& options) {
  const cpu::Features detected = cpu::detect_features();
  QUERN_TRY(const cpu::Features usable, cpu::usable_features());
  Json rows = Json::array();
  std::string text =
      fmt::format("{:<14} {:<11} {:<48} {}\n", "ROOM", "ISA", "SYMBOL (best first)", "USABLE, OR WHY NOT");
  for (const ops::RoomEntry& room : ops::room_table()) {
    for (const ops::VariantInfo& variant : room.variants()) {
      const std::string reason = refusal(variant.isa, detected, usable);
      rows.push_back({{"room", std::string(room.room)},
                      {"isa", std::string(cpu::isa_name(variant.isa))},
                      {"symbol", std::string(variant.symbol)},
                      {"usable", reason.empty()},
                      {"reason", reason}});
      text += fmt::format("{:<14} {:<11} {:<48} {}\n", room.room, cpu::isa_name(variant.isa), variant.symbol,
                          reason.empty() ? "usable" : reason);
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

Result<int> inspect_cpu(const InspectOptions& options) {
  const cpu::Topology topology = cpu::read_topology();
  QUERN_TRY(const cpu::Features usable, cpu::usable_features());
  const Json json = {{"model", json_text(topology.model)},    {"logical_processors", topology.logical},
                     {"physical_cores", topology.physical},   {"quota", topology.quota},
                     {"default_threads", topology.usable},    {"l1d_bytes", topology.l1d_bytes},
                     {"l2_bytes", topology.l2_bytes},         {"l3_bytes", topology.l3_bytes},
                     {"memory_bytes", topology.memory_bytes}, {"detected", describe_features(cpu::detect_features())},
                     {"usable", describe_features(usable)}};
  std::string text;
  for (const auto& [name, value] : json.items()) {
    text += fmt::format("{:<19} {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  QUERN_TRY_VOID(options.json ? write_json(json) : write_out(text));
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
  add_no_fuse(*command, options->no_fuse);
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return inspect(*options); }; });
}

}  // namespace quern::cli
