// SPDX-License-Identifier: Apache-2.0
// silu_mul: Sigmoid(a), its product with a and the product of that with b take one pass over the elements.
#include <fmt/format.h>

#include "base/quote_name.h"
#include "graph/fuse_passes.h"
#include "ops/elementwise/elementwise.h"

namespace quern::graph {
namespace {

// The Mul that is the only reader of a value and reads it once; -1 for none. `other` is its second operand.
int product_of(const Ir& ir, std::span<const Step> steps, int value, int* other) {
  const Use* use = only_use(ir, value);
  if (use == nullptr || !computes(ir, steps, use->node, "Mul")) return -1;
  *other = ir.nodes[use->node].inputs[1 - use->input];
  return use->node;
}

}  // namespace

void join_silu_mul(Ir& ir, std::span<Step> steps) {
  for (int n = 0; n < static_cast<int>(steps.size()); n++) {
    if (!computes(ir, steps, n, "Sigmoid")) continue;
    const int a = ir.nodes[n].inputs[0];
    int second = -1, b = -1;
    const int silu = product_of(ir, steps, ir.nodes[n].outputs[0], &second);
    if (silu < 0 || second != a) continue;
    const int product = product_of(ir, steps, ir.nodes[silu].outputs[0], &b);
    // What a model gates is computed; nodes with a constant stay as they are.
    if (product < 0 || ir.values[a].kind == ValueKind::constant || ir.values[b].kind == ValueKind::constant) continue;
    Node& node = ir.nodes[product];
    auto joint = ops::make_silu_mul(ops::node_where(node.proto->op_type, node.name), *steps[n].op);
    if (joint == nullptr) continue;
    steps[product].op = std::move(joint);
    steps[product].reason = fmt::format("computed, with {} and {} ({})", quote_name(ir.nodes[n].name),
                                        quote_name(ir.nodes[silu].name), kSiluMul);
    set_inputs(ir, product, {a, b});
    for (const int taken : {n, silu}) {
      mark_fused(ir, steps, taken,
                 fmt::format("computed by {}, whose elements it gates ({})", quote_name(node.name), kSiluMul), {});
    }
  }
}

}  // namespace quern::graph
