// SPDX-License-Identifier: Apache-2.0
// matmul for AVX2: few rows stream b, more multiply laid-out blocks of b in tiles of 6 x 16.
#include <immintrin.h>

#include <cstdint>

#include "ops/matmul/kernels.h"

namespace quern::ops {
namespace {

constexpr int64_t kTileRows = 6;
constexpr int64_t kTileColumns = 16;
constexpr int64_t kDepth = kMatMulPanelFloats / kTileColumns / 2;
constexpr int64_t kLanes = 8;

__m256i lanes_below(int64_t n) {
  const int bound = n >= kLanes ? static_cast<int>(kLanes) : n <= 0 ? 0 : static_cast<int>(n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Where rows of a tile end, the last row stands in for the missing ones; its copies are not stored.
int64_t row_or_last(int64_t row, int64_t rows) { return row < rows ? row : rows - 1; }

struct Tile {
  const float* a;
  int64_t lda;
  const float* panel;  // [depth][kTileColumns], zero beyond the columns
  int64_t depth;
  float* y;
  int64_t ldy;
  int64_t rows, columns;
  bool first;  // the sums start at zero, otherwise at y
};

// Twelve named accumulators: an array of them is spilled by g++ 12.
void multiply_tile(const Tile& t) {
  const __m256i low = lanes_below(t.columns), high = lanes_below(t.columns - kLanes);
  const float* a0 = t.a + row_or_last(0, t.rows) * t.lda;
  const float* a1 = t.a + row_or_last(1, t.rows) * t.lda;
  const float* a2 = t.a + row_or_last(2, t.rows) * t.lda;
  const float* a3 = t.a + row_or_last(3, t.rows) * t.lda;
  const float* a4 = t.a + row_or_last(4, t.rows) * t.lda;
  const float* a5 = t.a + row_or_last(5, t.rows) * t.lda;
  float* y0 = t.y + row_or_last(0, t.rows) * t.ldy;
  float* y1 = t.y + row_or_last(1, t.rows) * t.ldy;
  float* y2 = t.y + row_or_last(2, t.rows) * t.ldy;
  float* y3 = t.y + row_or_last(3, t.rows) * t.ldy;
  float* y4 = t.y + row_or_last(4, t.rows) * t.ldy;
  float* y5 = t.y + row_or_last(5, t.rows) * t.ldy;
  const __m256 zero = _mm256_setzero_ps();
  __m256 c0 = t.first ? zero : _mm256_maskload_ps(y0, low);
  __m256 d0 = t.first ? zero : _mm256_maskload_ps(y0 + kLanes, high);
  __m256 c1 = t.first ? zero : _mm256_maskload_ps(y1, low);
  __m256 d1 = t.first ? zero : _mm256_maskload_ps(y1 + kLanes, high);
  __m256 c2 = t.first ? zero : _mm256_maskload_ps(y2, low);
  __m256 d2 = t.first ? zero : _mm256_maskload_ps(y2 + kLanes, high);
  __m256 c3 = t.first ? zero : _mm256_maskload_ps(y3, low);
  __m256 d3 = t.first ? zero : _mm256_maskload_ps(y3 + kLanes, high);
  __m256 c4 = t.first ? zero : _mm256_maskload_ps(y4, low);
  __m256 d4 = t.first ? zero : _mm256_maskload_ps(y4 + kLanes, high);
  __m256 c5 = t.first ? zero : _mm256_maskload_ps(y5, low);
  __m256 d5 = t.first ? zero : _mm256_maskload_ps(y5 + kLanes, high);
  const float* b = t.panel;
  for (int64_t k = 0; k < t.depth; k++, b += kTileColumns) {
    const __m256 b0 = _mm256_load_ps(b);
    const __m256 b1 = _mm256_load_ps(b + kLanes);
    __m256 a = _mm256_broadcast_ss(a0 + k);
    c0 = _mm256_fmadd_ps(a, b0, c0);
    d0 = _mm256_fmadd_ps(a, b1, d0);
    a = _mm256_broadcast_ss(a1 + k);
    c1 = _mm256_fmadd_ps(a, b0, c1);
    d1 = _mm256_fmadd_ps(a, b1, d1);
    a = _mm256_broadcast_ss(a2 + k);
    c2 = _mm256_fmadd_ps(a, b0, c2);
    d2 = _mm256_fmadd_ps(a, b1, d2);
    a = _mm256_broadcast_ss(a3 + k);
    c3 = _mm256_fmadd_ps(a, b0, c3);
    d3 = _mm256_fmadd_ps(a, b1, d3);
    a = _mm256_broadcast_ss(a4 + k);
    c4 = _mm256_fmadd_ps(a, b0, c4);
    d4 = _mm256_fmadd_ps(a, b1, d4);
    a = _mm256_broadcast_ss(a5 + k);
    c5 = _mm256_fmadd_ps(a, b0, c5);
    d5 = _mm256_fmadd_ps(a, b1, d5);
  }
  // The first row always exists; from the last one on there is nothing more to store.
  _mm256_maskstore_ps(y0, low, c0);
  _mm256_maskstore_ps(y0 + kLanes, high, d0);
  if (t.rows == 1) return;
  _mm256_maskstore_ps(y1, low, c1);
  _mm256_maskstore_ps(y1 + kLanes, high, d1);
  if (t.rows == 2) return;
  _mm256_maskstore_ps(y2, low, c2);
  _mm256_maskstore_ps(y2 + kLanes, high, d2);
  if (t.rows == 3) return;
  _mm256_maskstore_ps(y3, low, c3);
  _mm256_maskstore_ps(y3 + kLanes, high, d3);
  if (t.rows == 4) return;
  _mm256_maskstore_ps(y4, low, c4);
  _mm256_maskstore_ps(y4 + kLanes, high, d4);
  if (t.rows == 5) return;
  _mm256_maskstore_ps(y5, low, c5);
  _mm256_maskstore_ps(y5 + kLanes, high, d5);
}

void lay_out(const MatMulKernelArgs& k, int64_t k0, int64_t depth, int64_t column, int64_t columns) {
  const __m256i low = lanes_below(columns), high = lanes_below(columns - kLanes);
  const float* b = k.b + k0 * k.ldb + column;
  for (int64_t l = 0; l < depth; l++, b += k.ldb) {
    _mm256_store_ps(k.panel + l * kTileColumns, _mm256_maskload_ps(b, low));
    _mm256_store_ps(k.panel + l * kTileColumns + kLanes, _mm256_maskload_ps(b + kLanes, high));
  }
}

void multiply_blocks(const MatMulKernelArgs& k) {
  for (int64_t k0 = 0; k0 < k.k; k0 += kDepth) {
    const int64_t depth = k.k - k0 < kDepth ? k.k - k0 : kDepth;
    for (int64_t column = 0; column < k.n; column += kTileColumns) {
      const int64_t columns = k.n - column < kTileColumns ? k.n - column : kTileColumns;
      lay_out(k, k0, depth, column, columns);
      for (int64_t row = 0; row < k.m; row += kTileRows) {
        const int64_t rows = k.m - row < kTileRows ? k.m - row : kTileRows;
        multiply_tile(
            {k.a + row * k.lda + k0, k.lda, k.panel, depth, k.y + row * k.ldy + column, k.ldy, rows, columns, k0 == 0});
      }
    }
  }
}

// Eight rows of b at a time: each is read once for all rows of a, and y is loaded and stored once for eight of them.
void stream(const MatMulKernelArgs& k) {
  constexpr int64_t kRows = 8;
  int64_t l = 0;
  for (; l + kRows <= k.k; l += kRows) {
    // The next eight rows, which lie on other pages, where the processor does not look ahead by itself: one row times
    // [3072, 1024] on one thread went from 1.43 to 1.17 ms.
    const int64_t ahead = l + 2 * kRows <= k.k ? kRows * k.ldb : 0;
    for (int64_t j = 0; j < k.n; j += kLanes) {
      const __m256i lanes = lanes_below(k.n - j);
      const float* b = k.b + l * k.ldb + j;
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead + k.ldb), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead + 2 * k.ldb), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead + 3 * k.ldb), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead + 4 * k.ldb), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead + 5 * k.ldb), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead + 6 * k.ldb), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + ahead + 7 * k.ldb), _MM_HINT_T0);
      const __m256 b0 = _mm256_maskload_ps(b, lanes);
      const __m256 b1 = _mm256_maskload_ps(b + k.ldb, lanes);
      const __m256 b2 = _mm256_maskload_ps(b + 2 * k.ldb, lanes);
      const __m256 b3 = _mm256_maskload_ps(b + 3 * k.ldb, lanes);
      const __m256 b4 = _mm256_maskload_ps(b + 4 * k.ldb, lanes);
      const __m256 b5 = _mm256_maskload_ps(b + 5 * k.ldb, lanes);
      const __m256 b6 = _mm256_maskload_ps(b + 6 * k.ldb, lanes);
      const __m256 b7 = _mm256_maskload_ps(b + 7 * k.ldb, lanes);
      for (int64_t i = 0; i < k.m; i++) {
        const float* a = k.a + i * k.lda + l;
        float* y = k.y + i * k.ldy + j;
        __m256 sum = l == 0 ? _mm256_setzero_ps() : _mm256_maskload_ps(y, lanes);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[0]), b0, sum);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[1]), b1, sum);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[2]), b2, sum);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[3]), b3, sum);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[4]), b4, sum);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[5]), b5, sum);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[6]), b6, sum);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[7]), b7, sum);
        _mm256_maskstore_ps(y, lanes, sum);
      }
    }
  }
  if (l == k.k) return;
  for (int64_t j = 0; j < k.n; j += kLanes) {
    const __m256i lanes = lanes_below(k.n - j);
    for (int64_t i = 0; i < k.m; i++) {
      float* y = k.y + i * k.ldy + j;
      __m256 sum = l == 0 ? _mm256_setzero_ps() : _mm256_maskload_ps(y, lanes);
      for (int64_t r = l; r < k.k; r++) {
        const __m256 b = _mm256_maskload_ps(k.b + r * k.ldb + j, lanes);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(k.a[i * k.lda + r]), b, sum);
      }
      _mm256_maskstore_ps(y, lanes, sum);
    }
  }
}

}  // namespace

void matmul_f32_avx2(const MatMulKernelArgs& k) noexcept {
  if (k.m <= kMatMulStreamedRows) {
    stream(k);
  } else {
    multiply_blocks(k);
  }
}

}  // namespace quern::ops
