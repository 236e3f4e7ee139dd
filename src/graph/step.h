// SPDX-License-Identifier: Apache-2.0
// Owns what executes one node of a loaded graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ops/registry.h"

namespace quern::graph {

// Every node is exactly one of these; a node that fits none makes loading fail.
enum class Owner : uint8_t {
  kernel,    // a room computes it
  prepared,  // folded before kernels run: constants, and arithmetic on shapes
  view,      // relabels storage, moves no bytes
  fused,     // computed inside another node
};

constexpr std::string_view owner_name(Owner owner) {
  switch (owner) {
    case Owner::kernel: return "kernel";
    case Owner::prepared: return "prepared";
    case Owner::view: return "view";
    case Owner::fused: return "fused";
  }
  return "?";
}

struct Step {
  std::unique_ptr<ops::Operator> op;  // null for Constant and for nodes that another one computes
  Owner owner = Owner::kernel;
  std::string reason;
};

}  // namespace quern::graph
