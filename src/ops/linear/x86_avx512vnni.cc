// SPDX-License-Identifier: Apache-2.0
// linear for AVX-512: the vector type and its operations. Does not own the algorithm (generic.h).
#include <immintrin.h>

#include <cstdint>

#include "ops/linear/kernels.h"

namespace quern::ops {
namespace {

struct Step;

struct Simd {
  using Lanes = __m512;
  static constexpr int kTileRows = 4;  // 16 accumulators of 32 registers
  static constexpr int kTileColumns = 4;
  static constexpr int kOneRowColumns = 4;

  static Lanes zero() { return _mm512_setzero_ps(); }
  static Lanes load(const float* p) { return _mm512_load_ps(p); }
  static Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
  static Step load_step(const float* p);
  static Step load_part(const float* p, int64_t n);
  static Step load_step(const uint16_t* p);
  static Step load_part(const uint16_t* p, int64_t n);
  // (((p0 + p8) + (p4 + p12)) + ...): halves are added until one lane is left.
  static float total(Lanes v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

#include "ops/linear/generic.h"

Step Simd::load_step(const float* p) { return {_mm512_loadu_ps(p), _mm512_loadu_ps(p + kLaneCount)}; }

Step Simd::load_part(const float* p, int64_t n) {
  const auto lanes = static_cast<uint32_t>((uint64_t{1} << n) - 1);
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), p),
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes >> 16), p + kLaneCount)};
}

// Sixteen pairs of bfloat16: the even ones are the lower halves of the 32-bit lanes.
Step split(__m512i pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

Step Simd::load_step(const uint16_t* p) { return split(_mm512_loadu_si512(p)); }

Step Simd::load_part(const uint16_t* p, int64_t n) {
  return split(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), p));
}

}  // namespace

void linear_f32_avx512vnni(const LinearKernelArgs& a) noexcept { multiply<float>(a); }
void linear_bf16_avx512vnni(const LinearKernelArgs& a) noexcept { multiply<uint16_t>(a); }

}  // namespace quern::ops
