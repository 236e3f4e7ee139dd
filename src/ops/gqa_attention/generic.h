// SPDX-License-Identifier: Apache-2.0
// The body of the vector variants, written once over a vector type. The x86_*.cc files include it inside an anonymous
// namespace, after defining `struct Simd`; nothing else may. Simd gives V (kLanes floats), Mask, kTileRows (rows of the
// register tile) and the operations used below; max(a, b) returns b when one of them is NaN. Loads of keys and values
// are overloaded on the element type T (float, Half, Brain, int8_t); all arithmetic is in float.

using V = Simd::V;
constexpr int32_t kLanes = Simd::kLanes;
// Both products of a block are run as tiles of kTileRows rows by kPanel columns held in registers. The right-hand side
// is rearranged into panels of kPanel columns without gaps: read in place, a panel's rows are a power of two apart and
// evict each other from the first-level cache.
constexpr int32_t kPanel = 2 * kLanes;
constexpr int64_t kScoreStride = kAttentionMaxKeys;
constexpr int32_t kLineBytes = 64;

constexpr float kNothing = -__builtin_huge_valf();

int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

// ---- elementary functions ----

// exp(x) for x <= 0; NaN stays NaN, results below the smallest normal float become 0. x = n ln 2 + r with |r| <= ln 2 /
// 2 and ln 2 in two parts; the polynomial (degree 7 in r) is within 0.7 ulp, the whole within 1.5e-7 relative.
V exp_of(V x) {
  const V n = Simd::round(Simd::mul(x, Simd::set(1.44269504088896341f)));
  V r = Simd::fnma(n, Simd::set(0.693359375f), x);
  r = Simd::fnma(n, Simd::set(-2.12194440e-4f), r);
  V p = Simd::set(1.9875691500e-4f);
  p = Simd::fma(p, r, Simd::set(1.3981999507e-3f));
  p = Simd::fma(p, r, Simd::set(8.3334519073e-3f));
  p = Simd::fma(p, r, Simd::set(4.1665795894e-2f));
  p = Simd::fma(p, r, Simd::set(1.6666665459e-1f));
  p = Simd::fma(p, r, Simd::set(5.0000001201e-1f));
  p = Simd::add(Simd::fma(Simd::mul(r, r), p, r), Simd::set(1.0f));
  // ln of the smallest normal float.
  return Simd::keep(Simd::not_below(x, Simd::set(-87.3365447f)), Simd::scale_by_pow2(p, n));
}

// tanh(x): an odd polynomial near 0, where 1 - 2e/(1+e) would cancel, and that form with e = exp(-2|x|) elsewhere.
V tanh_of(V x) {
  const V z = Simd::mul(x, x);
  V p = Simd::set(-5.70498872745e-3f);
  p = Simd::fma(p, z, Simd::set(2.06390887954e-2f));
  p = Simd::fma(p, z, Simd::set(-5.37397155531e-2f));
  p = Simd::fma(p, z, Simd::set(1.33314422036e-1f));
  p = Simd::fma(p, z, Simd::set(-3.33332819422e-1f));
  const V near = Simd::fma(Simd::mul(p, z), x, x);
  const V size = Simd::abs(x);
  const V e = exp_of(Simd::mul(size, Simd::set(-2.0f)));
  const V ratio = Simd::div(Simd::add(e, e), Simd::add(e, Simd::set(1.0f)));
  const V far = Simd::copy_sign(Simd::sub(Simd::set(1.0f), ratio), x);
  return Simd::choose(Simd::not_below(size, Simd::set(0.625f)), far, near);
}

// ---- typed rows ----

template <class T>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<int8_t> = true;

template <class T>
const T* key_of(const AttentionBlockArgs& a, int64_t t) {
  return static_cast<const T*>(a.k) + t * a.kv_stride;
}
template <class T>
const T* value_of(const AttentionBlockArgs& a, int64_t t) {
  return static_cast<const T*>(a.v) + t * a.kv_stride;
}

// ---- softmax ----

