// SPDX-License-Identifier: Apache-2.0
// The constants of the n-gram hash from a model's configuration.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/checked.h"
#include "ops/ngram_ids/ngram_ids.h"

namespace quern::ops {
namespace {

constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15u;  // of splitmix64
constexpr uint64_t kSeedsApart = 10007;               // from one layer to the next

uint64_t mix(uint64_t v) {
  v += kIncrement;
  v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
  v = (v ^ v >> 27) * 0x94d049bb133111ebu;
  return v ^ v >> 31;
}

bool is_prime(int64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0) return false;
  for (int64_t d = 3; d <= n / d; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

Result<NgramHash> ngram_hash(const NgramHashParams& p, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  if (p.ngram_size < 2 || p.ngram_size > kMaxNgramSize) {
    return refuse(fmt::format("n-grams of {} tokens are not allowed (2 to {})", p.ngram_size, kMaxNgramSize));
  }
  if (p.vocabulary < 1) return refuse(fmt::format("a vocabulary of {} ids is not allowed", p.vocabulary));
  if (p.base < 2 || p.base > kMostNgramBase) {
    return refuse(fmt::format("tables of at least {} rows are not allowed (2 to {})", p.base, kMostNgramBase));
  }
  if (p.divisor < 1 || p.divisor > kMostNgramBase) {
    return refuse(fmt::format("a table of a multiple of {} rows is not allowed (1 to {})", p.divisor, kMostNgramBase));
  }
  const auto heads = checked_mul<int64_t>(p.ngram_size - 1, p.heads_per_ngram);
  const auto primes = checked_mul<int64_t>(*heads, int64_t{p.layer_index} + 1);
  if (p.heads_per_ngram < 1 || p.layer_index < 0 || !primes || *primes > kMostNgramHeads) {
    return refuse(fmt::format("{} heads per n-gram in layer {} of them are not allowed ({} heads in all layers)",
                              p.heads_per_ngram, p.layer_index, kMostNgramHeads));
  }
  NgramHash hash;
  const int64_t half = std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / p.vocabulary / 2);
  const uint64_t seed = static_cast<uint64_t>(p.seed) + kSeedsApart * static_cast<uint64_t>(p.layer_index);
  for (uint64_t i = 1; i <= static_cast<uint64_t>(p.ngram_size); i++) {
    const auto drawn = static_cast<int64_t>(mix(seed + kIncrement * i) % static_cast<uint64_t>(half));
    hash.multipliers.push_back(2 * drawn + 1);
  }
  int64_t candidate = p.base;
  for (int64_t i = 0; i < *primes; i++, candidate++) {
    while (!is_prime(candidate)) candidate++;
    if (i < *primes - *heads) continue;
    hash.sizes.push_back(candidate);
    hash.offsets.push_back(hash.total);
    hash.total += candidate;
  }
  hash.padded = round_up(hash.total, p.divisor);
  return hash;
}

}  // namespace quern::ops
