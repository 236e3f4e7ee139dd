// SPDX-License-Identifier: Apache-2.0
// The body of the vector variants, written once over a vector type. The x86_*.cc files include it inside an anonymous
// namespace, after defining `struct Simd`; nothing else may. Simd gives V (kLanes floats), the shape of the register
// tiles and the operations used below. Loads of keys and values are overloaded on the element type.

using V = Simd::V;
constexpr int32_t kLanes = Simd::kLanes;
// Scores: kRows query rows by kKeys keys, one sum each, reduced together. Values: kRows rows by kColumns vectors.
constexpr int32_t kRows = Simd::kRows;
constexpr int32_t kKeys = Simd::kKeys;
constexpr int32_t kColumns = Simd::kColumns;

int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

// exp(x) for x <= 0: NaN stays NaN, results below the smallest normal float become 0. x = n ln 2 + r with |r| <= ln 2 /
// 2 and ln 2 in two parts; the series up to r^7 / 7! is off by 6e-9 relative, the whole by 1.5e-7 of rounding.
V exp_of(V x) {
  const V n = Simd::round(Simd::mul(x, Simd::set(0x1.715476p+0f)));
  V r = Simd::fma(n, Simd::set(-0x1.62e4p-1f), x);
  r = Simd::fma(n, Simd::set(-0x1.7f7d1cp-20f), r);
  V p = Simd::set(1.0f / 5040);
  p = Simd::fma(p, r, Simd::set(1.0f / 720));
  p = Simd::fma(p, r, Simd::set(1.0f / 120));
  p = Simd::fma(p, r, Simd::set(1.0f / 24));
  p = Simd::fma(p, r, Simd::set(1.0f / 6));
  p = Simd::fma(p, r, Simd::set(0.5f));
  p = Simd::fma(p, r, Simd::set(1.0f));
  p = Simd::fma(p, r, Simd::set(1.0f));
  // ln of the smallest normal float.
  return Simd::drop_below(x, -87.3365479f, Simd::scale_by_pow2(p, n));
}

template <class T>
const T* row_of(const void* base, const SparseTileArgs& a, int32_t t) {
  return static_cast<const T*>(base) + a.index[t] * a.kv_stride;
}

// Scores of up to kRows rows from `row` on with up to kKeys keys from `t` on. Rows and keys past the end repeat the
// last ones; their sums are dropped.
template <class T>
void score_tile(const SparseTileArgs& a, int32_t row, int32_t t) {
  const float* q[kRows];
  const T* k[kKeys];
#pragma GCC unroll 4
  for (int32_t r = 0; r < kRows; r++) q[r] = a.q + int64_t{least(row + r, a.rows - 1)} * a.d;
#pragma GCC unroll 4
  for (int32_t j = 0; j < kKeys; j++) k[j] = row_of<T>(a.k, a, least(t + j, a.keys - 1));
  V sums[kRows * kKeys];
#pragma GCC unroll 16
  for (int32_t i = 0; i < kRows * kKeys; i++) sums[i] = Simd::zero();
  const auto step = [&](int32_t i, auto load) {
    V x[kRows];
#pragma GCC unroll 4
    for (int32_t r = 0; r < kRows; r++) x[r] = load(q[r] + i);
#pragma GCC unroll 4
    for (int32_t j = 0; j < kKeys; j++) {
      const V y = load(k[j] + i);
#pragma GCC unroll 4
      for (int32_t r = 0; r < kRows; r++) sums[r * kKeys + j] = Simd::fma(x[r], y, sums[r * kKeys + j]);
    }
  };
  int32_t i = 0;
  for (; i + kLanes <= a.d; i += kLanes) step(i, [](const auto* from) { return Simd::load(from); });
  if (i < a.d) step(i, [](const auto* from) { return Simd::load_half(from); });
  alignas(64) float result[kRows * kKeys];
  Simd::reduce(sums, result);
  for (int32_t r = 0; r < least(kRows, a.rows - row); r++) {
    float* scores = a.scratch + int64_t{row + r} * kSparseTileKeys + t;
    for (int32_t j = 0; j < least(kKeys, a.keys - t); j++) scores[j] = result[r * kKeys + j] * a.scale;
  }
}

