// SPDX-License-Identifier: Apache-2.0
// Owns the look-up of n-gram rows in a table that lies in pieces in mapped files. Does not own the mapping, nor which
// rows a token needs (ops/ngram_ids).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/context.h"

namespace quern::ops {

// out[t][h * width + j] = table[rows[t][h]][j]  for t < tokens, h < heads, j < width
// The table is the shards one behind the other; all have the row count of the first but the last, which may have fewer.
// Class exact: bytes are copied, float32 or bfloat16 as the table has them. Nothing of the table is read but the rows
// named, and nothing at all when one is out of range: pages of a mapped file that hold no such row stay untouched.
// Rows of the table may lie at any address; out overlaps neither them nor `rows`.
struct NgramEmbedParams {
  DType dtype = DType::bf16;  // of the table and of out: f32 or bf16
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t width = 0;  // elements of a row
};

struct NgramShard {
  const void* rows = nullptr;  // [count][width] without gaps
  int64_t count = 0;           // at least 1
};

struct NgramEmbedArgs {
  std::span<const NgramShard> shards;
  std::span<const int64_t> rows;  // [tokens][heads], each in [0, rows of the table)
  void* out = nullptr;            // [tokens][heads * width]
};

// Errors: bad_request for params, shards or rows outside of the above (unsupported for another type), before anything
// is written. `where` is the place for errors. Counts bytes_copied.
Result<void> ngram_embed(const Context& ctx, const NgramEmbedParams& params, const NgramEmbedArgs& args,
                         std::string_view where);

// What runs on every machine, for reports.
inline constexpr std::string_view kNgramEmbedVariant = "ngram_embed_copy";

}  // namespace quern::ops
