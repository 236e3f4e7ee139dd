// SPDX-License-Identifier: Apache-2.0
// The body of the vector variants, written once over a vector type. The x86_*.cc files include it inside an anonymous
// namespace, after defining `struct Simd`; nothing else may. Simd gives V (kLanes floats), the shape of the register
// tile (kHeads by kBlocks sums) and the operations used below. Loads are overloaded on the element type.

using V = Simd::V;
constexpr int32_t kLanes = Simd::kLanes;
constexpr int32_t kHeads = Simd::kHeads;
constexpr int32_t kBlocks = Simd::kBlocks;

// products[h * kBlocks + j] for kHeads heads from `head` on and kBlocks blocks from `block` on; past the end both
// repeat the last one.
template <class T>
void dot_tile(const BlockScoreArgs& a, int32_t head, int64_t block, float* products) {
  const float* q[kHeads];
  const T* k[kBlocks];
#pragma GCC unroll 4
  for (int32_t h = 0; h < kHeads; h++) {
    q[h] = a.q + int64_t{head + h < a.heads ? head + h : a.heads - 1} * a.d;
  }
#pragma GCC unroll 4
  for (int32_t j = 0; j < kBlocks; j++) {
    k[j] = static_cast<const T*>(a.keys) + (block + j < a.blocks ? block + j : a.blocks - 1) * a.d;
  }
  V sums[kHeads * kBlocks];
#pragma GCC unroll 16
  for (int32_t i = 0; i < kHeads * kBlocks; i++) sums[i] = Simd::zero();
  const auto step = [&](int32_t i, auto load) {
    V x[kHeads];
#pragma GCC unroll 4
    for (int32_t h = 0; h < kHeads; h++) x[h] = load(q[h] + i);
#pragma GCC unroll 4
    for (int32_t j = 0; j < kBlocks; j++) {
      const V y = load(k[j] + i);
#pragma GCC unroll 4
      for (int32_t h = 0; h < kHeads; h++) sums[h * kBlocks + j] = Simd::fma(x[h], y, sums[h * kBlocks + j]);
    }
  };
  int32_t i = 0;
  for (; i + kLanes <= a.d; i += kLanes) step(i, [](const auto* from) { return Simd::load(from); });
  if (i < a.d) step(i, [](const auto* from) { return Simd::load_half(from); });
  Simd::reduce(sums, products);
}

template <class T>
void score(const BlockScoreArgs& a) {
  for (int64_t b = 0; b < a.blocks; b += kBlocks) {
    float sums[kBlocks] = {};
    for (int32_t h = 0; h < a.heads; h += kHeads) {
      alignas(64) float products[kHeads * kBlocks];
      dot_tile<T>(a, h, b, products);
      for (int32_t i = 0; i < kHeads * kBlocks; i++) {
        if (h + i / kBlocks < a.heads && products[i] > 0) sums[i % kBlocks] += products[i];
      }
    }
    for (int32_t j = 0; j < kBlocks && b + j < a.blocks; j++) a.scores[b + j] = sums[j] / a.root;
  }
}
