// SPDX-License-Identifier: Apache-2.0
// The tables, the checks of the contract, and heads split across threads.
#include "ops/partial_rope/partial_rope.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/element.h"
#include "ops/partial_rope/kernels.h"
#include "ops/rows.h"

namespace quern::ops {

void rope_frequencies(double theta, std::span<float> frequencies) {
  const float rotary = static_cast<float>(2 * frequencies.size());
  for (size_t i = 0; i < frequencies.size(); i++) {
    const float exponent = static_cast<float>(2 * i) / rotary;
    frequencies[i] = 1 / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
}

void fill_rope_table(const RopeTable& table) {
  with_element(table.type, [&](auto e) {
    size_t at = 0;
    for (const int64_t position : table.positions) {
      for (const float frequency : table.frequencies) {
        const float angle = static_cast<float>(position) * frequency;
        table.cos[at] = e.round(std::cos(angle));
        table.sin[at] = e.round(std::sin(angle));
        at++;
      }
    }
  });
}

Result<void> partial_rope(const Context& ctx, const PartialRopeParams& p, const PartialRopeArgs& a,
                          std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.heads < 1 || p.head_size < 1) {
    return bad_request(std::string(where),
                       fmt::format("{} heads of {} elements are not allowed (1 or more)", p.heads, p.head_size));
  }
  if (p.rotary < 0 || p.rotary % 2 != 0 || p.rotary > p.head_size) {
    return bad_request(std::string(where), fmt::format("{} rotated elements are not allowed (even, up to the head size "
                                                       "{})",
                                                       p.rotary, p.head_size));
  }
  for_rows(ctx, p.tokens * p.heads, p.head_size, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t angles = i / p.heads * (p.rotary / 2);
      partial_rope_reference(p.type, {element_at(p.type, a.x, a.x_layout.offset(i)), a.cos + angles, a.sin + angles,
                                      element_at(p.type, a.y, a.y_layout.offset(i)), p.head_size, p.rotary});
    }
  });
  return {};
}

}  // namespace quern::ops
