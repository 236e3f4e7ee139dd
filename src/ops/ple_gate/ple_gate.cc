// SPDX-License-Identifier: Apache-2.0
// Checks the contract and splits rows across threads.
#include "ops/ple_gate/ple_gate.h"

#include <fmt/format.h>

#include "ops/element.h"
#include "ops/ple_gate/kernels.h"

namespace quern::ops {
namespace {

Result<void> check(const PleParams& p, std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.hidden < 1 || p.streams < 1) {
    return bad_request(std::string(where),
                       fmt::format("{} streams of {} elements are not allowed (1 or more)", p.streams, p.hidden));
  }
  return {};
}

}  // namespace

Result<void> ple_gate(const Context& ctx, const PleParams& p, const PleGateArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check(p, where));
  for_rows(ctx, p.rows, p.hidden * p.streams, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      ple_gate_reference(p.type, {element_at(p.type, a.key_normed.data, i * a.key_normed.stride),
                                  element_at(p.type, a.query_normed.data, i * a.query_normed.stride),
                                  element_at(p.type, a.value.data, i * a.value.stride),
                                  element_at(p.type, a.out.data, i * a.out.stride), p.hidden, p.streams});
    }
  });
  return {};
}

Result<void> ple_add(const Context& ctx, const PleParams& p, const PleAddArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check(p, where));
  for_rows(ctx, p.rows, p.hidden * p.streams, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      ple_add_reference(
          p.type, {element_at(p.type, a.x.data, i * a.x.stride), element_at(p.type, a.gated.data, i * a.gated.stride),
                   element_at(p.type, a.conv.data, i * a.conv.stride), p.hidden * p.streams});
    }
  });
  return {};
}

}  // namespace quern::ops
