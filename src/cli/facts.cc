// SPDX-License-Identifier: Apache-2.0
// The shapes of facts.h.
#include "cli/facts.h"

namespace quern::cli {

Json count_owners(std::span<const model::NodeReport> report) {
  Json counts = {{"nodes", report.size()}, {"kernel", 0}, {"prepared", 0}, {"view", 0}, {"fused", 0}};
  for (const model::NodeReport& row : report) counts[row.owner] = counts[row.owner].get<int64_t>() + 1;
  return counts;
}

Json describe_memory(const engine::Engine& engine, const engine::Session* session) {
  const engine::EngineMemory memory = engine.memory();
  Json json = {{"weight_bytes", memory.model.weight_bytes},
               {"serialized_weight_bytes", memory.model.serialized_weight_bytes},
               {"constant_bytes", memory.model.constant_bytes},
               {"preparations", memory.model.preparations},
               {"kv_type", memory.model.kv_type},
               {"kv_token_bytes", memory.model.kv_token_bytes}};
  if (session != nullptr) {
    json["session_bytes"] = session->bytes();
    json["session_workspace_bytes"] = session->workspace_bytes();
  }
  for (int tag = 0; tag < cpu::kMemoryTags; tag++) {
    const auto t = static_cast<size_t>(tag);
    json["allocated"][std::string(cpu::memory_tag_name(static_cast<cpu::MemoryTag>(tag)))] = {
        {"bytes", memory.process.current[t]},
        {"peak_bytes", memory.process.peak[t]},
        {"allocations", memory.process.allocations[t]}};
  }
  json["peak_resident_bytes"] = memory.peak_resident;
  const engine::MemoryEstimate& estimate = memory.estimate;
  json["estimate"] = {{"program_bytes", estimate.program},
                      {"tokenizer_bytes", estimate.tokenizer},
                      {"weight_bytes", estimate.weights},
                      {"cache_bytes", estimate.cache},
                      {"workspace_bytes", estimate.workspace},
                      {"total_bytes", estimate.total()},
                      {"mapped_bytes", estimate.mapped},
                      {"available_bytes", estimate.available},
                      {"available_bound", json_text(estimate.bound)}};
  return json;
}

std::string describe_features(const cpu::Features& features) {
  std::string text;
  for (const cpu::Isa isa : cpu::kIsas) {
    if (!features.has(isa)) continue;
    if (!text.empty()) text += ' ';
    text += cpu::isa_name(isa);
  }
  return text;
}

}  // namespace quern::cli