// Turns the scores of row r into weights in place, updates m and l, and returns what the sums so far are multiplied
// with.
float update_row(const SparseTileArgs& a, int32_t r) {
  constexpr float kNothing = -__builtin_huge_valf();
  float* scores = a.scratch + int64_t{r} * kSparseTileKeys;
  const int32_t end = (a.keys + kLanes - 1) / kLanes * kLanes;
  for (int32_t t = a.keys; t < end; t++) scores[t] = kNothing;
  // A score that is not a number is no maximum; its weight is not a number, and so are l and o.
  V top = Simd::set(a.m[r]);
  for (int32_t t = 0; t < end; t += kLanes) top = Simd::max(Simd::load(scores + t), top);
  const float m = Simd::highest(top);
  const V base = Simd::set(m == kNothing ? 0.0f : m);
  V sum = Simd::zero();
  for (int32_t t = 0; t < end; t += kLanes) {
    const V weight = exp_of(Simd::sub(Simd::load(scores + t), base));
    Simd::store(scores + t, weight);
    sum = Simd::add(sum, weight);
  }
  const float carry = Simd::first(exp_of(Simd::sub(Simd::set(a.m[r]), base)));
  a.l[r] = a.l[r] * carry + Simd::sum(sum);
  a.m[r] = m;
  return carry;
}

// Columns [i, i + kCount vectors) of kRows rows of o.
template <class T, int32_t kCount, class Load, class LoadO, class Store>
void weigh_tile(const SparseTileArgs& a, int32_t row, const float* carry, int32_t i, Load load, LoadO load_o,
                Store store) {
  float* o[kRows];
  const float* weights[kRows];
  V sums[kRows * kCount];
#pragma GCC unroll 4
  for (int32_t r = 0; r < kRows; r++) {
    const int32_t at = least(row + r, a.rows - 1);
    o[r] = a.o + int64_t{at} * a.d + i;
    weights[r] = a.scratch + int64_t{at} * kSparseTileKeys;
    const V factor = Simd::set(carry[at]);
#pragma GCC unroll 4
    for (int32_t c = 0; c < kCount; c++) sums[r * kCount + c] = Simd::mul(factor, load_o(o[r] + c * kLanes));
  }
  for (int32_t t = 0; t < a.keys; t++) {
    const T* v = row_of<T>(a.v, a, t) + i;
    V x[kCount];
#pragma GCC unroll 4
    for (int32_t c = 0; c < kCount; c++) x[c] = load(v + c * kLanes);
#pragma GCC unroll 4
    for (int32_t r = 0; r < kRows; r++) {
      const V weight = Simd::set(weights[r][t]);
#pragma GCC unroll 4
      for (int32_t c = 0; c < kCount; c++) sums[r * kCount + c] = Simd::fma(weight, x[c], sums[r * kCount + c]);
    }
  }
#pragma GCC unroll 4
  for (int32_t r = 0; r < kRows; r++) {
    if (row + r >= a.rows) break;
#pragma GCC unroll 4
    for (int32_t c = 0; c < kCount; c++) store(o[r] + c * kLanes, sums[r * kCount + c]);
  }
}

template <class T>
void tile(const SparseTileArgs& a) {
  float* carry = a.scratch + int64_t{a.rows} * kSparseTileKeys;
  for (int32_t t = 0; t < a.keys; t += kKeys) {
    for (int32_t r = 0; r < a.rows; r += kRows) score_tile<T>(a, r, t);
  }
  for (int32_t r = 0; r < a.rows; r++) carry[r] = update_row(a, r);
  const auto load = [](const auto* from) { return Simd::load(from); };
  const auto store = [](float* to, V x) { Simd::store(to, x); };
  for (int32_t r = 0; r < a.rows; r += kRows) {
    int32_t i = 0;
    for (; i + kColumns * kLanes <= a.d; i += kColumns * kLanes) {
      weigh_tile<T, kColumns>(a, r, carry, i, load, load, store);
    }
    for (; i + kLanes <= a.d; i += kLanes) weigh_tile<T, 1>(a, r, carry, i, load, load, store);
    if (i < a.d) {
      const auto load_half = [](const auto* from) { return Simd::load_half(from); };
      weigh_tile<T, 1>(a, r, carry, i, load_half, load_half, [](float* to, V x) { Simd::store_half(to, x); });
    }
  }
}
