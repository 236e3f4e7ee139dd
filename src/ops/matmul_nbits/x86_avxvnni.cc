// SPDX-License-Identifier: Apache-2.0
// AVX-VNNI variant: the AVX2 body with byte products by the 256-bit vpdpbusd.
#include "ops/matmul_nbits/generic.h"

namespace quern::ops {
namespace {

struct DotAvxVnni {
  using Sum = __m256i;  // 8 x int32

  [[gnu::always_inline]] static inline Sum zero() { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static inline Sum add(Sum sum, __m256i codes, __m256i x) {
    return _mm256_dpbusd_avx_epi32(sum, codes, x);
  }
  [[gnu::always_inline]] static inline __m256i total(Sum sum) { return sum; }
};

}  // namespace

void matmul_nbits_s8_u4_avxvnni(const NBitsProductArgs& args) noexcept { walk<Product256<DotAvxVnni>>(args); }

}  // namespace quern::ops
