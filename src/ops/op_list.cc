// SPDX-License-Identifier: Apache-2.0
// The operator table: expands op_list.inc and room_list.inc, and finds the line for a node.
#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"
#include "ops/registry.h"

namespace quern::ops {

#define QUERN_OP(domain, op, first, last, room, make) \
  Result<std::unique_ptr<Operator>> make(const NodeView& node, const PrepareContext& ctx);
#include "ops/op_list.inc"
#undef QUERN_OP
#define QUERN_ROOM(room) std::span<const VariantInfo> room##_variants();
#include "ops/room_list.inc"
#undef QUERN_ROOM

namespace {

constexpr OpEntry kOps[] = {
#define QUERN_OP(domain, op, first, last, room, make) {domain, op, first, last, #room, &make},
#include "ops/op_list.inc"
#undef QUERN_OP
};

constexpr RoomEntry kRooms[] = {
#define QUERN_ROOM(room) {#room, &room##_variants},
#include "ops/room_list.inc"
#undef QUERN_ROOM
};

constexpr bool has_duplicates() {
  for (size_t a = 0; a < std::size(kOps); a++) {
    for (size_t b = a + 1; b < std::size(kOps); b++) {
      if (kOps[a].domain == kOps[b].domain && kOps[a].op == kOps[b].op && kOps[a].first_opset <= kOps[b].last_opset &&
          kOps[b].first_opset <= kOps[a].last_opset) {
        return true;
      }
    }
  }
  return false;
}
static_assert(!has_duplicates(), "two lines of op_list.inc claim the same operator and opset");

}  // namespace

std::span<const OpEntry> op_table() { return kOps; }
std::span<const RoomEntry> room_table() { return kRooms; }

Result<std::unique_ptr<Operator>> make_operator(const NodeView& node, const PrepareContext& ctx) {
  const OpEntry* other_opset = nullptr;
  for (const OpEntry& entry : kOps) {
    if (entry.op != node.op || entry.domain != node.domain) continue;
    if (node.opset >= entry.first_opset && node.opset <= entry.last_opset) return entry.make(node, ctx);
    other_opset = &entry;
  }
  if (other_opset != nullptr) {
    return unsupported(node.where(), fmt::format("opset {} of {} is not supported (supported: {} to {})", node.opset,
                                                 node.op, other_opset->first_opset, other_opset->last_opset));
  }
  return unsupported(node.where(),
                     fmt::format("operator {} {} is not known to quern",
                                 quote_name(node.domain.empty() ? "ai.onnx" : node.domain), quote_name(node.op)));
}

}  // namespace quern::ops
