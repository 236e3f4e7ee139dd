// SPDX-License-Identifier: Apache-2.0
// Owns the passes' functions (one file a pass, fuse_<pass>.cc) and what they share. For fuse*.cc only. Does not own
// which passes run and in what order (fuse.cc).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/ir.h"
#include "graph/step.h"

namespace quern::graph {

inline constexpr std::string_view kSharedRows = "shared_rows";
inline constexpr std::string_view kAddNorm = "add_norm";
inline constexpr std::string_view kSiluMul = "silu_mul";

// Each goes over the whole graph and leaves it consistent, as fuse() promises.
void join_shared_rows(Ir& ir, std::span<Step> steps);
void join_add_norm(Ir& ir, std::span<Step> steps);
void join_silu_mul(Ir& ir, std::span<Step> steps);

// Whether node `index` is of this operator of ONNX's own domain, and a room still computes it.
bool computes(const Ir& ir, std::span<const Step> steps, int index, std::string_view op);

// The one use of a value that does not leave the graph, or null where it has none, several, or leaves.
const Use* only_use(const Ir& ir, int value);

// Gives node `index` other inputs; uses follow.
void set_inputs(Ir& ir, int index, std::vector<int> inputs);

// Makes node `index` one that another computes: it has no inputs, no outputs and no operator any more. Whoever calls
// has moved its operator, and those of its outputs that somebody still reads; nothing is left of the others. What the
// operator said of itself stays behind `reason`.
void mark_fused(Ir& ir, std::span<Step> steps, int index, std::string reason, const std::string& detail);

}  // namespace quern::graph
