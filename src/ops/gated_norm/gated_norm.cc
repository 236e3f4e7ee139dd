// SPDX-License-Identifier: Apache-2.0
// Checks the contract and splits rows across threads.
#include "ops/gated_norm/gated_norm.h"

#include <fmt/format.h>

#include "ops/element.h"
#include "ops/gated_norm/kernels.h"
#include "ops/rows.h"

namespace quern::ops {

Result<void> gated_norm(const Context& ctx, const GatedNormParams& p, const GatedNormArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.n < 1) {
    return bad_request(std::string(where), fmt::format("rows of {} elements cannot be normalised (at least 1)", p.n));
  }
  if (!(p.epsilon >= 0)) {
    return bad_request(std::string(where), fmt::format("epsilon {} is not allowed (0 or more)", p.epsilon));
  }
  for_rows(ctx, p.rows, p.n, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      gated_norm_reference(
          p.type, {element_at(p.type, a.x, a.x_layout.offset(i)), element_at(p.type, a.gate, a.gate_layout.offset(i)),
                   a.weight, element_at(p.type, a.y, a.y_layout.offset(i)), p.n, p.epsilon, p.gate});
    }
  });
  return {};
}

}  // namespace quern::ops
