// SPDX-License-Identifier: Apache-2.0
// Both forms of a block over bfloat16 keys and values as products of pairs: queries and weights are rounded to
// bfloat16, too, and one instruction adds two products to a lane. x86_avx512bf16.cc includes it behind the other
// generic_*.h, inside its anonymous namespace; nothing else may.

// Two bfloat16 numbers, the first one in the lower half.
using Pair = uint32_t;
constexpr int32_t kMostKeyPairs = kAttentionMaxKeys / 2;

// sum + x * y of two pairs a lane.
V add_products(__m512i x, __m512i y, V sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
}

// How tiles take pairs.
struct Pairs {
  using Element = Pair;
  using Vector = __m512i;
  static Vector set(Pair x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
  static Vector load(const Pair* p) { return _mm512_loadu_si512(p); }
  static V fma(Vector x, Vector y, V sum) { return add_products(x, y, sum); }
};

// n floats as bfloat16, to the nearest, ties to even; n is a multiple of 8. `to` may be where `from` is.
void round_to_pairs(const float* from, int32_t n, Pair* to) {
  for (int32_t i = 0; i < n; i += kLanes) {
    const __mmask16 there = Simd::between(0, n - i);
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, from + i));
    _mm256_mask_storeu_epi16(to + i / 2, there, reinterpret_cast<__m256i>(rounded));
  }
}

// ---- the right-hand sides of many rows ----

// Keys [lo, hi), widened to whole panels, as rearrange_keys() lays them out, with pairs for elements.
void rearrange_key_pairs(const AttentionBlockArgs& a, int32_t lo, int32_t hi, Pair* panels) {
  const int32_t d = a.d / 2;
  int64_t place[kLanes];
  for (int32_t lane = 0; lane < kLanes; lane++) place[lane] = int64_t{first_row_of(d, lane)} * kPanel;
  const int32_t begin = lo / kPanel * kPanel;
  const int32_t end = (hi + kPanel - 1) / kPanel * kPanel;
  for (int32_t t = begin; t < end; t += 8) {
    const int32_t there = most(0, least(8, a.keys - t));
    Pair* out = panels + int64_t{t / kPanel} * d * kPanel + t % kPanel;
    int32_t i = 0;
    for (; i + 8 <= d; i += 8) {
      // Moved as the floats that they are not.
      transpose_8x8(reinterpret_cast<const float*>(key_of<Brain>(a, t)) + i, a.kv_stride / 2, there,
                    reinterpret_cast<float*>(out + int64_t{i / kLanes * kLeaves} * kPanel), place + i % kLanes);
    }
    for (; i < d; i++) {
      for (int32_t j = 0; j < 8; j++) {
        Pair pair = 0;
        if (j < there) __builtin_memcpy(&pair, key_of<Brain>(a, t + j) + 2 * i, sizeof(pair));
        out[int64_t{i / kLanes * kLeaves} * kPanel + place[i % kLanes] + j] = pair;
      }
    }
  }
}

// Columns [i, i + kPanel) of the values of keys t and t + 1, a pair a column; what is not wanted or beyond d counts as
// 0.
struct ValuePairs {
  __m512i half[2];
};
ValuePairs load_value_pairs(const AttentionBlockArgs& a, int32_t t, int32_t i, bool first, bool second) {
  const __mmask32 there = a.d - i >= kPanel ? ~0U : (1U << (a.d - i)) - 1U;
  const Brain* from = value_of<Brain>(a, t) + i;
  const __m512i x = _mm512_maskz_loadu_epi16(first ? there : 0, from);
  const __m512i y = _mm512_maskz_loadu_epi16(second ? there : 0, from + a.kv_stride);
  // Word n of the lower half is word n / 2 of x (n even) or y, whose words count from 32.
  const __m512i lower = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return {{_mm512_permutex2var_epi16(x, lower, y),
           _mm512_permutex2var_epi16(x, _mm512_add_epi16(lower, _mm512_set1_epi16(16)), y)}};
}

// Values of the keys [lo, hi) as panels [column / kPanel][kAttentionMaxKeys / 2][kPanel] of pairs of keys. True when
// all of them are finite.
bool rearrange_value_pairs(const AttentionBlockArgs& a, int32_t lo, int32_t hi, Pair* panels) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  __mmask32 odd = 0;
  for (int32_t t = lo / 2 * 2; t < hi; t += 2) {
    for (int32_t i = 0; i < a.d; i += kPanel) {
      const ValuePairs v = load_value_pairs(a, t, i, t >= lo, t + 1 < hi);
      Pair* to = panels + (int64_t{i / kPanel} * kMostKeyPairs + t / 2) * kPanel;
#pragma GCC unroll 2
      for (int32_t j = 0; j < 2; j++) {
        odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(v.half[j], exponent), exponent);
        _mm512_storeu_si512(to + j * kLanes, v.half[j]);
      }
    }
  }
  return odd == 0;
}

// ---- few rows ----

