// SPDX-License-Identifier: Apache-2.0
// A block for many rows: both products as register tiles over rearranged keys and values, with the bits that
// generic_rows.h gives a row. The x86_*.cc files include it behind generic.h, inside their anonymous namespace; nothing
// else may.

// How a tile takes its factors: what one is, a vector of them, and sum + x * y of two vectors.
struct Floats {
  using Element = float;
  using Vector = V;
  static Vector set(float x) { return Simd::set(x); }
  static Vector load(const float* p) { return Simd::load(p); }
  static V fma(Vector x, Vector y, V sum) { return Simd::fma(x, y, sum); }
};

// c[i][0:2 * kLanes] = carry[i] * c[i] + sum_t a[i][t] * b[t][0:2 * kLanes], t in order, of a panel.
template <int32_t kRows, class Form = Floats>
void multiply_tile(const typename Form::Element* a, int64_t a_stride, const typename Form::Element* b, int32_t depth,
                   float* c, int64_t c_stride, const float* carry) {
  V sums[kRows * 2];
#pragma GCC unroll 32
  for (int32_t i = 0; i < kRows * 2; i++) {
    sums[i] = Simd::mul(Simd::set(carry[i / 2]), Simd::load(c + i / 2 * c_stride + i % 2 * kLanes));
  }
  for (int32_t t = 0; t < depth; t++) {
    typename Form::Vector y[2];
#pragma GCC unroll 2
    for (int32_t j = 0; j < 2; j++) y[j] = Form::load(b + int64_t{t} * kPanel + j * kLanes);
#pragma GCC unroll 16
    for (int32_t i = 0; i < kRows; i++) {
      const auto x = Form::set(a[i * a_stride + t]);
#pragma GCC unroll 2
      for (int32_t j = 0; j < 2; j++) sums[i * 2 + j] = Form::fma(x, y[j], sums[i * 2 + j]);
    }
  }
#pragma GCC unroll 32
  for (int32_t i = 0; i < kRows * 2; i++) Simd::store(c + i / 2 * c_stride + i % 2 * kLanes, sums[i]);
}

// A score has the bits that dot_tile() gives it: a sum along d is kLanes sums, one a lane of the vectors there, added
// up as a tree by Simd::reduce. Leaf n of the tree is lane leaf_lane(n), and the other way round. Here lanes are keys,
// and the sums of a score follow each other, kLeaves side by side. With AVX-512 that is what makes the tree free: 12
// rows by 2 vectors, one leaf at a time, took 1.09 of the time of a single sum for 512 tokens, 6 rows by 4 leaves 0.98.
constexpr int32_t leaf_lane(int32_t n) { return (n & ~3) | (n & 1) << 1 | (n >> 1 & 1); }
constexpr int32_t kLeaves = Simd::kLeaves;
static_assert(kLeaves == 1 || kLeaves == 4);
// Vectors and most rows of a tile of scores: its sums are as many as those of a tile of o.
constexpr int32_t kScoreVectors = kLeaves == 1 ? 2 : 1;
constexpr int32_t kScoreRows = Simd::kTileRows * 2 / kScoreVectors / kLeaves;

// Elements of a row of d that lane `lane` sums. d is a multiple of 8, and so are the lanes that sum one more.
constexpr int32_t steps_of(int32_t d, int32_t lane) { return (d - lane + kLanes - 1) / kLanes; }
// Where the first of them lies in a panel; the next one is kLeaves rows further on. That is the order of the products.
constexpr int32_t first_row_of(int32_t d, int32_t lane) {
  const int32_t leaf = leaf_lane(lane), group = leaf / kLeaves * kLeaves;
  return group * (d / kLanes) + least(group, d % kLanes) + leaf % kLeaves;
}

