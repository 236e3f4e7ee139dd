// SPDX-License-Identifier: Apache-2.0
// Checks the rows and copies them on the threads of the context.
#include "ops/ngram_embed/ngram_embed.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "base/checked.h"
#include "ops/element.h"

namespace quern::ops {
namespace {

// Rows lie far apart: each is a page of its own, which may have to come from storage. One token's rows are few enough
// to be left to one thread only while they are in memory, so even those are handed out.
constexpr int64_t kRowsPerChunk = 4;

Result<int64_t> table_rows(const NgramEmbedArgs& a, std::string_view where) {
  int64_t total = 0;
  for (size_t i = 0; i < a.shards.size(); i++) {
    const int64_t count = a.shards[i].count;
    const bool last = i + 1 == a.shards.size();
    if (count < 1 || (last ? count > a.shards[0].count : count != a.shards[0].count)) {
      return bad_request(std::string(where), fmt::format("part {} of the n-gram table has {} rows (the first has {}, "
                                                         "and only the last may have fewer)",
                                                         i, count, a.shards[0].count));
    }
    const auto sum = checked_add(total, count);
    if (!sum) return bad_request(std::string(where), "the n-gram table has more rows than 64 bits count");
    total = *sum;
  }
  return total;
}

}  // namespace

Result<void> ngram_embed(const Context& ctx, const NgramEmbedParams& p, const NgramEmbedArgs& a,
                         std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.dtype, where));
  const auto count = checked_mul(p.tokens, p.heads);
  if (p.tokens < 0 || p.heads < 1 || p.width < 1 || !count || a.rows.size() != static_cast<size_t>(*count)) {
    return bad_request(std::string(where), fmt::format("{} row numbers for {} tokens by {} heads of {} elements are "
                                                       "not allowed",
                                                       a.rows.size(), p.tokens, p.heads, p.width));
  }
  QUERN_TRY(const int64_t total, table_rows(a, where));
  for (const int64_t row : a.rows) {
    if (row < 0 || row >= total) {
      return bad_request(std::string(where),
                         fmt::format("row {} is outside of the n-gram table of {} rows", row, total));
    }
  }
  const size_t bytes = static_cast<size_t>(p.width) * static_cast<size_t>(bits_of(p.dtype) / 8);
  auto* out = static_cast<std::byte*>(a.out);
  const auto copy = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t row = a.rows[static_cast<size_t>(i)];
      const NgramShard& shard = a.shards[static_cast<size_t>(row / a.shards[0].count)];
      const auto* from = static_cast<const std::byte*>(shard.rows);
      std::memcpy(out + static_cast<size_t>(i) * bytes, from + static_cast<size_t>(row % a.shards[0].count) * bytes,
                  bytes);
    }
  };
  ctx.pool->parallel_for(*count, kRowsPerChunk, copy);
  if (ctx.counters != nullptr) ctx.counters->bytes_copied += static_cast<size_t>(*count) * bytes;
  return {};
}

}  // namespace quern::ops
