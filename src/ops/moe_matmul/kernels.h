// SPDX-License-Identifier: Apache-2.0
// Owns the name of the mixture's reference, which tests hold the entry against. Its products are the tiles of
// ops/linear, so the room has no variants of its own.
#pragma once

#include "ops/moe_matmul/moe_matmul.h"

namespace quern::ops {

// Precondition: params and args that moe_matmul() takes.
void moe_matmul_reference(const MoeMatmulParams& params, const MoeMatmulArgs& args);

}  // namespace quern::ops
