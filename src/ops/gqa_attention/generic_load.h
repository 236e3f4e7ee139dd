// SPDX-License-Identifier: Apache-2.0
// Exact conversion of eight elements of each type of cache rows to float. The x86_*.cc files include it inside an
// anonymous namespace, before they define `struct Simd`; nothing else may.

inline __m256 load_8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load_8(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline __m256 load_8(const Brain* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline __m256 load_8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
