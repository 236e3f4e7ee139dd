// SPDX-License-Identifier: Apache-2.0
// add_norm: a residual addition and the norm that reads it, where an exporter wrote them as two nodes, take one pass
// over the rows, as SkipSimplifiedLayerNormalization does.
#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"
#include "graph/fuse_passes.h"
#include "ops/rms_norm/rms_norm.h"

namespace quern::graph {
namespace {

// The norm that may compute the sum z as well: the first of z's readers.
int norm_of(const Ir& ir, std::span<const Step> steps, int z) {
  int norm = -1;
  for (const Use& use : ir.values[z].uses) {
    if (norm < 0 || use.node < norm) norm = use.node;
  }
  if (norm < 0 || !computes(ir, steps, norm, "SimplifiedLayerNormalization")) return -1;
  const auto& inputs = ir.nodes[norm].inputs;
  return inputs[0] == z && std::count(inputs.begin(), inputs.end(), z) == 1 ? norm : -1;
}

}  // namespace

void join_add_norm(Ir& ir, std::span<Step> steps) {
  for (int n = 0; n < static_cast<int>(steps.size()); n++) {
    if (!computes(ir, steps, n, "Add")) continue;
    const std::vector<int> addends = ir.nodes[n].inputs;
    const int z = ir.nodes[n].outputs[0];
    const auto computed = [&](int v) { return ir.values[v].kind != ValueKind::constant; };
    if (z < 0 || ir.values[z].is_output || ir.values[z].dtype != DType::f32) continue;
    if (!std::all_of(addends.begin(), addends.end(), computed)) continue;
    const int norm = norm_of(ir, steps, z);
    if (norm < 0) continue;
    Node& node = ir.nodes[norm];
    auto joint = ops::make_add_norm(steps[n].op, steps[norm].op);
    if (joint == nullptr) continue;
    steps[norm].op = std::move(joint);
    steps[norm].reason = fmt::format("computed, with {} ({})", quote_name(ir.nodes[n].name), kAddNorm);
    set_inputs(ir, norm, {addends[0], addends[1], node.inputs[1]});
    node.outputs.push_back(ir.values[z].uses.empty() ? -1 : z);
    ir.values[z].producer = norm;
    mark_fused(ir, steps, n,
               fmt::format("computed by {}, which normalises the sum ({})", quote_name(node.name), kAddNorm), {});
  }
}

}  // namespace quern::graph
