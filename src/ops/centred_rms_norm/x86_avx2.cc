// SPDX-License-Identifier: Apache-2.0
// centred_rms_norm for AVX2: two passes over a group, the second one while it is still in the first-level cache.
#include <immintrin.h>

#include <cstdint>

#include "ops/centred_rms_norm/kernels.h"

namespace quern::ops {
namespace {

constexpr int64_t kLanes = 8;
// Independent sums hide the latency of the addition and shorten each sum.
constexpr int64_t kSums = 4;

struct Floats {
  using T = float;
  static __m256 load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, __m256 x) { _mm256_storeu_ps(p, x); }
};

struct Brains {
  using T = uint16_t;
  static __m256 load(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // To nearest, ties to even; NaN stays one.
  static void store(uint16_t* p, __m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)));
  }
};

// Part of a vector, the lanes behind it zero. Bytes behind a row may not be readable.
template <class E>
__m256 load_some(const typename E::T* p, int64_t n) {
  typename E::T part[kLanes] = {};
  __builtin_memcpy(part, p, static_cast<uint64_t>(n) * sizeof(*p));
  return E::load(part);
}
template <class E>
void store_some(typename E::T* p, int64_t n, __m256 x) {
  typename E::T part[kLanes];
  E::store(part, x);
  __builtin_memcpy(p, part, static_cast<uint64_t>(n) * sizeof(*p));
}

float total(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <class E>
float sum_of_squares(const typename E::T* x, int64_t n) {
  __m256 sums[kSums] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  const auto add = [](__m256& sum, __m256 v) { sum = _mm256_fmadd_ps(v, v, sum); };
  int64_t j = 0;
  for (; j + kSums * kLanes <= n; j += kSums * kLanes) {
    for (int64_t s = 0; s < kSums; s++) add(sums[s], E::load(x + j + s * kLanes));
  }
  for (; j + kLanes <= n; j += kLanes) add(sums[0], E::load(x + j));
  if (j < n) add(sums[1], load_some<E>(x + j, n - j));
  return total(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
}

template <class E>
void normalise(const CentredRmsNormKernelArgs& k) {
  const auto* x = static_cast<const typename E::T*>(k.x);
  const auto* weight = static_cast<const typename E::T*>(k.weight);
  auto* y = static_cast<typename E::T*>(k.y);
  const __m256 one = _mm256_set1_ps(1);
  for (int64_t begin = 0; begin < k.n; begin += k.group) {
    const float mean = sum_of_squares<E>(x + begin, k.group) / static_cast<float>(k.group);
    const __m256 scale = _mm256_set1_ps(1 / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + k.epsilon))));
    const auto scaled = [&](__m256 v, __m256 w) {
      return _mm256_mul_ps(_mm256_mul_ps(v, scale), _mm256_add_ps(one, w));
    };
    int64_t j = begin;
    const int64_t end = begin + k.group;
    for (; j + kLanes <= end; j += kLanes) E::store(y + j, scaled(E::load(x + j), E::load(weight + j)));
    if (j < end) store_some<E>(y + j, end - j, scaled(load_some<E>(x + j, end - j), load_some<E>(weight + j, end - j)));
  }
}

}  // namespace

void centred_rms_norm_f32_avx2(const CentredRmsNormKernelArgs& k) noexcept { normalise<Floats>(k); }
void centred_rms_norm_bf16_avx2(const CentredRmsNormKernelArgs& k) noexcept { normalise<Brains>(k); }

}  // namespace quern::ops