// Scores of kRows rows against up to kSums / kRows keys from t on: dot_tile() with a pair a lane.
template <int32_t kRows>
void dot_pair_tile(const AttentionBlockArgs& a, const Pair* q, int32_t row, int32_t t, int32_t end, float* scores) {
  constexpr int32_t kKeys = Simd::kSums / kRows;
  const Brain* k[kKeys];
#pragma GCC unroll 16
  for (int32_t j = 0; j < kKeys; j++) k[j] = key_of<Brain>(a, least(t + j, end - 1));
  const Ahead<Brain> ahead(a, t);
  V sums[Simd::kSums];
#pragma GCC unroll 16
  for (int32_t j = 0; j < Simd::kSums; j++) sums[j] = Simd::zero();
  for (int32_t i = 0; i < a.d; i += 2 * kLanes) {
    const __mmask16 there = Simd::between(0, (a.d - i) / 2);
    __m512i x[kRows];
#pragma GCC unroll 4
    for (int32_t r = 0; r < kRows; r++) x[r] = _mm512_maskz_loadu_epi32(there, q + ((row + r) * a.d + i) / 2);
#pragma GCC unroll 16
    for (int32_t j = 0; j < kKeys; j++) {
      const __m512i y = _mm512_maskz_loadu_epi32(there, k[j] + i);
      if (row == 0) ahead.fetch(k[j] + i);
#pragma GCC unroll 4
      for (int32_t r = 0; r < kRows; r++) sums[r * kKeys + j] = add_products(x[r], y, sums[r * kKeys + j]);
    }
  }
  Simd::spread<kKeys>(Simd::reduce(sums), least(kKeys, end - t), scores + row * kScoreStride + t, kScoreStride);
}

// kPanels panels of columns of o, from i on, of kRows rows that see the keys [begin, end); see weigh_columns().
template <int32_t kRows, int32_t kPanels>
void weigh_pair_columns(const AttentionBlockArgs& a, const Pair* weights, int32_t row, int32_t begin, int32_t end,
                        const float* carry, int32_t i) {
  constexpr int32_t kVectors = 2 * kPanels;
  float* o = a.o + row * a.o_stride + i;
  V sums[kRows * kVectors];
#pragma GCC unroll 16
  for (int32_t s = 0; s < kRows * kVectors; s++) {
    sums[s] =
        Simd::mul(Simd::set(carry[s / kVectors]), Simd::load(o + s / kVectors * a.o_stride + s % kVectors * kLanes));
  }
  for (int32_t t = begin / 2 * 2; t < end; t += 2) {
    const Ahead<Brain> ahead(a, t);
    __m512i p[kRows];
#pragma GCC unroll 2
    for (int32_t r = 0; r < kRows; r++) p[r] = Pairs::set(weights[(row + r) * kScoreStride + t / 2]);
#pragma GCC unroll 4
    for (int32_t j = 0; j < kPanels; j++) {
      const ValuePairs v = load_value_pairs(a, t, i + j * kPanel, t >= begin, t + 1 < end);
      if (row == 0) {
        ahead.fetch(value_of<Brain>(a, t) + i + j * kPanel);
        ahead.fetch(value_of<Brain>(a, t + 1) + i + j * kPanel);
      }
#pragma GCC unroll 4
      for (int32_t s = 0; s < kRows * 2; s++) {
        V& sum = sums[s / 2 * kVectors + 2 * j + s % 2];
        sum = add_products(p[s / 2], v.half[s % 2], sum);
      }
    }
  }
#pragma GCC unroll 16
  for (int32_t s = 0; s < kRows * kVectors; s++) {
    Simd::store(o + s / kVectors * a.o_stride + s % kVectors * kLanes, sums[s]);
  }
}

template <int32_t kRows>
void weigh_pairs(const AttentionBlockArgs& a, const Pair* weights, int32_t row, int32_t begin, int32_t end,
                 const float* carry) {
  int32_t i = 0;
  for (; i + 4 * kPanel <= a.d; i += 4 * kPanel) weigh_pair_columns<kRows, 4>(a, weights, row, begin, end, carry, i);
  for (; i < a.d; i += kPanel) weigh_pair_columns<kRows, 1>(a, weights, row, begin, end, carry, i);
}

// The weights of a row for the keys [begin, end) become pairs, in place.
void round_weights(float* of_row, int32_t begin, int32_t end) {
  begin = begin / kLanes * kLanes;
  end = (end + kLanes - 1) / kLanes * kLanes;
  round_to_pairs(of_row + begin, end - begin, reinterpret_cast<Pair*>(of_row) + begin / 2);
}

