// SPDX-License-Identifier: Apache-2.0
// A block for few rows: keys and values are read in place, once. The x86_*.cc files include it behind generic.h, inside
// their anonymous namespace; nothing else may.

// Both streams are fetched this many rows ahead of where they are read, also past the end of the block, from where the
// next one lies, into the second-level cache (the first one is too small). A processor drops such fetches while its
// queue is full, so each line is asked for more than once. One thread, float rows at depth 1024: 13 GB/s without, 27
// when asked twice, 30 four times, of the 28 to 31 that plain reads reach. Twice is best for narrower rows, whose
// arithmetic leaves the memory more time.
template <class T>
constexpr int64_t kRowsAhead = sizeof(T) == 1 ? 64 : 32;
template <class T>
constexpr int64_t kAsks = sizeof(T) == sizeof(float) ? 4 : 2;

// How far from row t of a block the rows lie that are asked for with it.
template <class T>
struct Ahead {
  int64_t bytes[kAsks<T>];

  Ahead(const AttentionBlockArgs& a, int32_t t) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kAsks<T>; i++) {
      const int64_t reach = kRowsAhead<T> * (i + 1) / kAsks<T>;
      const bool here = t + reach < kAttentionMaxKeys;
      const int64_t elements = here ? reach * a.kv_stride : a.kv_next + (reach - kAttentionMaxKeys) * a.kv_stride;
      bytes[i] = elements * static_cast<int64_t>(sizeof(T));
    }
  }
  // Asks for the line of `now` in them.
  void fetch(const T* now) const {
#pragma GCC unroll 4
    for (int64_t i = kAsks<T>; i > 0; i--) {
      _mm_prefetch(reinterpret_cast<const char*>(now) + bytes[i - 1], _MM_HINT_T1);
    }
  }
};

// Narrow vectors share lines: the first of a line is enough for them.
template <class T>
bool starts_line(int32_t i) {
  return i % (kLineBytes / static_cast<int32_t>(sizeof(T))) == 0;
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
  const Ahead<T> ahead(a, t);
  V sums[Simd::kSums];
#pragma GCC unroll 16
  for (int32_t j = 0; j < Simd::kSums; j++) sums[j] = Simd::zero();
  const auto columns = [&](int32_t i, auto load_q, auto load_k) {
    V x[kRows];
#pragma GCC unroll 4
    for (int32_t r = 0; r < kRows; r++) x[r] = load_q(q + int64_t{r} * a.d + i);
#pragma GCC unroll 16
    for (int32_t j = 0; j < kKeys; j++) {
      const V y = load_k(k[j] + i);
      if (row == 0 && starts_line<T>(i)) ahead.fetch(k[j] + i);
#pragma GCC unroll 4
      for (int32_t r = 0; r < kRows; r++) sums[r * kKeys + j] = Simd::fma(x[r], y, sums[r * kKeys + j]);
    }
  };
  int32_t i = 0;
  for (; i + kLanes <= a.d; i += kLanes) {
    columns(
        i, [](const float* p) { return Simd::load(p); }, [](const T* p) { return Simd::load(p); });
  }
  if (i < a.d) {
    const auto load = [&](const auto* p) { return Simd::load_some(p, a.d - i); };
    columns(i, load, load);
  }
  Simd::spread<kKeys>(Simd::reduce(sums), least(kKeys, end - t), scores + row * kScoreStride + t, kScoreStride);
}

template <class T, int32_t kRows>
void dot_tiles(const AttentionBlockArgs& a, int32_t row, int32_t t, int32_t end, float* scores) {
  for (; t < end; t += Simd::kSums / kRows) dot_tile<T, kRows>(a, row, t, end, scores);
}

// The part of weigh() for kVectors vectors of columns from i on, held in registers meanwhile: the values pass once, in
// the order in which they lie, and o moves once a block. Over the form below, one token with one thread: float rows at
// depth 128 and 1024 0.92 and 0.98 of the time, int8 rows 0.98 and 0.97.
template <class T, int32_t kRows, int32_t kVectors, class Load>
void weigh_columns(const AttentionBlockArgs& a, const float* scores, int32_t row, int32_t begin, int32_t end,
                   const float* carry, int32_t i, Load load) {
  float* o = a.o + row * a.o_stride + i;
  V sums[kRows * kVectors];
#pragma GCC unroll 16
  for (int32_t s = 0; s < kRows * kVectors; s++) {
    sums[s] =
        Simd::mul(Simd::set(carry[s / kVectors]), Simd::load(o + s / kVectors * a.o_stride + s % kVectors * kLanes));
  }
  const float* weight = scores + row * kScoreStride;
  for (int32_t t = begin; t < end; t++) {
    const T* v = value_of<T>(a, t) + i;
    const Ahead<T> ahead(a, t);
    V p[kRows];
#pragma GCC unroll 2
    for (int32_t r = 0; r < kRows; r++) p[r] = Simd::set(weight[r * kScoreStride + t]);
#pragma GCC unroll 8
    for (int32_t j = 0; j < kVectors; j++) {
      const V x = load(v + j * kLanes);
      if (row == 0 && starts_line<T>(i + j * kLanes)) ahead.fetch(v + j * kLanes);
#pragma GCC unroll 2
      for (int32_t r = 0; r < kRows; r++) sums[r * kVectors + j] = Simd::fma(p[r], x, sums[r * kVectors + j]);
    }
  }
#pragma GCC unroll 16
  for (int32_t s = 0; s < kRows * kVectors; s++) {
    Simd::store(o + s / kVectors * a.o_stride + s % kVectors * kLanes, sums[s]);
  }
}

