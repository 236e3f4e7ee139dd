// SPDX-License-Identifier: Apache-2.0
// linear for AVX2: sixteen lanes are two vectors. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/linear/kernels.h"

namespace quern::ops {
namespace {

struct Step;

struct Simd {
  struct Lanes {
    __m256 low, high;
  };
  static constexpr int kTileRows = 2;  // 8 accumulators of 16 registers
  static constexpr int kTileColumns = 2;
  static constexpr int kOneRowColumns = 4;

  static Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Lanes load(const float* p) { return {_mm256_load_ps(p), _mm256_load_ps(p + 8)}; }
  static Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Step load_step(const float* p);
  static Step load_part(const float* p, int64_t n);
  static Step load_step(const uint16_t* p);
  static Step load_part(const uint16_t* p, int64_t n);
  // The tree of the AVX-512 variant.
  static float total(Lanes v) {
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

#include "ops/linear/generic.h"

Step Simd::load_step(const float* p) {
  return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}, {_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24)}};
}

// Even and odd ones of eight pairs of bfloat16.
__m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
__m256 odd(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

Step Simd::load_step(const uint16_t* p) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  return {{even(low), even(high)}, {odd(low), odd(high)}};
}

// The last step of a row is copied in front of zeros: bytes behind the row may not be readable.
template <class T>
Step load_copied(const T* p, int64_t n) {
  alignas(32) T step[kLinearStep] = {};
  __builtin_memcpy(step, p, static_cast<uint64_t>(n) * sizeof(T));
  return Simd::load_step(step);
}

Step Simd::load_part(const float* p, int64_t n) { return load_copied(p, n); }
Step Simd::load_part(const uint16_t* p, int64_t n) { return load_copied(p, n); }

}  // namespace

void linear_f32_avx2(const LinearKernelArgs& a) noexcept { multiply<float>(a); }
void linear_bf16_avx2(const LinearKernelArgs& a) noexcept { multiply<uint16_t>(a); }

}  // namespace quern::ops
