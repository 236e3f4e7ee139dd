// SPDX-License-Identifier: Apache-2.0
// The AVX-512 variants: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/gqa_attention/kernels.h"

namespace quern::ops {
namespace {

#include "ops/gqa_attention/generic_load.h"

#include "ops/gqa_attention/generic_avx512.h"

// clang-format off: the others build on the first.
#include "ops/gqa_attention/generic.h"
#include "ops/gqa_attention/generic_rotate.h"
#include "ops/gqa_attention/generic_rows.h"
#include "ops/gqa_attention/generic_tile.h"

}  // namespace

void gqa_attention_tile_f32_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<float>(a); }
void gqa_attention_tile_f16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<Half>(a); }
void gqa_attention_tile_bf16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<Brain>(a); }
void gqa_attention_tile_i8_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_many_rows<int8_t>(a); }
void gqa_attention_rows_f32_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<float>(a); }
void gqa_attention_rows_f16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<Half>(a); }
void gqa_attention_rows_bf16_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<Brain>(a); }
void gqa_attention_rows_i8_avx512vnni(const AttentionBlockArgs& a) noexcept { block_of_few_rows<int8_t>(a); }
void gqa_attention_merge_f32_avx512vnni(const AttentionMergeArgs& a) noexcept { merge_rows(a); }
void gqa_attention_rotate_f32_avx512vnni(const AttentionRotateArgs& a) noexcept { rotate_heads(a); }

}  // namespace quern::ops