// Turns the scores [lo, hi) of row r into weights in place, updates m and l, and returns what the sums so far are
// multiplied with.
template <class T>
float update_row(const AttentionBlockArgs& a, int32_t r, float* scores) {
  const int32_t lo = a.lo[r];
  const int32_t hi = a.hi[r];
  if (hi <= lo) return 1.0f;
  float* m = a.m + r;
  float* l = a.l + r;
  V top = Simd::set(kNothing);
  const int32_t begin = lo / kLanes * kLanes;
  for (int32_t t = begin; t < hi; t += kLanes) {
    V x = Simd::load(scores + t);
    if constexpr (kScaled<T>) x = Simd::mul(x, Simd::load_some(a.k_scale + t, hi - t));
    if (a.softcap > 0) {
      const V cap = Simd::set(a.softcap);
      x = Simd::mul(cap, tanh_of(Simd::div(x, cap)));
    }
    if (a.bias != nullptr) x = Simd::add(x, Simd::load_some(a.bias[r] + t, hi - t));
    if (kScaled<T> || a.softcap > 0 || a.bias != nullptr) Simd::store(scores + t, x);
    top = Simd::max(Simd::choose(Simd::between(lo - t, hi - t), x, Simd::set(kNothing)), top);
  }
  const float highest = Simd::highest(top);
  const float m_next = highest > *m ? highest : *m;
  const V base = Simd::set(m_next == kNothing ? 0.0f : m_next);
  V sum = Simd::zero();
  for (int32_t t = begin; t < hi; t += kLanes) {
    const Simd::Mask seen = Simd::between(lo - t, hi - t);
    V p = Simd::keep(seen, exp_of(Simd::sub(Simd::load(scores + t), base)));
    sum = Simd::add(sum, p);
    if constexpr (kScaled<T>) p = Simd::keep(seen, Simd::mul(p, Simd::load_some(a.v_scale + t, hi - t)));
    Simd::store(scores + t, p);
  }
  const float carry = Simd::first(exp_of(Simd::sub(Simd::set(*m), base)));
  *l = *l * carry + Simd::sum(sum);
  *m = m_next;
  return carry;
}

// ---- what groups of rows see ----

struct Seen {
  int32_t lo, hi;                // seen by at least one row
  int32_t shared_lo, shared_hi;  // seen by all rows
};

Seen seen_by(const AttentionBlockArgs& a, int32_t row, int32_t rows) {
  Seen seen{a.keys, 0, 0, a.keys};
  for (int32_t r = row; r < row + rows; r++) {
    if (a.hi[r] > a.lo[r]) {
      seen.lo = least(seen.lo, a.lo[r]);
      seen.hi = most(seen.hi, a.hi[r]);
    }
    seen.shared_lo = most(seen.shared_lo, a.lo[r]);
    seen.shared_hi = least(seen.shared_hi, a.hi[r]);
  }
  if (seen.shared_hi < seen.shared_lo) seen.shared_hi = seen.shared_lo;
  return seen;
}

// Calls f(begin, end) for the keys that row r sees beyond the shared ones. They are summed row by row, because a value
// times a weight of 0 is not 0 when the value is NaN or infinite.
template <class F>
void for_rest(const AttentionBlockArgs& a, int32_t r, const Seen& seen, F f) {
  if (seen.shared_hi == seen.shared_lo) {
    if (a.lo[r] < a.hi[r]) f(a.lo[r], a.hi[r]);
    return;
  }
  if (a.lo[r] < seen.shared_lo) f(a.lo[r], seen.shared_lo);
  if (a.hi[r] > seen.shared_hi) f(seen.shared_hi, a.hi[r]);
}

template <int32_t n>
struct Rows {
  static constexpr int32_t kCount = n;
};

// Cuts [row, rows) into groups whose sizes the tiles are compiled for.
template <class F>
void for_tile_rows(int32_t rows, F f) {
  int32_t r = 0;
  for (; rows - r >= Simd::kTileRows; r += Simd::kTileRows) f(Rows<Simd::kTileRows>{}, r);
  for (; rows - r >= Simd::kTileRows / 2; r += Simd::kTileRows / 2) f(Rows<Simd::kTileRows / 2>{}, r);
  for (; rows - r >= 2; r += 2) f(Rows<2>{}, r);
  for (; r < rows; r++) f(Rows<1>{}, r);
}

// ---- many rows: both products as register tiles ----

