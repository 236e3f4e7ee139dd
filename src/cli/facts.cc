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
               {"preparations", memory.model.preparations}};
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
  return json;
}

std::string describe_features(const cpu::Features& features) {
  std::string text;
  for (const cpu::Isa isa : {cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avxvnni, cpu::Isa::avx512vnni}) {
    if (!features.has(isa)) continue;
    if (!text.empty()) text += ' ';
    text += cpu::isa_name(isa);
  }
  return text;
}

}  // namespace quern::cli
