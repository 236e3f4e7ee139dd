// SPDX-License-Identifier: Apache-2.0
// Owns which rows of a hashed n-gram table the tokens of a sequence look up, and the constants of that hash. Does not
// own the table (ops/ngram_embed), nor where a sequence keeps its last tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/context.h"

namespace quern::ops {

// All integers of 64 bits; class exact. For token t with N = ngram_size, G = (N - 1) * heads_per_ngram:
//   context[0] = ids[t];  context[s] = ids[t - s] if t - s is inside the sequence and none of ids[t - s .. t - 1] is
//   eos, else eos,  1 <= s < N
//   m = context[0] * multipliers[0]
//   for order o = 2 .. N:  m = m xor context[o - 1] * multipliers[o - 1];
//     rows[t][h] = m mod sizes[h] + offsets[h]  for the heads h of that order, (o - 2) * heads_per_ngram onwards
// An eos still sees what is before it; what follows one does not see past it. Nothing wraps: ids are below `vocabulary`
// and multipliers at most (2^63 - 1) / vocabulary.
struct NgramIdsParams {
  int32_t ngram_size = 0;       // N, 2 to kMaxNgramSize
  int32_t heads_per_ngram = 0;  // at least 1
  int64_t vocabulary = 0;       // at least 1
  int32_t eos = 0;              // in [0, vocabulary)
};

inline constexpr int32_t kMaxNgramSize = 16;

struct NgramIdsArgs {
  std::span<const int64_t> multipliers;  // [N], 0 to (2^63 - 1) / vocabulary
  std::span<const int64_t> sizes;        // [G], at least 1
  std::span<const int64_t> offsets;      // [G], at least 0; offset + size fits 64 bits
  // The new tokens from `first` on; before them as much of the sequence's past as there is, of which the last N - 1
  // tokens suffice. What lies before ids[0] reads as eos.
  std::span<const int32_t> ids;
  int64_t first = 0;
  std::span<int64_t> rows;  // [ids.size() - first][G]
};

// Errors: bad_request for params or arguments outside of the above, an id outside [0, vocabulary) with its place; in
// each case before anything is written. `where` is the place for errors.
Result<void> ngram_ids(const Context& ctx, const NgramIdsParams& params, const NgramIdsArgs& args,
                       std::string_view where);

// The constants of the hash of one layer, as a model's configuration determines them.
struct NgramHash {
  std::vector<int64_t> multipliers, sizes, offsets;  // of NgramIdsArgs
  int64_t total = 0;                                 // rows that can be looked up: the sum of sizes
  int64_t padded = 0;                                // total rounded up to a multiple of `divisor`
};

// Searching primes takes the root of their size for each candidate.
inline constexpr int64_t kMostNgramBase = int64_t{1} << 40;
inline constexpr int64_t kMostNgramHeads = 4096;

struct NgramHashParams {
  int32_t ngram_size = 0;       // N, 2 to kMaxNgramSize
  int32_t heads_per_ngram = 0;  // at least 1; (layer_index + 1) * G, the primes that are searched, to kMostNgramHeads
  int64_t vocabulary = 0;       // at least 1
  int64_t base = 0;             // sizes are primes of at least this much; 2 to kMostNgramBase
  int64_t divisor = 0;          // 1 to kMostNgramBase
  int64_t seed = 0;
  int32_t layer_index = 0;  // among the layers that look up n-grams, from 0
};

// With mix(v) the finaliser of splitmix64 after its increment, g that increment, all modulo 2^64:
//   half = max(1, (2^63 - 1) / vocabulary / 2)
//   multipliers[i] = 2 * (mix(seed + 10007 * layer_index + g * (i + 1)) mod half) + 1
//   sizes[h] = the (layer_index * G + h + 1)-th prime >= base;  offsets[h] = sizes[0] + .. + sizes[h - 1]
// Errors: bad_request for params outside of the above. Within them `total` and `padded` are below 2^53.
Result<NgramHash> ngram_hash(const NgramHashParams& params, std::string_view where);

// What runs on every machine, for reports.
inline constexpr std::string_view kNgramIdsVariant = "ngram_ids_portable";

}  // namespace quern::ops