void block_of_few_rows_of_pairs(const AttentionBlockArgs& a) {
  float* scores = a.scratch;
  const Pair* weights = reinterpret_cast<const Pair*>(scores);
  Pair* q = reinterpret_cast<Pair*>(scores + a.rows * kScoreStride);
  const Seen all = seen_by(a, 0, a.rows);
  if (all.hi <= all.lo) return;
  round_to_pairs(a.q, a.rows * a.d, q);
  for (int32_t t = all.lo; t < all.hi; t += Simd::kSums) {
    const int32_t end = least(all.hi, t + Simd::kSums);
    const auto dot = [&](auto group, int32_t r) {
      constexpr int32_t kRows = decltype(group)::kCount;
      for (int32_t at = t; at < end; at += Simd::kSums / kRows) dot_pair_tile<kRows>(a, q, r, at, end, scores);
    };
    int32_t r = 0;
    for (; a.rows - r >= 4; r += 4) dot(Rows<4>{}, r);
    for (; a.rows - r >= 2; r += 2) dot(Rows<2>{}, r);
    for (; r < a.rows; r++) dot(Rows<1>{}, r);
  }
  const auto weigh = [&](auto group, int32_t row) {
    constexpr int32_t kRows = decltype(group)::kCount;
    float carry[kRows];
    update_rows<Brain, kRows>(a, row, scores, carry);
    for (int32_t r = row; r < row + kRows; r++) round_weights(scores + r * kScoreStride, a.lo[r], a.hi[r]);
    const Seen seen = seen_by(a, row, kRows);
    if (seen.hi <= seen.lo) return;
    if (seen.alike) return weigh_pairs<kRows>(a, weights, row, seen.lo, seen.hi, carry);
    for (int32_t i = 0; i < kRows; i++) {
      weigh_pairs<1>(a, weights, row + i, a.lo[row + i], most(a.lo[row + i], a.hi[row + i]), carry + i);
    }
  };
  int32_t r = 0;
  for (; a.rows - r >= 2; r += 2) weigh(Rows<2>{}, r);
  if (r < a.rows) weigh(Rows<1>{}, r);
}

// ---- many rows ----

template <int32_t kRows>
void multiply_key_pairs(const AttentionBlockArgs& a, int32_t row, const Pair* q, const Pair* keys, float* scores) {
  constexpr int32_t kKeys = kScoreVectors * kLanes;
  const Seen seen = seen_by(a, row, kRows);
  const int32_t d = a.d / 2;
  for (int32_t t = seen.lo / kKeys * kKeys; t < seen.hi; t += kKeys) {
    score_panel<kRows, Pairs>(q + int64_t{row} * d, d, keys + int64_t{t / kPanel} * d * kPanel + t % kPanel,
                              scores + row * kScoreStride + t);
  }
}

template <int32_t kRows>
void weigh_value_pairs(const AttentionBlockArgs& a, int32_t row, bool finite, const Pair* values, const float* carry,
                       float* scores) {
  Seen seen = seen_by(a, row, kRows);
  if (seen.hi <= seen.lo) return;
  const Pair* weights = reinterpret_cast<const Pair*>(scores);
  if (!finite) {
    // A value times a weight of 0 is not 0 when the value is NaN or infinite.
    for (int32_t r = row; r < row + kRows; r++) {
      round_weights(scores + r * kScoreStride, a.lo[r], a.hi[r]);
      weigh_pairs<1>(a, weights, r, a.lo[r], most(a.lo[r], a.hi[r]), carry + (r - row));
    }
    return;
  }
  seen.lo = seen.lo / 2 * 2;
  seen.hi = (seen.hi + 1) / 2 * 2;
  clear_unseen(a, row, kRows, seen, scores);
  for (int32_t r = row; r < row + kRows; r++) round_weights(scores + r * kScoreStride, seen.lo, seen.hi);
  for (int32_t i = 0; i < a.d; i += kPanel) {
    multiply_tile<kRows, Pairs>(weights + row * kScoreStride + seen.lo / 2, kScoreStride,
                                values + (int64_t{i / kPanel} * kMostKeyPairs + seen.lo / 2) * kPanel,
                                (seen.hi - seen.lo) / 2, a.o + row * a.o_stride + i, a.o_stride, carry);
  }
}

void block_of_many_rows_of_pairs(const AttentionBlockArgs& a) {
  float* scores = a.scratch;
  Pair* q = reinterpret_cast<Pair*>(scores + a.rows * kScoreStride);
  Pair* keys = q + a.rows * a.d / 2;
  Pair* values = keys + kMostKeyPairs * a.d;
  const Seen all = seen_by(a, 0, a.rows);
  if (all.hi <= all.lo) return;
  round_to_pairs(a.q, a.rows * a.d, q);
  rearrange_key_pairs(a, all.lo, all.hi, keys);
  const bool finite = rearrange_value_pairs(a, all.lo, all.hi, values);
  for_tile_rows(a.rows, [&](auto group, int32_t row) {
    constexpr int32_t kRows = decltype(group)::kCount;
    float carry[kRows];
    multiply_key_pairs<kRows>(a, row, q, keys, scores);
    update_rows<Brain, kRows>(a, row, scores, carry);
    weigh_value_pairs<kRows>(a, row, finite, values, carry, scores);
  });
}