// c[i][0:kPanel] = carry[i] * c[i] + sum_t a[i][t] * b[t][0:kPanel]; without carry, c starts from zero.
template <int32_t kRows>
void multiply_tile(const float* a, int64_t a_stride, const float* b, int32_t depth, float* c, int64_t c_stride,
                   const float* carry) {
  V left[kRows];
  V right[kRows];
#pragma GCC unroll 16
  for (int32_t i = 0; i < kRows; i++) {
    left[i] = Simd::zero();
    right[i] = Simd::zero();
    if (carry != nullptr) {
      const V factor = Simd::set(carry[i]);
      left[i] = Simd::mul(factor, Simd::load(c + i * c_stride));
      right[i] = Simd::mul(factor, Simd::load(c + i * c_stride + kLanes));
    }
  }
  for (int32_t t = 0; t < depth; t++) {
    const V b_left = Simd::load(b + int64_t{t} * kPanel);
    const V b_right = Simd::load(b + int64_t{t} * kPanel + kLanes);
#pragma GCC unroll 16
    for (int32_t i = 0; i < kRows; i++) {
      const V x = Simd::set(a[i * a_stride + t]);
      left[i] = Simd::fma(x, b_left, left[i]);
      right[i] = Simd::fma(x, b_right, right[i]);
    }
  }
#pragma GCC unroll 16
  for (int32_t i = 0; i < kRows; i++) {
    Simd::store(c + i * c_stride, left[i]);
    Simd::store(c + i * c_stride + kLanes, right[i]);
  }
}

