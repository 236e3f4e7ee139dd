// SPDX-License-Identifier: Apache-2.0
// shared_rows: nodes that read the same value and would prepare its rows in the same way (quantise them, say) do so
// once, and their columns run in one parallel section.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/quote_name.h"
#include "graph/fuse_passes.h"

namespace quern::graph {
namespace {

// Nodes further apart are not joined: what they compute would have to be kept for long.
constexpr int kWindow = 16;

// The key by which a step may be joined, or nothing. Inputs behind the first must not need computing, or the joint step
// could come before them.
std::string joinable(const Ir& ir, const Node& node, const Step& step) {
  if (step.op == nullptr || step.owner != Owner::kernel) return {};
  if (node.outputs.size() != 1 || node.outputs[0] < 0 || node.inputs.empty() || node.inputs[0] < 0) return {};
  for (size_t i = 1; i < node.inputs.size(); i++) {
    if (node.inputs[i] >= 0 && ir.values[node.inputs[i]].kind != ValueKind::constant) return {};
  }
  return step.op->join_key();
}

// The first node of a group computes all of it: what it reads is there, and nobody reads the outputs earlier.
void join_group(const std::vector<int>& group, Ir& ir, std::span<Step> steps) {
  const int first = group[0];
  std::vector<std::unique_ptr<ops::Operator>> others;
  std::vector<std::string> details;
  for (size_t i = 1; i < group.size(); i++) {
    details.push_back(steps[group[i]].op->detail());
    others.push_back(std::move(steps[group[i]].op));
  }
  auto joint = steps[first].op->join(std::move(others));
  QUERN_CHECK(joint != nullptr, "an operator with a key can be joined");
  steps[first].op = std::move(joint);
  Node& node = ir.nodes[first];
  std::vector<std::string> names;
  for (size_t i = 1; i < group.size(); i++) {
    const int n = group[i];
    const int output = ir.nodes[n].outputs[0];
    ir.values[output].producer = first;
    node.outputs.push_back(output);
    mark_fused(ir, steps, n,
               fmt::format("computed by {}, which reads the same rows ({})", quote_name(node.name), kSharedRows),
               details[i - 1]);
    names.push_back(quote_name(ir.nodes[n].name));
  }
  steps[first].reason = fmt::format("computed, with {} ({})", fmt::join(names, ", "), kSharedRows);
}

}  // namespace

void join_shared_rows(Ir& ir, std::span<Step> steps) {
  std::map<std::pair<int, std::string>, std::vector<int>> groups;  // nodes in execution order by input and key
  const auto join = [&](std::vector<int>& group) {
    if (group.size() > 1) join_group(group, ir, steps);
    group.clear();
  };
  for (size_t n = 0; n < steps.size(); n++) {
    std::string key = joinable(ir, ir.nodes[n], steps[n]);
    if (key.empty()) continue;
    std::vector<int>& group = groups[{ir.nodes[n].inputs[0], std::move(key)}];
    if (!group.empty() && static_cast<int>(n) - group[0] > kWindow) join(group);
    group.push_back(static_cast<int>(n));
  }
  for (auto& [key, group] : groups) join(group);
}

}  // namespace quern::graph