// to[i][0:kScoreVectors * kLanes] = scores of row i of q with keys of a panel, from leaf kLeaf on. Level n of `held` is
// a sum of 2^n * kLeaves leaves that waits for its neighbour.
template <int32_t kRows, class Form, int32_t kLeaf = 0>
void add_leaves(const typename Form::Element* q, int32_t d, const typename Form::Element* panel,
                float (*held)[kRows * kScoreVectors * kLanes], float* to) {
  constexpr int32_t kSums = kRows * kScoreVectors;
  V sums[kSums * kLeaves];
#pragma GCC unroll 32
  for (int32_t i = 0; i < kSums * kLeaves; i++) sums[i] = Simd::zero();
  const int32_t steps = steps_of(d, leaf_lane(kLeaf));
  for (int32_t k = 0; k < steps; k++) {
#pragma GCC unroll 4
    for (int32_t f = 0; f < kLeaves; f++) {
      typename Form::Vector y[kScoreVectors];
#pragma GCC unroll 2
      for (int32_t j = 0; j < kScoreVectors; j++) y[j] = Form::load(panel + f * kPanel + j * kLanes);
#pragma GCC unroll 16
      for (int32_t i = 0; i < kRows; i++) {
        const auto x = Form::set(q[int64_t{i} * d + k * kLanes + leaf_lane(kLeaf + f)]);
#pragma GCC unroll 2
        for (int32_t j = 0; j < kScoreVectors; j++) {
          V& sum = sums[f * kSums + i * kScoreVectors + j];
          sum = Form::fma(x, y[j], sum);
        }
      }
    }
    panel += kLeaves * kPanel;
  }
  if constexpr (kLeaves == 4) {
#pragma GCC unroll 16
    for (int32_t i = 0; i < kSums; i++) {
      sums[i] = Simd::add(Simd::add(sums[i], sums[kSums + i]), Simd::add(sums[2 * kSums + i], sums[3 * kSums + i]));
    }
  }
  // As a binary counter: level after level joins with the one that is held while it is full.
  constexpr int32_t kGroup = kLeaf / kLeaves;
  int32_t level = 0;
#pragma GCC unroll 4
  for (; (kGroup >> level & 1) != 0; level++) {
#pragma GCC unroll 32
    for (int32_t i = 0; i < kSums; i++) sums[i] = Simd::add(Simd::load(held[level] + i * kLanes), sums[i]);
  }
  if constexpr (kLeaf + kLeaves < kLanes) {
#pragma GCC unroll 32
    for (int32_t i = 0; i < kSums; i++) Simd::store(held[level] + i * kLanes, sums[i]);
    add_leaves<kRows, Form, kLeaf + kLeaves>(q, d, panel, held, to);
  } else {
#pragma GCC unroll 32
    for (int32_t i = 0; i < kSums; i++) {
      Simd::store(to + i / kScoreVectors * kScoreStride + i % kScoreVectors * kLanes, sums[i]);
    }
  }
}

template <int32_t kRows, class Form = Floats>
void score_panel(const typename Form::Element* q, int32_t d, const typename Form::Element* panel, float* to) {
  constexpr int32_t kMost = kRows < kScoreRows ? kRows : kScoreRows;
  static_assert(kRows % kMost == 0);
  constexpr int32_t kMostLevels = 4;
  alignas(kLineBytes) float held[kMostLevels][kMost * kScoreVectors * kLanes];
  for (int32_t i = 0; i < kRows; i += kMost) {
    add_leaves<kMost, Form>(q + int64_t{i} * d, d, panel, held, to + i * kScoreStride);
  }
}

// out[place[i]][0:8] = in[0:8][i] for 8 keys of which `keys` are there; the others count as 0.
template <class T>
void transpose_8x8(const T* in, int64_t in_stride, int32_t keys, float* out, const int64_t* place) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int32_t i = 0; i < 8; i++) r[i] = i < keys ? load_8(in + i * in_stride) : _mm256_setzero_ps();
  __m256 s[8];
