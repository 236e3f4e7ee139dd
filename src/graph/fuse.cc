// SPDX-License-Identifier: Apache-2.0
// The passes' names and order, and the steps that they share.
#include "graph/fuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/quote_name.h"
#include "graph/fuse_passes.h"

namespace quern::graph {
namespace {

struct Pass {
  std::string_view name;
  void (*run)(Ir& ir, std::span<Step> steps);
};

// In the order in which they run.
constexpr Pass kPasses[] = {
    {kSharedRows, join_shared_rows},
    {kAddNorm, join_add_norm},
    {kSiluMul, join_silu_mul},
};

bool names_pass(std::string_view name) {
  return std::any_of(std::begin(kPasses), std::end(kPasses), [&](const Pass& pass) { return pass.name == name; });
}

}  // namespace

bool computes(const Ir& ir, std::span<const Step> steps, int index, std::string_view op) {
  const formats::NodeProto& proto = *ir.nodes[index].proto;
  return proto.op_type == op && proto.domain.empty() && steps[index].op != nullptr &&
         steps[index].owner == Owner::kernel;
}

const Use* only_use(const Ir& ir, int value) {
  if (value < 0 || ir.values[value].is_output || ir.values[value].uses.size() != 1) return nullptr;
  return &ir.values[value].uses[0];
}

void set_inputs(Ir& ir, int index, std::vector<int> inputs) {
  Node& node = ir.nodes[index];
  for (const int v : node.inputs) {
    if (v >= 0) std::erase_if(ir.values[v].uses, [&](const Use& use) { return use.node == index; });
  }
  node.inputs = std::move(inputs);
  for (size_t i = 0; i < node.inputs.size(); i++) {
    if (node.inputs[i] >= 0) ir.values[node.inputs[i]].uses.push_back({index, static_cast<int>(i)});
  }
}

void mark_fused(Ir& ir, std::span<Step> steps, int index, std::string reason, const std::string& detail) {
  set_inputs(ir, index, {});
  for (const int v : ir.nodes[index].outputs) {
    if (v >= 0 && ir.values[v].producer == index) ir.values[v].producer = -1;
  }
  ir.nodes[index].outputs.clear();
  Step& step = steps[index];
  step.op.reset();
  step.owner = Owner::fused;
  step.reason = std::move(reason);
  if (!detail.empty()) step.reason += "; " + detail;
}

Result<void> check_pass_names(std::span<const std::string> names) {
  for (const std::string& name : names) {
    if (names_pass(name)) continue;
    std::vector<std::string_view> known;
    for (const Pass& pass : kPasses) known.push_back(pass.name);
    return bad_request("no_fuse",
                       fmt::format("{} is not a pass, there are: {}", quote_name(name), fmt::join(known, ", ")));
  }
  return {};
}

void fuse(std::span<const std::string> left_out, Ir& ir, std::span<Step> steps) {
  for (const Pass& pass : kPasses) {
    if (std::find(left_out.begin(), left_out.end(), pass.name) == left_out.end()) pass.run(ir, steps);
  }
}

}  // namespace quern::graph
