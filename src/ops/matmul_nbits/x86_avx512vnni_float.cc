// SPDX-License-Identifier: Apache-2.0
// AVX-512 variant of the product of float rows: the 16 columns of a panel in one vector.
#include "ops/matmul_nbits/generic_float.h"

namespace quern::ops {
namespace {

struct Vector512 {
  using Float = __m512;
  using Int = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kOneRowPanels = 4;
  // Zen 5 starts two multiply-adds a cycle and has the result after four: 8 sums keep it 77 % busy, 16 keep it 91 %.
  static constexpr int kTilePanels = 4;
  static constexpr int kMaxSums = 16;
  static constexpr bool kHasLookup = true;

  static Float zero() { return _mm512_setzero_ps(); }
  static Float floats(float v) { return _mm512_set1_ps(v); }
  static Int ints(int v) { return _mm512_set1_epi32(v); }
  static Int load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Int load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Int bit_and(Int a, Int b) { return _mm512_and_si512(a, b); }
  static Int bit_or(Int a, Int b) { return _mm512_or_si512(a, b); }
  template <int N>
  static Int shift_left(Int v) {
    return _mm512_slli_epi32(v, N);
  }
  template <int N>
  static Int shift_right(Int v) {
    return _mm512_srli_epi32(v, N);
  }
  template <int S>
  static Float lookup(Int v) {
    constexpr float u = 1 << S;
    return _mm512_permutexvar_ps(v, _mm512_setr_ps(-8 * u, -7 * u, -6 * u, -5 * u, -4 * u, -3 * u, -2 * u, -u, 0, u,
                                                   2 * u, 3 * u, 4 * u, 5 * u, 6 * u, 7 * u));
  }
  static Float to_floats(Int v) { return _mm512_cvtepi32_ps(v); }
  static Float as_floats(Int v) { return _mm512_castsi512_ps(v); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float subtract(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float most(Float a, Float b) { return _mm512_max_ps(a, b); }  // b where a is NaN
  static Float least(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float round(Float v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static void store_whole(float* p, Float v) { _mm512_store_ps(p, v); }
  static Float load_whole(const float* p) { return _mm512_load_ps(p); }
  static void store(float* y, Float v, int64_t columns) {
    const auto lanes = static_cast<__mmask16>(columns >= kLanes ? 0xffff : (1u << columns) - 1);
    _mm512_mask_storeu_ps(y, lanes, v);
  }
};

}  // namespace

void matmul_nbits_f32_avx512vnni(const NBitsProductArgs& args) noexcept { float_product<Vector512>(args); }

}  // namespace quern::ops
