// SPDX-License-Identifier: Apache-2.0
// Owns what a variant of gated_delta_rule is called with. No functions: files of several instruction sets include it.
#pragma once

#include <cstdint>

namespace quern::ops {

// Q of the contract: the most tokens of one call of a kernel.
inline constexpr int64_t kDeltaChunk = 64;

// Up to kDeltaChunk tokens of one value head, by the recurrent or the chunked formulas of gated_delta_rule.h, from q
// and k that are normalised already. Rows lie without gaps; nothing overlaps. o is not rounded.
struct DeltaKernelArgs {
  const float* q;      // [tokens][key_size]
  const float* k;      // [tokens][key_size]
  const float* v;      // [tokens][value_size]
  const float* decay;  // [tokens], log
  const float* kept;   // [tokens], exp(decay)
  const float* beta;   // [tokens]
  float* state;        // [key_size][value_size]
  float* o;            // [tokens][value_size]
  // For the chunked form, contents arbitrary: N [kDeltaChunk][value_size], then what meets it, among keys and with
  // queries, [2][kDeltaChunk][kDeltaChunk], then one more number a token [kDeltaChunk].
  float* scratch;
  int64_t tokens, key_size, value_size;
};

}  // namespace quern::ops
