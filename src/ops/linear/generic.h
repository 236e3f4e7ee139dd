// SPDX-License-Identifier: Apache-2.0
// The body of the vector variants of linear, written once over sixteen lanes. The x86_*.cc files include it inside an
// anonymous namespace, after defining `struct Simd`; nothing else may. Simd gives Lanes (sixteen floats), the register
// tiles and the operations used below. A step of kLinearStep weights of a row becomes two Lanes, in the order in which
// layout.h puts the depths of x; lane p of an accumulator is partial sum p of the contract.

using Lanes = Simd::Lanes;
constexpr int64_t kLaneCount = 16;

struct Step {
  Lanes first, second;
};

// Rows of x that a tile lacks are stood in for by its last one, and columns by the last one too; neither is stored.
struct Tile {
  const float* x;
  int64_t ldx;
  const void* w;
  int64_t k;
  float* y;
  int64_t ldy;
  int64_t rows, columns;
};

int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

// Where a single row is multiplied, weights are read once and from memory. A tile reads short pieces of several rows in
// turn, which the processor does not follow: this many bytes ahead of it they are asked for in the order in which they
// lie. A row times [10240, 320] bfloat16 went from 0.86 to 0.26 ms on one thread; rows of 2560 change little.
constexpr int64_t kAheadBytes = 8192;
constexpr int64_t kLineBytes = 64;

template <class T, int Rows, int Columns>
void multiply_tile(const Tile& t) {
  const float* x[Rows];
  const T* w[Columns];
  Lanes sums[Rows][Columns];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; i++) x[i] = t.x + at_most(i, t.rows - 1) * t.ldx;
#pragma GCC unroll 8
  for (int j = 0; j < Columns; j++) {
    w[j] = static_cast<const T*>(t.w) + at_most(j, t.columns - 1) * t.k;
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++) sums[i][j] = Simd::zero();
  }
  const auto add = [&](int64_t at, auto load) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int j = 0; j < Columns; j++) {
      const Step step = load(w[j] + at);
#pragma GCC unroll 8
      for (int i = 0; i < Rows; i++) {
        sums[i][j] = Simd::fma(Simd::load(x[i] + at), step.first, sums[i][j]);
        sums[i][j] = Simd::fma(Simd::load(x[i] + at + kLaneCount), step.second, sums[i][j]);
      }
    }
  };
  int64_t at = 0;
  for (; at + kLinearStep <= t.k; at += kLinearStep) {
    if constexpr (Rows == 1) {
      constexpr int64_t kStepBytes = kLinearStep * static_cast<int64_t>(sizeof(T));
      const char* ahead = static_cast<const char*>(t.w) + kAheadBytes + at / kLinearStep * Columns * kStepBytes;
#pragma GCC unroll 8
      for (int64_t i = 0; i < Columns * kStepBytes; i += kLineBytes) _mm_prefetch(ahead + i, _MM_HINT_T0);
    }
    add(
        at, [](const T* p) __attribute__((always_inline)) { return Simd::load_step(p); });
  }
  if (at < t.k) {
    const int64_t left = t.k - at;
    add(
        at, [left](const T* p) __attribute__((always_inline)) { return Simd::load_part(p, left); });
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; i++) {
#pragma GCC unroll 8
    for (int j = 0; j < Columns; j++) {
      if (i < t.rows && j < t.columns) t.y[i * t.ldy + j] = Simd::total(sums[i][j]);
    }
  }
}

template <class T>
void multiply(const LinearKernelArgs& a) {
  constexpr int kRows = Simd::kTileRows, kColumns = Simd::kTileColumns, kOneRowColumns = Simd::kOneRowColumns;
  const auto* w = static_cast<const T*>(a.w);
  if (a.m == 1) {
    for (int64_t j = 0; j < a.n; j += kOneRowColumns) {
      multiply_tile<T, 1, kOneRowColumns>({a.x, a.ldx, w + j * a.k, a.k, a.y + j, a.ldy, 1, a.n - j});
    }
    return;
  }
  for (int64_t i = 0; i < a.m; i += kRows) {
    for (int64_t j = 0; j < a.n; j += kColumns) {
      multiply_tile<T, kRows, kColumns>(
          {a.x + i * a.ldx, a.ldx, w + j * a.k, a.k, a.y + i * a.ldy + j, a.ldy, a.m - i, a.n - j});
    }
  }
}
