// SPDX-License-Identifier: Apache-2.0
// The AVX-512 BF16 variants, for bfloat16 rows. Does not own the algorithm (generic_pairs.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/gqa_attention/kernels.h"

namespace quern::ops {
namespace {

// Each builds on those before.
#include "ops/gqa_attention/generic_load.h"

#include "ops/gqa_attention/generic_avx512.h"

#include "ops/gqa_attention/generic.h"

#include "ops/gqa_attention/generic_rows.h"

#include "ops/gqa_attention/generic_tile.h"

#include "ops/gqa_attention/generic_pairs.h"

}  // namespace

void gqa_attention_tile_bf16_avx512bf16(const AttentionBlockArgs& a) noexcept { block_of_many_rows_of_pairs(a); }
void gqa_attention_rows_bf16_avx512bf16(const AttentionBlockArgs& a) noexcept { block_of_few_rows_of_pairs(a); }

}  // namespace quern::ops
