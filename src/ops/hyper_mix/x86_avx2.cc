// SPDX-License-Identifier: Apache-2.0
// hyper_mix for AVX2, in both element types.
#include <immintrin.h>

#include <cstdint>

#include "ops/hyper_mix/kernels.h"

namespace quern::ops {
namespace {

constexpr int64_t kLanes = 8;

struct Floats {
  using T = float;
  static __m256 load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, __m256 x) { _mm256_storeu_ps(p, x); }
  static __m256 round(__m256 x) { return x; }
};

struct Brains {
  using T = uint16_t;
  static __m256 load(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // To nearest, ties to even, in the upper half of each lane; NaN stays one.
  static __m256i upper_half(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  static void store(uint16_t* p, __m256 x) {
    const __m256i narrow = _mm256_srli_epi32(upper_half(x), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(narrow), _mm256_extracti128_si256(narrow, 1)));
  }
  static __m256 round(__m256 x) {
    return _mm256_castsi256_ps(_mm256_and_si256(upper_half(x), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

// Whole vectors and what is left of them: f(j, access) with access.load(p) and access.store(p, x) for the elements
// [j, j + 8) or those of them below n.
template <class E>
struct Whole {
  __m256 load(const typename E::T* p) const { return E::load(p); }
  void store(typename E::T* p, __m256 x) const { E::store(p, x); }
};
template <class E>
struct Part {
  int64_t n;
  __m256 load(const typename E::T* p) const {
    typename E::T part[kLanes] = {};
    __builtin_memcpy(part, p, static_cast<uint64_t>(n) * sizeof(*p));
    return E::load(part);
  }
  void store(typename E::T* p, __m256 x) const {
    typename E::T part[kLanes];
    E::store(part, x);
    __builtin_memcpy(p, part, static_cast<uint64_t>(n) * sizeof(*p));
  }
};
template <class E, class F>
void for_vectors(int64_t n, F f) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) f(j, Whole<E>{});
  if (j < n) f(j, Part<E>{n - j});
}

// 1 + exp(-x), to 2 units in the last place; infinite from x = -88.73 down, where exp(-x) is. With t = -x = n ln 2 + r,
// |r| <= ln 2 / 2, and ln 2 in two parts of which the first has few bits; exp(r) = 1 + r + r^2 p(r), p fitted to a
// relative error of 3.1e-9. Above x = 87 the 1 is all that is left.
__m256 one_plus_exp_of_minus(__m256 x) {
  const __m256 one = _mm256_set1_ps(1), most = _mm256_set1_ps(0x1.62e43p+6f);
  const __m256 minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  // min and max give their second operand when one is NaN.
  const __m256 t = _mm256_min_ps(most, _mm256_max_ps(_mm256_set1_ps(-87), minus));
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(t, _mm256_set1_ps(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.63p-1f), t);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.bd0106p-13f), r);
  __m256 p = _mm256_set1_ps(0x1.6a23fp-10f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.123a0ap-7f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558f2p-5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
  const __m256 power = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), one);
  // 2^n in two factors: n reaches 128, which no float has as an exponent.
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const auto power_of_two = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  const __m256 e = _mm256_mul_ps(_mm256_mul_ps(power, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
  const __m256 infinite = _mm256_cmp_ps(minus, most, _CMP_GT_OQ);
  return _mm256_add_ps(one, _mm256_blendv_ps(e, _mm256_set1_ps(__builtin_huge_valf()), infinite));
}

__m256 sigmoid_of(__m256 x) { return _mm256_div_ps(_mm256_set1_ps(1), one_plus_exp_of_minus(x)); }

template <class E>
void gate(const HyperGateKernelArgs& k) {
  auto* a = static_cast<typename E::T*>(k.a);
  const __m256 streams = _mm256_set1_ps(static_cast<float>(k.streams));
  for_vectors<E>(k.rank, [&](int64_t j, auto access) {
    const __m256 x = E::round(_mm256_div_ps(access.load(a + j), streams));
    access.store(a + j, _mm256_div_ps(x, one_plus_exp_of_minus(x)));
  });
}

template <class E>
void mix(const HyperMixKernelArgs& k) {
  const auto* normed = static_cast<const typename E::T*>(k.normed);
  const auto* logits = static_cast<const typename E::T*>(k.gate_logits);
  auto* out = static_cast<typename E::T*>(k.out);
  const __m256 streams = _mm256_set1_ps(static_cast<float>(k.streams));
  for_vectors<E>(k.hidden, [&](int64_t j, auto access) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t at = j; at < k.streams * k.hidden; at += k.hidden) {
      const __m256 share = E::round(sigmoid_of(access.load(logits + at)));
      sum = _mm256_add_ps(sum, E::round(_mm256_mul_ps(share, access.load(normed + at))));
    }
    access.store(out + j, _mm256_div_ps(sum, streams));
  });
}

template <class E>
void scatter(const HyperScatterKernelArgs& k) {
  auto* x = static_cast<typename E::T*>(k.x);
  const auto* y = static_cast<const typename E::T*>(k.y);
  const auto* logits = static_cast<const typename E::T*>(k.inject_logits);
  const __m256 streams = _mm256_set1_ps(static_cast<float>(k.streams));
  for (int32_t c = 0; c < k.streams; c++, x += k.hidden) {
    // One number in all lanes.
    const __m256 logit = _mm256_broadcastss_ps(_mm256_castps256_ps128(Part<E>{1}.load(logits + c)));
    const __m256 share = E::round(sigmoid_of(E::round(_mm256_div_ps(logit, streams))));
    const __m256 factor = E::round(_mm256_add_ps(share, share));
    for_vectors<E>(k.hidden, [&](int64_t j, auto access) {
      const __m256 added = E::round(_mm256_mul_ps(access.load(y + j), factor));
      access.store(x + j, _mm256_add_ps(access.load(x + j), added));
    });
  }
}

}  // namespace

void hyper_gate_f32_avx2(const HyperGateKernelArgs& k) noexcept { gate<Floats>(k); }
void hyper_gate_bf16_avx2(const HyperGateKernelArgs& k) noexcept { gate<Brains>(k); }
void hyper_mix_f32_avx2(const HyperMixKernelArgs& k) noexcept { mix<Floats>(k); }
void hyper_mix_bf16_avx2(const HyperMixKernelArgs& k) noexcept { mix<Brains>(k); }
void hyper_scatter_f32_avx2(const HyperScatterKernelArgs& k) noexcept { scatter<Floats>(k); }
void hyper_scatter_bf16_avx2(const HyperScatterKernelArgs& k) noexcept { scatter<Brains>(k); }

}  // namespace quern::ops
