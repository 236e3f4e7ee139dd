// SPDX-License-Identifier: Apache-2.0
// Checks the arguments and hashes the tokens on the threads of the context.
#include "ops/ngram_ids/ngram_ids.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>

namespace quern::ops {
namespace {

// A token costs G divisions, some 20 ns each at worst; so many are worth waking a worker.
constexpr int64_t kTokensPerChunk = 64;

Result<void> check(const NgramIdsParams& p, const NgramIdsArgs& a, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  if (p.ngram_size < 2 || p.ngram_size > kMaxNgramSize) {
    return refuse(fmt::format("n-grams of {} tokens are not allowed (2 to {})", p.ngram_size, kMaxNgramSize));
  }
  if (p.heads_per_ngram < 1) return refuse(fmt::format("{} heads per n-gram are not allowed", p.heads_per_ngram));
  if (p.vocabulary < 1 || p.eos < 0 || p.eos >= p.vocabulary) {
    return refuse(fmt::format("end token {} lies outside of the vocabulary of {} ids", p.eos, p.vocabulary));
  }
  const auto heads = static_cast<size_t>(p.ngram_size - 1) * static_cast<size_t>(p.heads_per_ngram);
  if (a.multipliers.size() != static_cast<size_t>(p.ngram_size) || a.sizes.size() != heads ||
      a.offsets.size() != heads) {
    return refuse(fmt::format("{} multipliers, {} sizes and {} offsets were given ({}, {} and {} are needed)",
                              a.multipliers.size(), a.sizes.size(), a.offsets.size(), p.ngram_size, heads, heads));
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t m : a.multipliers) {
    if (m < 0 || m > kMost / p.vocabulary) {
      return refuse(fmt::format("multiplier {} is not allowed (0 to {})", m, kMost / p.vocabulary));
    }
  }
  for (size_t h = 0; h < heads; h++) {
    if (a.sizes[h] < 1 || a.offsets[h] < 0 || a.offsets[h] > kMost - a.sizes[h]) {
      return refuse(fmt::format("head {} of {} rows from row {} on is not allowed", h, a.sizes[h], a.offsets[h]));
    }
  }
  const auto ids = static_cast<int64_t>(a.ids.size());
  if (a.first < 0 || a.first > ids) return refuse(fmt::format("first token {} of {} is not allowed", a.first, ids));
  if (a.rows.size() != static_cast<size_t>(ids - a.first) * heads) {
    return refuse(fmt::format("room for {} row numbers was given ({} tokens by {} heads are needed)", a.rows.size(),
                              ids - a.first, heads));
  }
  for (size_t t = 0; t < a.ids.size(); t++) {
    if (a.ids[t] < 0 || a.ids[t] >= p.vocabulary) {
      return refuse(fmt::format("token id {} at position {} is outside of [0, {}]", a.ids[t], t, p.vocabulary - 1));
    }
  }
  return {};
}

void hash_token(const NgramIdsParams& p, const NgramIdsArgs& a, int64_t t, int64_t* rows) {
  std::array<int64_t, kMaxNgramSize> context;
  context[0] = a.ids[static_cast<size_t>(t)];
  bool ended = false;
  for (int64_t s = 1; s < p.ngram_size; s++) {
    ended = ended || s > t || a.ids[static_cast<size_t>(t - s)] == p.eos;
    context[static_cast<size_t>(s)] = ended ? p.eos : a.ids[static_cast<size_t>(t - s)];
  }
  int64_t m = context[0] * a.multipliers[0];
  size_t h = 0;
  for (size_t order = 2; order <= static_cast<size_t>(p.ngram_size); order++) {
    m ^= context[order - 1] * a.multipliers[order - 1];
    for (int32_t i = 0; i < p.heads_per_ngram; i++, h++) rows[h] = m % a.sizes[h] + a.offsets[h];
  }
}

}  // namespace

Result<void> ngram_ids(const Context& ctx, const NgramIdsParams& p, const NgramIdsArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check(p, a, where));
  const int64_t tokens = static_cast<int64_t>(a.ids.size()) - a.first;
  const auto heads = static_cast<int64_t>(a.sizes.size());
  const auto hash = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) hash_token(p, a, a.first + i, a.rows.data() + i * heads);
  };
  if (tokens <= kTokensPerChunk) {
    hash(0, tokens, 0);
  } else {
    ctx.pool->parallel_for(tokens, kTokensPerChunk, hash);
  }
  return {};
}

}  // namespace quern::ops
