// SPDX-License-Identifier: Apache-2.0
// Checks, softmax and selection. There are no variants: 512 exponentials a token are a thousandth of the time of the
// experts that they choose, and one implementation chooses alike on every machine.
#include "ops/moe_route/moe_route.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "ops/element.h"

namespace quern::ops {
namespace {

// A score takes two exponentials, the time of so many elements that are only moved.
constexpr int64_t kElementsOfScore = 16;

struct Choice {
  std::array<float, kMaxChosenExperts> p;
  std::array<int32_t, kMaxChosenExperts> expert;
  int32_t count = 0;

  // Keeps the `most` best of what was offered, best first; what was offered first goes before its equals.
  void offer(int32_t e, float value, int32_t most) {
    if (count == most && !(value > p[static_cast<size_t>(count - 1)])) return;
    auto at = static_cast<size_t>(count == most ? count - 1 : count++);
    for (; at > 0 && value > p[at - 1]; at--) {
      p[at] = p[at - 1];
      expert[at] = expert[at - 1];
    }
    p[at] = value;
    expert[at] = e;
  }
};

template <class E>
void route_token(const MoeRouteParams& params, const void* scores, int32_t* experts, float* weights) {
  float top = -std::numeric_limits<float>::infinity();
  for (int32_t e = 0; e < params.experts; e++) {
    const float s = E::load(scores, e);
    if (std::isnan(s) || s > top) top = s;
  }
  float total = 0;
  for (int32_t e = 0; e < params.experts; e++) total += std::exp(E::load(scores, e) - top);
  Choice choice;
  for (int32_t e = 0; e < params.experts; e++) {
    choice.offer(e, std::exp(E::load(scores, e) - top) / total, params.chosen);
  }
  float sum = 1;
  if (params.normalize) {
    sum = 0;
    for (int32_t k = 0; k < params.chosen; k++) sum += choice.p[static_cast<size_t>(k)];
  }
  for (int32_t k = 0; k < params.chosen; k++) {
    experts[k] = choice.expert[static_cast<size_t>(k)];
    weights[k] = E::round(choice.p[static_cast<size_t>(k)] / sum);
  }
}

}  // namespace

Result<void> moe_route(const Context& ctx, const MoeRouteParams& p, const MoeRouteArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.experts < 1 || p.chosen < 1 || p.chosen > p.experts || p.chosen > kMaxChosenExperts) {
    return bad_request(std::string(where), fmt::format("choosing {} of {} experts is not allowed (1 to {}, at most {})",
                                                       p.chosen, p.experts, p.experts, kMaxChosenExperts));
  }
  if (p.tokens < 0 || (p.tokens > 1 && a.scores.stride < p.experts)) {
    return bad_request(std::string(where), fmt::format("{} rows of {} scores at a distance of {} are not allowed",
                                                       p.tokens, p.experts, a.scores.stride));
  }
  with_element(p.type, [&](auto element) {
    for_rows(ctx, p.tokens, kElementsOfScore * p.experts, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; t++) {
        route_token<decltype(element)>(p, element_at(p.type, a.scores.data, t * a.scores.stride),
                                       a.experts + t * p.chosen, a.weights + t * p.chosen);
      }
    });
  });
  return {};
}

}  // namespace quern::ops
