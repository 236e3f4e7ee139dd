// SPDX-License-Identifier: Apache-2.0
// AVX2 variants of the float rows: preparation, 8 blocks side by side, and the product, a panel in two vectors.
#include "ops/matmul_nbits/generic_float.h"

namespace quern::ops {
namespace {

constexpr int kStreams = 8;
constexpr int kMaxBlock = 256;

// A block of a row: where its floats are and where they go.
struct Stream {
  const float* x;
  float* out;  // its floats of the tile's first chunk
  float* sum;
};

// Lane i of the result t[k] is lane k of v[i].
[[gnu::always_inline]] inline void transpose(const __m256* v, __m256* t) {
  __m256 pair[8];
  unrolled<4>([&](auto i) __attribute__((always_inline)) {
    pair[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
    pair[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  });
  __m256 four[8];  // [half of the streams][k mod 4], k and k + 4 in the two halves
  unrolled<2>([&](auto h) __attribute__((always_inline)) {
    unrolled<2>([&](auto i) __attribute__((always_inline)) {
      four[4 * h + 2 * i] = _mm256_shuffle_ps(pair[4 * h + i], pair[4 * h + 2 + i], 0x44);
      four[4 * h + 2 * i + 1] = _mm256_shuffle_ps(pair[4 * h + i], pair[4 * h + 2 + i], 0xee);
    });
  });
  unrolled<4>([&](auto i) __attribute__((always_inline)) {
    t[i] = _mm256_permute2f128_ps(four[i], four[4 + i], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(four[i], four[4 + i], 0x31);
  });
}

// Each sum is in order of k, so a vector has one k of 8 blocks.
void arrange(const Stream* streams, int64_t block, const int64_t* chunk_strides, __m256 factor) {
  __m256 sum = _mm256_setzero_ps();
  for (int64_t k = 0; k < block; k += 8) {
    __m256 v[kStreams];
    unrolled<kStreams>([&](auto i) __attribute__((always_inline)) {
      v[i] = _mm256_loadu_ps(streams[i].x + k);
      float* out = streams[i].out + k / kNBitsChunk * chunk_strides[i] + k % kNBitsChunk;
      _mm256_storeu_ps(out, _mm256_mul_ps(v[i], factor));
    });
    __m256 t[8];
    transpose(v, t);
    unrolled<8>([&](auto i) __attribute__((always_inline)) { sum = _mm256_add_ps(sum, t[i]); });
  }
  alignas(32) float sums[kStreams];
  _mm256_store_ps(sums, sum);
  for (int i = 0; i < kStreams; i++) *streams[i].sum = sums[i];
}

struct Vector256 {
  using Float = __m256;
  using Int = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kOneRowPanels = 3;
  static constexpr int kTilePanels = 2;
  static constexpr int kMaxSums = 8;
  static constexpr bool kHasLookup = false;

  static Float zero() { return _mm256_setzero_ps(); }
  static Float floats(float v) { return _mm256_set1_ps(v); }
  static Int ints(int v) { return _mm256_set1_epi32(v); }
  static Int load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Int load_bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static Int bit_and(Int a, Int b) { return _mm256_and_si256(a, b); }
  static Int bit_or(Int a, Int b) { return _mm256_or_si256(a, b); }
  template <int N>
  static Int shift_left(Int v) {
    return _mm256_slli_epi32(v, N);
  }
  template <int N>
  static Int shift_right(Int v) {
    return _mm256_srli_epi32(v, N);
  }
  static Float to_floats(Int v) { return _mm256_cvtepi32_ps(v); }
  static Float as_floats(Int v) { return _mm256_castsi256_ps(v); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float subtract(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float most(Float a, Float b) { return _mm256_max_ps(a, b); }  // b where a is NaN
  static Float least(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float round(Float v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static void store_whole(float* p, Float v) { _mm256_store_ps(p, v); }
  static Float load_whole(const float* p) { return _mm256_load_ps(p); }
  static void store(float* y, Float v, int64_t columns) {
    if (columns >= kLanes) {
      _mm256_storeu_ps(y, v);
    } else if (columns > 0) {
      const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      _mm256_maskstore_ps(y, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(columns)), lanes), v);
    }
  }
};

}  // namespace

void arrange_rows_f32_avx2(const NBitsRowsArgs& args) noexcept {
  const int64_t blocks = (args.k + args.block - 1) / args.block;
  const int64_t chunk = args.block < kNBitsChunk ? args.block : kNBitsChunk;
  constexpr float k4 = 1.0f / (1 << 4), k8 = k4 * k4, k16 = k8 * k8;
  const __m256 factor = args.bits == 4 ? _mm256_setr_ps(1, k8, k16, k4 * k8, k4, k4 * k8, k8, k16)
                                       : _mm256_setr_ps(1, k8, 1, k8, 1, k8, 1, k8);
  alignas(32) float tails[kStreams][kMaxBlock];
  Stream streams[kStreams];
  int64_t chunk_strides[kStreams];
  int count = 0;
  for (int64_t row = 0; row < args.row_count; row++) {
    const int64_t first = row / kNBitsTileRows * kNBitsTileRows;
    const int64_t height = args.row_count - first < kNBitsTileRows ? args.row_count - first : kNBitsTileRows;
    auto* tile = reinterpret_cast<float*>(args.out) + first * blocks * (args.block + 1);
    for (int64_t b = 0; b < blocks; b++, tile += height * (args.block + 1)) {
      const float* x = args.x + row * args.k + b * args.block;
      const int64_t left = args.k - b * args.block;
      if (left < args.block) {
        for (int64_t i = 0; i < args.block; i++) tails[count][i] = i < left ? x[i] : 0.0f;
        x = tails[count];
      }
      streams[count] = {x, tile + (row - first) * chunk, tile + height * args.block + (row - first)};
      chunk_strides[count] = height * chunk;
      if (++count < kStreams) continue;
      arrange(streams, args.block, chunk_strides, factor);
      count = 0;
    }
  }
  if (count == 0) return;
  // The places without a block do the first one again.
  for (int i = count; i < kStreams; i++) {
    streams[i] = streams[0];
    chunk_strides[i] = chunk_strides[0];
  }
  arrange(streams, args.block, chunk_strides, factor);
}

void matmul_nbits_f32_avx2(const NBitsProductArgs& args) noexcept { float_product<Vector256>(args); }

}  // namespace quern::ops
