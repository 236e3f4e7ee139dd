// SPDX-License-Identifier: Apache-2.0
// Owns the name of the router's reference, which tests hold the entry against. The room has no variants.
#pragma once

#include "ops/moe_route/moe_route.h"

namespace quern::ops {

// Precondition: params and args that moe_route() takes, finite scores.
void moe_route_reference(const MoeRouteParams& params, const MoeRouteArgs& args);

}  // namespace quern::ops
