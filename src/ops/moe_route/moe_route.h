// SPDX-License-Identifier: Apache-2.0
// Owns the router's choice: which experts a token goes to, with which weights. Does not own the router's matrix product
// that makes the scores, nor the experts (ops/moe_matmul).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"
#include "ops/rows.h"

namespace quern::ops {

// For each token, over its E scores s (in the bfloat16 form these are the rounded outputs of the router's product):
//   p[e]  = exp(s[e] - max s) / sum_e exp(s[e] - max s)                         float32
//   chosen = the K experts of largest p; of equal ones the lower index first    experts[t][0..K-1], p descending
//   w[k]  = p[chosen k] / sum_k p[chosen k]  if normalize, else p[chosen k]     float32, summed in the order of k
//   weights[t][k] = w[k] rounded to type                                       the one rounding of the bfloat16 form
// Weights are float32 numbers in both forms. One implementation serves all machines; a token's results depend on
// nothing else. Against another exponential p is off by a few units in the last place, so experts whose p are that
// close may trade places, and weights differ by 1e-6 relative, in the bfloat16 form by at most one unit in the last
// place. A score that is NaN or +infinity makes all weights of its token NaN; the experts are then any K different
// ones.
struct MoeRouteParams {
  DType type = DType::f32;  // of the scores: f32 or bf16
  int64_t tokens = 0;
  int32_t experts = 0;  // E
  int32_t chosen = 0;   // K, 1 to the lesser of E and kMaxChosenExperts
  bool normalize = true;
};

inline constexpr int32_t kMaxChosenExperts = 64;

struct MoeRouteArgs {
  RowsIn scores;               // [tokens][E]
  int32_t* experts = nullptr;  // [tokens][K]
  float* weights = nullptr;    // [tokens][K]
};

// Errors: bad_request for params outside of the above, unsupported for another type. `where` is the place for errors.
Result<void> moe_route(const Context& ctx, const MoeRouteParams& params, const MoeRouteArgs& args,
                       std::string_view where);

// What runs on every machine, for reports.
inline constexpr std::string_view kMoeRouteVariant = "moe_route_portable";

}  // namespace quern::ops
