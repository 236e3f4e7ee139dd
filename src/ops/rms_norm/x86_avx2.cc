// SPDX-License-Identifier: Apache-2.0
// rms_norm for AVX2: two passes over a row, the second one while the row is still in the first-level cache.
#include <immintrin.h>

#include <cstdint>

#include "ops/rms_norm/kernels.h"

namespace quern::ops {
namespace {

constexpr int64_t kLanes = 8;
// Independent sums hide the latency of the addition and shorten each sum.
constexpr int64_t kSums = 4;

__m256i lanes_below(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

float total(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// r = x (+ skip) (+ bias); returns the sum of squares, and stores r where `r` is not null.
template <bool kSkip, bool kBias>
float add_and_square(const float* x, const float* skip, const float* bias, float* r, int64_t n) {
  __m256 sums[kSums] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t j = 0;
  const auto step = [&](__m256& sum, int64_t at, auto load, auto store) {
    __m256 v = load(x + at);
    if constexpr (kSkip) v = _mm256_add_ps(v, load(skip + at));
    if constexpr (kBias) v = _mm256_add_ps(v, load(bias + at));
    sum = _mm256_fmadd_ps(v, v, sum);
    if (r != nullptr) store(r + at, v);
  };
  const auto load = [](const float* p) { return _mm256_loadu_ps(p); };
  const auto store = [](float* p, __m256 v) { _mm256_storeu_ps(p, v); };
  for (; j + kSums * kLanes <= n; j += kSums * kLanes) {
    for (int64_t s = 0; s < kSums; s++) step(sums[s], j + s * kLanes, load, store);
  }
  for (; j + kLanes <= n; j += kLanes) step(sums[0], j, load, store);
  if (j < n) {
    const __m256i lanes = lanes_below(n - j);
    step(
        sums[0], j, [&](const float* p) { return _mm256_maskload_ps(p, lanes); },
        [&](float* p, __m256 v) { _mm256_maskstore_ps(p, lanes, v); });
  }
  return total(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
}

float add_and_square(const RmsNormKernelArgs& k, const float* x, const float* skip, float* r) {
  if (skip != nullptr) {
    return k.bias != nullptr ? add_and_square<true, true>(x, skip, k.bias, r, k.n)
                             : add_and_square<true, false>(x, skip, nullptr, r, k.n);
  }
  return k.bias != nullptr ? add_and_square<false, true>(x, nullptr, k.bias, r, k.n)
                           : add_and_square<false, false>(x, nullptr, nullptr, r, k.n);
}

void scale(const float* r, float root, const float* gamma, float* y, int64_t n) {
  const __m256 divisor = _mm256_set1_ps(root);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const __m256 unit = _mm256_div_ps(_mm256_loadu_ps(r + j), divisor);
    _mm256_storeu_ps(y + j, _mm256_mul_ps(unit, _mm256_loadu_ps(gamma + j)));
  }
  if (j < n) {
    const __m256i lanes = lanes_below(n - j);
    const float* p = r + j;
    const __m256 unit = _mm256_div_ps(_mm256_maskload_ps(p, lanes), divisor);
    p = gamma + j;
    const __m256 v = _mm256_mul_ps(unit, _mm256_maskload_ps(p, lanes));
    _mm256_maskstore_ps(y + j, lanes, v);
  }
}

}  // namespace

void rms_norm_f32_avx2(const RmsNormKernelArgs& k) noexcept {
  for (int64_t i = k.row_begin; i < k.row_end; i++) {
    const float* x = k.x + i / k.inner * k.outer_stride + i % k.inner * k.inner_stride;
    const float* skip = k.skip == nullptr ? nullptr : k.skip + i % k.skip_rows * k.n;
    float* y = k.y + i * k.n;
    // The sums are kept in residual, or in y until it takes its final values; without addends they are x itself.
    float* r = k.residual != nullptr ? k.residual + i * k.n : skip != nullptr || k.bias != nullptr ? y : nullptr;
    const float squares = add_and_square(k, x, skip, r);
    const float mean = squares / static_cast<float>(k.n);
    const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + k.epsilon)));
    scale(r != nullptr ? r : x, root, k.gamma, y, k.n);
  }
}

}  // namespace quern::ops
