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
constexpr float kLeastFinite = -0x1.fffffep127f;

constexpr int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
constexpr int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

// ---- elementary functions ----

// exp(x) for x <= 0; NaN stays NaN, results below the smallest normal float become 0. x = n ln 2 + r with |r| <= ln 2 /
// 2 and ln 2 in two parts; 1 + r + r^2 q(r), q of degree 4 fitted for the least relative error (3.1e-9 before
// rounding), the whole within 1.5e-7 relative.
V exp_of(V x) {
  // In a float of this size the last bit is 1: the sum is rounded to an integer.
  const V whole = Simd::set(0x1.8p23f);
  const V shifted = Simd::fma(x, Simd::set(1.44269504088896341f), whole);
  const V n = Simd::sub(shifted, whole);
  V r = Simd::fnma(n, Simd::set(0.693359375f), x);
  r = Simd::fnma(n, Simd::set(-2.12194440e-4f), r);
  V q = Simd::set(0x1.6a2434p-10f);
  q = Simd::fma(q, r, Simd::set(0x1.1239e2p-7f));
  q = Simd::fma(q, r, Simd::set(0x1.5558f2p-5f));
  q = Simd::fma(q, r, Simd::set(0x1.555492p-3f));
  q = Simd::fma(q, r, Simd::set(0x1.fffffcp-2f));
  const V p = Simd::add(Simd::fma(Simd::mul(r, r), q, r), Simd::set(1.0f));
  // ln of the smallest normal float.
  return Simd::keep(Simd::not_below(x, Simd::set(-87.3365447f)), Simd::mul(p, Simd::pow2(shifted)));
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

// What becomes of the dot products of row r, in place; returns the largest over the keys that it sees.
template <class T>
float highest_score(const AttentionBlockArgs& a, int32_t r, float* scores) {
  const int32_t lo = a.lo[r];
  const int32_t hi = a.hi[r];
  V top = Simd::set(kNothing);
  for (int32_t t = lo / kLanes * kLanes; t < hi; t += kLanes) {
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
  return Simd::highest(top);
}

// Turns the scores of row r into weights in place, 0 where the row does not see the key; returns their sum.
template <class T>
float weights_of(const AttentionBlockArgs& a, int32_t r, float base, float* scores) {
  const int32_t lo = a.lo[r];
  const int32_t hi = a.hi[r];
  V sum = Simd::zero();
  for (int32_t t = lo / kLanes * kLanes; t < hi; t += kLanes) {
    const Simd::Mask seen = Simd::between(lo - t, hi - t);
    V p = Simd::keep(seen, exp_of(Simd::sub(Simd::load(scores + t), Simd::set(base))));
    sum = Simd::add(sum, p);
    if constexpr (kScaled<T>) p = Simd::keep(seen, Simd::mul(p, Simd::load_some(a.v_scale + t, hi - t)));
    Simd::store(scores + t, p);
  }
  return Simd::sum(sum);
}

// Turns the scores of the rows [row, row + kRows), each over the keys it sees, into weights in place, updates m and l,
// and writes what the sums so far are multiplied with to carry[0 .. kRows). Three sweeps, because what depends on one
// row alone is a chain of latencies: rows overlap in each of them, and the factors of the rows are one exponential.
template <class T, int32_t kRows>
void update_rows(const AttentionBlockArgs& a, int32_t row, float* scores, float* carry) {
  constexpr int32_t kPadded = (kRows + kLanes - 1) / kLanes * kLanes;
  float before[kPadded] = {}, base[kPadded] = {}, factors[kPadded];
  for (int32_t i = 0; i < kRows; i++) {
    const int32_t r = row + i;
    before[i] = base[i] = a.m[r];
    if (a.hi[r] <= a.lo[r]) continue;
    const float highest = highest_score<T>(a, r, scores + r * kScoreStride);
    if (highest > a.m[r]) a.m[r] = base[i] = highest;
  }
  for (int32_t i = 0; i < kRows; i += kLanes) {
    const V top = Simd::load(base + i);
    const V shift = Simd::choose(Simd::not_below(top, Simd::set(kLeastFinite)), top, Simd::zero());
    Simd::store(base + i, shift);
    Simd::store(factors + i, exp_of(Simd::sub(Simd::load(before + i), shift)));
  }
  for (int32_t i = 0; i < kRows; i++) {
    const int32_t r = row + i;
    carry[i] = factors[i];
    a.l[r] *= factors[i];
    if (a.hi[r] > a.lo[r]) a.l[r] += weights_of<T>(a, r, base[i], scores + r * kScoreStride);
  }
}

// ---- partial results ----

// See AttentionMergeArgs.
inline void merge_rows(const AttentionMergeArgs& a) {
  for (int32_t row = 0; row < a.rows; row += kLanes) {
    const int32_t count = least(kLanes, a.rows - row);
    const V before = Simd::load_some(a.m + row, count);
    const V part = Simd::load_some(a.part_m + row, count);
    const V top = Simd::max(before, part);
    const V shift = Simd::choose(Simd::not_below(top, Simd::set(kLeastFinite)), top, Simd::zero());
    const V carry = exp_of(Simd::sub(before, shift));
    const V weight = exp_of(Simd::sub(part, shift));
    const V sum = Simd::mul(Simd::load_some(a.l + row, count), carry);
    Simd::store_some(a.m + row, count, top);
    Simd::store_some(a.l + row, count, Simd::fma(Simd::load_some(a.part_l + row, count), weight, sum));
    float carries[kLanes], weights[kLanes];
    Simd::store(carries, carry);
    Simd::store(weights, weight);
    for (int32_t i = 0; i < count; i++) {
      float* o = a.o + (row + i) * a.o_stride;
      const float* part_o = a.part_o + (row + i) * a.o_stride;
      const V c = Simd::set(carries[i]);
      const V w = Simd::set(weights[i]);
      for (int64_t j = 0; j < a.o_stride; j += kLanes) {
        Simd::store(o + j, Simd::fma(Simd::load(part_o + j), w, Simd::mul(Simd::load(o + j), c)));
      }
    }
  }
}

// ---- what groups of rows see ----

struct Seen {
  int32_t lo, hi;  // seen by at least one row
  bool alike;      // all rows see all of them
};

Seen seen_by(const AttentionBlockArgs& a, int32_t row, int32_t rows) {
  Seen seen{a.keys, 0, true};
  for (int32_t r = row; r < row + rows; r++) {
    if (a.hi[r] > a.lo[r]) {
      seen.lo = least(seen.lo, a.lo[r]);
      seen.hi = most(seen.hi, a.hi[r]);
    }
  }
  for (int32_t r = row; r < row + rows; r++) seen.alike = seen.alike && a.lo[r] == seen.lo && a.hi[r] == seen.hi;
  return seen;
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