// out[i][0:8] = in[0:8][i] for 8 keys of which `keys` are there; the others count as 0.
template <class T>
void transpose_8x8(const T* in, int64_t in_stride, int32_t keys, float* out) {
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
    _mm256_storeu_ps(out + i * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// Keys [lo, hi), widened to whole panels, as panels [key / kPanel][d][kPanel].
template <class T>
void rearrange_keys(const AttentionBlockArgs& a, int32_t lo, int32_t hi, float* panels) {
  const int32_t begin = lo / kPanel * kPanel;
  const int32_t end = (hi + kPanel - 1) / kPanel * kPanel;
  for (int32_t t = begin; t < end; t += 8) {
    const int32_t there = most(0, least(8, a.keys - t));
    float* out = panels + int64_t{t / kPanel} * a.d * kPanel + t % kPanel;
    for (int32_t i = 0; i < a.d; i += 8) {
      transpose_8x8(key_of<T>(a, t) + i, a.kv_stride, there, out + int64_t{i} * kPanel);
    }
  }
}

// Values [lo, hi) as panels [column / kPanel][keys][kPanel].
template <class T>
void rearrange_values(const AttentionBlockArgs& a, int32_t lo, int32_t hi, float* panels) {
  for (int32_t t = lo; t < hi; t++) {
    const T* from = value_of<T>(a, t);
    float* to = panels + int64_t{t} * kPanel;
    for (int32_t i = 0; i < a.d; i += 8) {
      _mm256_storeu_ps(to + int64_t{i / kPanel} * a.keys * kPanel + i % kPanel, load_8(from + i));
    }
    // Columns of the last panel that pad it.
    for (int32_t i = a.d; i % kPanel != 0; i += 8) {
      _mm256_storeu_ps(to + int64_t{i / kPanel} * a.keys * kPanel + i % kPanel, _mm256_setzero_ps());
    }
  }
}

template <class T>
void block_of_many_rows(const AttentionBlockArgs& a) {
  float* scores = a.scratch;
  float* keys = scores + a.rows * kScoreStride;
  float* values = keys + int64_t{kAttentionMaxKeys} * a.d;
  float* carry = values + int64_t{kAttentionMaxKeys} * a.o_stride;
  const Seen all = seen_by(a, 0, a.rows);
  if (all.hi <= all.lo) return;

  rearrange_keys<T>(a, all.lo, all.hi, keys);
  for (int32_t t = all.lo / kPanel * kPanel; t < all.hi; t += kPanel) {
    const float* panel = keys + int64_t{t / kPanel} * a.d * kPanel;
    for_tile_rows(a.rows, [&](auto group, int32_t r) {
      constexpr int32_t kRows = decltype(group)::kCount;
      const Seen seen = seen_by(a, r, kRows);
      if (seen.hi <= t || seen.lo >= t + kPanel) return;
      multiply_tile<kRows>(a.q + int64_t{r} * a.d, a.d, panel, a.d, scores + r * kScoreStride + t, kScoreStride,
                           nullptr);
    });
  }
  for (int32_t r = 0; r < a.rows; r++) carry[r] = update_row<T>(a, r, scores + r * kScoreStride);
  rearrange_values<T>(a, all.lo, all.hi, values);
  for (int32_t i = 0; i < a.d; i += kPanel) {
    const float* panel = values + int64_t{i} * a.keys;
    for_tile_rows(a.rows, [&](auto group, int32_t r) {
      constexpr int32_t kRows = decltype(group)::kCount;
      const Seen seen = seen_by(a, r, kRows);
      if (seen.hi <= seen.lo) return;
      multiply_tile<kRows>(scores + r * kScoreStride + seen.shared_lo, kScoreStride,
                           panel + int64_t{seen.shared_lo} * kPanel, seen.shared_hi - seen.shared_lo,
                           a.o + r * a.o_stride + i, a.o_stride, carry + r);
      for (int32_t row = r; row < r + kRows; row++) {
        for_rest(a, row, seen, [&](int32_t begin, int32_t end) {
          const float one = 1.0f;
          multiply_tile<1>(scores + row * kScoreStride + begin, kScoreStride, panel + int64_t{begin} * kPanel,
                           end - begin, a.o + row * a.o_stride + i, a.o_stride, &one);
        });
      }
    });
  }
}

// ---- few rows: keys and values are read in place, once ----

// Both streams are fetched this many rows ahead of where they are read, also past the end of the block, where the next
// one follows, into the second-level cache (the first one is too small). A processor drops such fetches while its queue
// is full, so each line is asked for more than once. One thread, float rows at depth 1024: 13 GB/s without, 27 when
// asked twice, 30 four times, of the 28 to 31 that plain reads reach. Twice is best for narrower rows, whose arithmetic
// leaves the memory more time.
constexpr int64_t kRowsAhead = 32;

template <class T>
void fetch_ahead(const T* now, int64_t stride) {
  _mm_prefetch(reinterpret_cast<const char*>(now + kRowsAhead * stride), _MM_HINT_T1);
  _mm_prefetch(reinterpret_cast<const char*>(now + kRowsAhead / 2 * stride), _MM_HINT_T1);
  // Float vectors of half a line come here twice a line.
  if constexpr (kLanes * sizeof(T) == kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(now + kRowsAhead * 3 / 4 * stride), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(now + kRowsAhead / 4 * stride), _MM_HINT_T1);
  }
}

// Narrow vectors share lines: the first of a line is enough for them.
template <class T>
bool fetches_at(int32_t i) {
  return sizeof(T) == sizeof(float) || i % (kLineBytes / static_cast<int32_t>(sizeof(T))) == 0;
}

// Scores of kRows rows against up to kSums / kRows keys from t on: kSums sums along d, reduced together.
template <class T, int32_t kRows>
void dot_tile(const AttentionBlockArgs& a, int32_t row, int32_t t, int32_t end, float* scores) {
  constexpr int32_t kKeys = Simd::kSums / kRows;
  const float* q = a.q + int64_t{row} * a.d;
  const T* k[kKeys];
  // Keys past the end repeat the last one; their sums are dropped.
#pragma GCC unroll 16
  for (int32_t j = 0; j < kKeys; j++) k[j] = key_of<T>(a, least(t + j, end - 1));
  V sums[Simd::kSums];
#pragma GCC unroll 16
  for (int32_t j = 0; j < Simd::kSums; j++) sums[j] = Simd::zero();
  int32_t i = 0;
  for (; i + kLanes <= a.d; i += kLanes) {
    V x[kRows];
#pragma GCC unroll 4
    for (int32_t r = 0; r < kRows; r++) x[r] = Simd::load(q + int64_t{r} * a.d + i);
#pragma GCC unroll 16
    for (int32_t j = 0; j < kKeys; j++) {
      const V y = Simd::load(k[j] + i);
      if (row == 0 && fetches_at<T>(i)) fetch_ahead(k[j] + i, a.kv_stride);
#pragma GCC unroll 4
      for (int32_t r = 0; r < kRows; r++) sums[r * kKeys + j] = Simd::fma(x[r], y, sums[r * kKeys + j]);
    }
  }
  if (i < a.d) {
#pragma GCC unroll 16
    for (int32_t j = 0; j < kKeys; j++) {
      const V y = Simd::load_some(k[j] + i, a.d - i);
#pragma GCC unroll 4
      for (int32_t r = 0; r < kRows; r++) {
        sums[r * kKeys + j] = Simd::fma(Simd::load_some(q + int64_t{r} * a.d + i, a.d - i), y, sums[r * kKeys + j]);
      }
    }
  }
  alignas(64) float result[kLanes];
  Simd::store(result, Simd::reduce(sums));
  const int32_t count = least(kKeys, end - t);
  for (int32_t r = 0; r < kRows; r++) {
    for (int32_t j = 0; j < count; j++) scores[(row + r) * kScoreStride + t + j] = result[r * kKeys + j];
  }
}

template <class T, int32_t kRows>
void dot_tiles(const AttentionBlockArgs& a, int32_t row, int32_t t, int32_t end, float* scores) {
  for (; t < end; t += Simd::kSums / kRows) dot_tile<T, kRows>(a, row, t, end, scores);
}

// o[row + r] += sum over kKeys keys from t on of weight * value: the rows of o stay in the first-level cache, and the
// values pass once, in the order in which they lie.
template <class T, int32_t kRows, int32_t kKeys>
void add_values(const AttentionBlockArgs& a, const float* scores, int32_t row, int32_t t) {
  V p[kRows * kKeys];
#pragma GCC unroll 16
  for (int32_t i = 0; i < kRows * kKeys; i++)
    p[i] = Simd::set(scores[(row + i / kKeys) * kScoreStride + t + i % kKeys]);
  const T* v = value_of<T>(a, t);
  float* o = a.o + row * a.o_stride;
  const auto columns = [&](int32_t i, auto load) {
    V sums[kRows];
#pragma GCC unroll 2
    for (int32_t r = 0; r < kRows; r++) sums[r] = Simd::load(o + r * a.o_stride + i);
#pragma GCC unroll 8
    for (int32_t j = 0; j < kKeys; j++) {
      const V x = load(v + j * a.kv_stride + i);
      if (row == 0 && fetches_at<T>(i)) fetch_ahead(v + j * a.kv_stride + i, a.kv_stride);
#pragma GCC unroll 2
      for (int32_t r = 0; r < kRows; r++) sums[r] = Simd::fma(p[r * kKeys + j], x, sums[r]);
    }
#pragma GCC unroll 2
    for (int32_t r = 0; r < kRows; r++) Simd::store(o + r * a.o_stride + i, sums[r]);
  };
  int32_t i = 0;
  for (; i + kLanes <= a.d; i += kLanes) columns(i, [](const T* from) { return Simd::load(from); });
  if (i < a.d) columns(i, [&](const T* from) { return Simd::load_some(from, a.d - i); });
}

template <class T, int32_t kRows>
void weigh(const AttentionBlockArgs& a, const float* scores, int32_t row, int32_t begin, int32_t end,
           const float* carry) {
  for (int32_t r = 0; r < kRows; r++) {
    float* o = a.o + (row + r) * a.o_stride;
    for (int32_t i = 0; i < a.d; i += kLanes) Simd::store(o + i, Simd::mul(Simd::set(carry[r]), Simd::load(o + i)));
  }
  // Narrow rows are loaded and converted in less time than o is; more of them at once halve its traffic (float16 at
  // depth 1024: 163 to 139 us a layer). More float rows at once are more streams than memory likes.
  constexpr int32_t kKeys = sizeof(T) == sizeof(float) ? 2 : 4;
  int32_t t = begin;
  for (; t + kKeys <= end; t += kKeys) add_values<T, kRows, kKeys>(a, scores, row, t);
  for (; t < end; t++) add_values<T, kRows, 1>(a, scores, row, t);
}

template <class T>
void block_of_few_rows(const AttentionBlockArgs& a) {
  float* scores = a.scratch;
  float carry[kAttentionFewRows];
  const Seen all = seen_by(a, 0, a.rows);
  if (all.hi <= all.lo) return;
  for (int32_t t = all.lo; t < all.hi; t += Simd::kSums) {
    const int32_t end = least(all.hi, t + Simd::kSums);
    int32_t r = 0;
    for (; a.rows - r >= 4; r += 4) dot_tiles<T, 4>(a, r, t, end, scores);
    for (; a.rows - r >= 2; r += 2) dot_tiles<T, 2>(a, r, t, end, scores);
    for (; r < a.rows; r++) dot_tiles<T, 1>(a, r, t, end, scores);
  }
  for (int32_t r = 0; r < a.rows; r++) carry[r] = update_row<T>(a, r, scores + r * kScoreStride);
  int32_t r = 0;
  for (; a.rows - r >= 2; r += 2) {
    const Seen seen = seen_by(a, r, 2);
    if (seen.hi <= seen.lo) continue;
    weigh<T, 2>(a, scores, r, seen.shared_lo, seen.shared_hi, carry + r);
    for (int32_t row = r; row < r + 2; row++) {
      for_rest(a, row, seen, [&](int32_t begin, int32_t end) {
        const float one = 1.0f;
        weigh<T, 1>(a, scores, row, begin, end, &one);
      });
    }
  }
  if (r < a.rows) weigh<T, 1>(a, scores, r, a.lo[r], most(a.lo[r], a.hi[r]), carry + r);
}

// ---- rotation ----

// Loads and stores of a whole vector or of the first n lanes.
struct Whole {
  static V load(const float* p, int32_t) { return Simd::load(p); }
  static void store(float* p, int32_t, V x) { Simd::store(p, x); }
};
struct Some {
  static V load(const float* p, int32_t n) { return Simd::load_some(p, n); }
  static void store(float* p, int32_t n, V x) { Simd::store_some(p, n, x); }
};

template <class Part>
void rotate_halves(const AttentionRotateArgs& a, const float* x, float* y, int32_t j, int32_t n) {
  const int32_t half = a.rotary / 2;
  const V scale = Simd::set(a.scale);
  const V c = Part::load(static_cast<const float*>(a.cos) + j, n);
  const V s = Part::load(static_cast<const float*>(a.sin) + j, n);
  const V first = Part::load(x + j, n);
  const V second = Part::load(x + j + half, n);
  Part::store(y + j, n, Simd::mul(Simd::sub(Simd::mul(first, c), Simd::mul(second, s)), scale));
  Part::store(y + j + half, n, Simd::mul(Simd::add(Simd::mul(second, c), Simd::mul(first, s)), scale));
}

// kLanes / 2 pairs.
void rotate_pairs(const AttentionRotateArgs& a, const float* x, float* y, int32_t i, int32_t n) {
  const V pairs = Simd::load_some(x + i, n);
  const V c = Simd::load_some(static_cast<const float*>(a.cos) + i / 2, n / 2);
  const V s = Simd::load_some(static_cast<const float*>(a.sin) + i / 2, n / 2);
  const V straight = Simd::mul(pairs, Simd::twice(c));
  const V crossed = Simd::mul(Simd::swap_pairs(pairs), Simd::twice(s));
  Simd::store_some(y + i, n, Simd::mul(Simd::sub_add(straight, crossed), Simd::set(a.scale)));
}

void rotate_heads(const AttentionRotateArgs& a) {
  const V scale = Simd::set(a.scale);
  for (int32_t h = 0; h < a.heads; h++) {
    const float* x = a.x + h * a.x_stride;
    float* y = a.y + h * a.y_stride;
    if (a.interleaved) {
      for (int32_t i = 0; i < a.rotary; i += kLanes) rotate_pairs(a, x, y, i, least(kLanes, a.rotary - i));
    } else {
      int32_t j = 0;
      for (; j + kLanes <= a.rotary / 2; j += kLanes) rotate_halves<Whole>(a, x, y, j, kLanes);
      if (j < a.rotary / 2) rotate_halves<Some>(a, x, y, j, a.rotary / 2 - j);
    }
    for (int32_t i = a.rotary; i < a.d; i += kLanes) {
      const int32_t n = least(kLanes, a.d - i);
      Simd::store_some(y + i, n, Simd::mul(Simd::load_some(x + i, n), scale));
    }
  }
}