// For instruction sets with fewer registers than rows of o need: o[row + r] += sum over kKeys keys from t on of weight
// * value. The rows of o stay in the first-level cache.
template <class T, int32_t kRows, int32_t kKeys>
void add_values(const AttentionBlockArgs& a, const float* scores, int32_t row, int32_t t) {
  V p[kRows * kKeys];
#pragma GCC unroll 16
  for (int32_t i = 0; i < kRows * kKeys; i++)
    p[i] = Simd::set(scores[(row + i / kKeys) * kScoreStride + t + i % kKeys]);
  const T* v = value_of<T>(a, t);
  const Ahead<T> ahead(a, t);
  float* o = a.o + row * a.o_stride;
  const auto columns = [&](int32_t i, auto load) {
    V sums[kRows];
#pragma GCC unroll 2
    for (int32_t r = 0; r < kRows; r++) sums[r] = Simd::load(o + r * a.o_stride + i);
#pragma GCC unroll 8
    for (int32_t j = 0; j < kKeys; j++) {
      const V x = load(v + j * a.kv_stride + i);
      if (row == 0 && starts_line<T>(i)) ahead.fetch(v + j * a.kv_stride + i);
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

// o[row + r] = carry[r] * o[row + r] + sum over keys [begin, end) of weight * value.
template <class T, int32_t kRows>
void weigh(const AttentionBlockArgs& a, const float* scores, int32_t row, int32_t begin, int32_t end,
           const float* carry) {
  if constexpr (Simd::kHeldVectors > 0) {
    const auto whole = [](const T* from) { return Simd::load(from); };
    int32_t i = 0;
    for (; i + Simd::kHeldVectors * kLanes <= a.d; i += Simd::kHeldVectors * kLanes) {
      weigh_columns<T, kRows, Simd::kHeldVectors>(a, scores, row, begin, end, carry, i, whole);
    }
    for (; i + 4 * kLanes <= a.d; i += 4 * kLanes) {
      weigh_columns<T, kRows, 4>(a, scores, row, begin, end, carry, i, whole);
    }
    for (; i + kLanes <= a.d; i += kLanes) {
      weigh_columns<T, kRows, 1>(a, scores, row, begin, end, carry, i, whole);
    }
    if (i < a.d) {
      weigh_columns<T, kRows, 1>(a, scores, row, begin, end, carry, i,
                                 [&](const T* from) { return Simd::load_some(from, a.d - i); });
    }
  } else {
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
}

template <class T>
void block_of_few_rows(const AttentionBlockArgs& a) {
  float* scores = a.scratch;
  const Seen all = seen_by(a, 0, a.rows);
  if (all.hi <= all.lo) return;
  for (int32_t t = all.lo; t < all.hi; t += Simd::kSums) {
    const int32_t end = least(all.hi, t + Simd::kSums);
    int32_t r = 0;
    for (; a.rows - r >= 4; r += 4) dot_tiles<T, 4>(a, r, t, end, scores);
    for (; a.rows - r >= 2; r += 2) dot_tiles<T, 2>(a, r, t, end, scores);
    for (; r < a.rows; r++) dot_tiles<T, 1>(a, r, t, end, scores);
  }
  int32_t r = 0;
  for (; a.rows - r >= 2; r += 2) {
    float carry[2];
    update_rows<T, 2>(a, r, scores, carry);
    const Seen seen = seen_by(a, r, 2);
    if (seen.hi <= seen.lo) continue;
    if (seen.alike) {
      weigh<T, 2>(a, scores, r, seen.lo, seen.hi, carry);
    } else {
      for (int32_t i = 0; i < 2; i++) {
        weigh<T, 1>(a, scores, r + i, a.lo[r + i], most(a.lo[r + i], a.hi[r + i]), carry + i);
      }
    }
  }
  if (r == a.rows) return;
  float carry[1];
  update_rows<T, 1>(a, r, scores, carry);
  weigh<T, 1>(a, scores, r, a.lo[r], most(a.lo[r], a.hi[r]), carry);
}