#pragma GCC unroll 4
  for (int32_t i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int32_t i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int32_t i = 0; i < 4; i++) {
    _mm256_storeu_ps(out + place[i], _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + place[i + 4], _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// Keys [lo, hi), widened to whole panels, as panels [key / kPanel][d][kPanel] with the elements of a key in the order
// of the products, so that they read a panel from its beginning to its end.
template <class T>
void rearrange_keys(const AttentionBlockArgs& a, int32_t lo, int32_t hi, float* panels) {
  int64_t place[kLanes];
  for (int32_t lane = 0; lane < kLanes; lane++) place[lane] = int64_t{first_row_of(a.d, lane)} * kPanel;
  const int32_t begin = lo / kPanel * kPanel;
  const int32_t end = (hi + kPanel - 1) / kPanel * kPanel;
  for (int32_t t = begin; t < end; t += 8) {
    const int32_t there = most(0, least(8, a.keys - t));
    float* out = panels + int64_t{t / kPanel} * a.d * kPanel + t % kPanel;
    for (int32_t i = 0; i < a.d; i += 8) {
      transpose_8x8(key_of<T>(a, t) + i, a.kv_stride, there, out + int64_t{i / kLanes * kLeaves} * kPanel,
                    place + i % kLanes);
    }
  }
}

// Values [lo, hi) as panels [column / kPanel][keys][kPanel], columns that pad the last panel as 0. True when all of
// them are finite.
template <class T>
bool rearrange_values(const AttentionBlockArgs& a, int32_t lo, int32_t hi, float* panels) {
  V odd = Simd::zero();  // 0, or NaN in the lanes of what is not finite
  for (int32_t t = lo; t < hi; t++) {
    const T* from = value_of<T>(a, t);
    float* to = panels + int64_t{t} * kPanel;
    const auto put = [&](int32_t i, V x) {
      odd = Simd::fma(x, Simd::zero(), odd);
      Simd::store(to + int64_t{i / kPanel} * a.keys * kPanel + i % kPanel, x);
    };
    int32_t i = 0;
    for (; i + kLanes <= a.d; i += kLanes) put(i, Simd::load(from + i));
    if (i < a.d) put(i, Simd::load_some(from + i, a.d - i)), i += kLanes;
    for (; i % kPanel != 0; i += kLanes) put(i, Simd::zero());
  }
  return Simd::sum(odd) == 0;
}

// Weights of 0 for what a row of a group does not see, so that the group is one product over [seen.lo, seen.hi).
// update_rows() has written those that share a vector with one that the row sees.
void clear_unseen(const AttentionBlockArgs& a, int32_t row, int32_t rows, const Seen& seen, float* scores) {
  for (int32_t r = row; r < row + rows; r++) {
    float* of_row = scores + r * kScoreStride;
    int32_t end = a.hi[r] > a.lo[r] ? a.lo[r] : seen.hi;
    for (int32_t t = seen.lo; t < end; t++) of_row[t] = 0;
    for (int32_t t = most(end, a.hi[r]); t < seen.hi; t++) of_row[t] = 0;
  }
}

// o of kRows rows from `row` on takes the weighted values.
template <int32_t kRows>
void weigh_panels(const AttentionBlockArgs& a, int32_t row, bool finite, const float* values, const float* carry,
                  float* scores) {
  const Seen seen = seen_by(a, row, kRows);
  if (seen.hi <= seen.lo) return;
  const auto weigh_group = [&](auto group, int32_t r, int32_t begin, int32_t end) {
    for (int32_t i = 0; i < a.d; i += kPanel) {
      multiply_tile<decltype(group)::kCount>(scores + r * kScoreStride + begin, kScoreStride,
                                             values + int64_t{i} * a.keys + int64_t{begin} * kPanel, end - begin,
                                             a.o + r * a.o_stride + i, a.o_stride, carry + (r - row));
    }
  };
  if (finite || seen.alike) {
    if (!seen.alike) clear_unseen(a, row, kRows, seen, scores);
    weigh_group(Rows<kRows>{}, row, seen.lo, seen.hi);
  } else {
    // A value times a weight of 0 is not 0 when the value is NaN or infinite.
    for (int32_t r = row; r < row + kRows; r++) weigh_group(Rows<1>{}, r, a.lo[r], most(a.lo[r], a.hi[r]));
  }
}

// Scores of kRows rows from `row` on, those of every vector of keys of which one of them sees one.
template <int32_t kRows>
void multiply_keys(const AttentionBlockArgs& a, int32_t row, const float* keys, float* scores) {
  constexpr int32_t kKeys = kScoreVectors * kLanes;
  const Seen seen = seen_by(a, row, kRows);
  const float* q = a.q + int64_t{row} * a.d;
  for (int32_t t = seen.lo / kKeys * kKeys; t < seen.hi; t += kKeys) {
    score_panel<kRows>(q, a.d, keys + int64_t{t / kPanel} * a.d * kPanel + t % kPanel, scores + row * kScoreStride + t);
  }
}

template <class T>
void block_of_many_rows(const AttentionBlockArgs& a) {
  float* scores = a.scratch;
  float* keys = scores + a.rows * kScoreStride;
  float* values = keys + int64_t{kAttentionMaxKeys} * a.d;
  const Seen all = seen_by(a, 0, a.rows);
  if (all.hi <= all.lo) return;
  rearrange_keys<T>(a, all.lo, all.hi, keys);
  const bool finite = rearrange_values<T>(a, all.lo, all.hi, values);
  // A group of rows at a time: its scores stay in the first-level cache between the three steps.
  for_tile_rows(a.rows, [&](auto group, int32_t row) {
    constexpr int32_t kRows = decltype(group)::kCount;
    float carry[kRows];
    multiply_keys<kRows>(a, row, keys, scores);
    update_rows<T, kRows>(a, row, scores, carry);
    weigh_panels<kRows>(a, row, finite, values, carry, scores);
  });
}
