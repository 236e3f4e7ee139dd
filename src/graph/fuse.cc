// SPDX-License-Identifier: Apache-2.0
// shared_rows: nodes that read the same value and would prepare its rows in the same way (quantise them, say) do so
// once, and their columns run in one parallel section.
#include "graph/fuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/quote_name.h"

namespace quern::graph {
namespace {

constexpr std::string_view kSharedRows = "shared_rows";

constexpr FusePass kPasses[] = {
    {kSharedRows, "nodes that read the same rows and prepare them in the same way run as one"},
};

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

void remove_uses(Ir& ir, int index) {
  for (const int v : ir.nodes[index].inputs) {
    if (v >= 0) std::erase_if(ir.values[v].uses, [&](const Use& use) { return use.node == index; });
  }
}

// The first node of a group computes all of it: what it reads is there, and nobody reads the outputs earlier.
void join_group(const std::vector<int>& group, Ir& ir, std::span<Step> steps) {
  const int first = group[0];
  std::vector<std::unique_ptr<ops::Operator>> others;
  for (size_t i = 1; i < group.size(); i++) others.push_back(std::move(steps[group[i]].op));
  auto joint = steps[first].op->join(std::move(others));
  QUERN_CHECK(joint != nullptr, "an operator with a key can be joined");
  steps[first].op = std::move(joint);
  Node& node = ir.nodes[first];
  std::vector<std::string> names;
  for (size_t i = 1; i < group.size(); i++) {
    const int n = group[i];
    Node& other = ir.nodes[n];
    remove_uses(ir, n);
    ir.values[other.outputs[0]].producer = first;
    node.outputs.push_back(other.outputs[0]);
    other.inputs.clear();
    other.outputs.clear();
    steps[n].owner = Owner::fused;
    steps[n].reason = fmt::format("computed by {}, which reads the same rows ({})", quote_name(node.name), kSharedRows);
    names.push_back(quote_name(other.name));
  }
  steps[first].reason = fmt::format("computed, with {} ({})", fmt::join(names, ", "), kSharedRows);
}

void join_shared_rows(Ir& ir, std::span<Step> steps) {
  std::map<std::pair<int, std::string>, std::vector<int>> groups;  // nodes in execution order by input and key
  for (size_t n = 0; n < steps.size(); n++) {
    std::string key = joinable(ir, ir.nodes[n], steps[n]);
    if (!key.empty()) groups[{ir.nodes[n].inputs[0], std::move(key)}].push_back(static_cast<int>(n));
  }
  for (const auto& [key, group] : groups) {
    if (group.size() > 1) join_group(group, ir, steps);
  }
}

}  // namespace

std::span<const FusePass> fuse_passes() { return kPasses; }

Result<void> check_pass_names(std::span<const std::string> names) {
  for (const std::string& name : names) {
    const auto known = fuse_passes();
    if (std::any_of(known.begin(), known.end(), [&](const FusePass& pass) { return pass.name == name; })) continue;
    std::vector<std::string_view> all;
    for (const FusePass& pass : known) all.push_back(pass.name);
    return bad_request("no_fuse",
                       fmt::format("{} is not a pass, there are: {}", quote_name(name), fmt::join(all, ", ")));
  }
  return {};
}

void fuse(std::span<const std::string> left_out, Ir& ir, std::span<Step> steps) {
  const auto wanted = [&](std::string_view name) {
    return std::find(left_out.begin(), left_out.end(), name) == left_out.end();
  };
  if (wanted(kSharedRows)) join_shared_rows(ir, steps);
}

}  // namespace quern::graph
