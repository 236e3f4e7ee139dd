// SPDX-License-Identifier: Apache-2.0
// Rotation of heads. The x86_*.cc files include it behind generic.h, inside their anonymous namespace; nothing else
// may.

// Loads and stores of a whole vector or of the first n lanes.
struct Whole {
  static V load(const float* p, int32_t) { return Simd::load(p); }
  static void store(float* p, int32_t, V x) { Simd::store(p, x); }
};
struct Some {
  static V load(const float* p, int32_t n) { return Simd::load_some(p, n); }
  static void store(float* p, int32_t n, V x) { Simd::store_some(p, n, x); }
};

template <class Part>
void rotate_halves(const AttentionRotateArgs& a, const float* x, float* y, int32_t j, int32_t n) {
  const int32_t half = a.rotary / 2;
  const V scale = Simd::set(a.scale);
  const V c = Part::load(static_cast<const float*>(a.cos) + j, n);
  const V s = Part::load(static_cast<const float*>(a.sin) + j, n);
  const V first = Part::load(x + j, n);
  const V second = Part::load(x + j + half, n);
  Part::store(y + j, n, Simd::mul(Simd::sub(Simd::mul(first, c), Simd::mul(second, s)), scale));
  Part::store(y + j + half, n, Simd::mul(Simd::add(Simd::mul(second, c), Simd::mul(first, s)), scale));
}

// kLanes / 2 pairs.
void rotate_pairs(const AttentionRotateArgs& a, const float* x, float* y, int32_t i, int32_t n) {
  const V pairs = Simd::load_some(x + i, n);
  const V c = Simd::load_some(static_cast<const float*>(a.cos) + i / 2, n / 2);
  const V s = Simd::load_some(static_cast<const float*>(a.sin) + i / 2, n / 2);
  const V straight = Simd::mul(pairs, Simd::twice(c));
  const V crossed = Simd::mul(Simd::swap_pairs(pairs), Simd::twice(s));
  Simd::store_some(y + i, n, Simd::mul(Simd::sub_add(straight, crossed), Simd::set(a.scale)));
}

void rotate_heads(const AttentionRotateArgs& a) {
  const V scale = Simd::set(a.scale);
  for (int32_t h = 0; h < a.heads; h++) {
    const float* x = a.x + h * a.x_stride;
    float* y = a.y + h * a.y_stride;
    if (a.interleaved) {
      for (int32_t i = 0; i < a.rotary; i += kLanes) rotate_pairs(a, x, y, i, least(kLanes, a.rotary - i));
    } else {
      int32_t j = 0;
      for (; j + kLanes <= a.rotary / 2; j += kLanes) rotate_halves<Whole>(a, x, y, j, kLanes);
      if (j < a.rotary / 2) rotate_halves<Some>(a, x, y, j, a.rotary / 2 - j);
    }
    for (int32_t i = a.rotary; i < a.d; i += kLanes) {
      const int32_t n = least(kLanes, a.d - i);
      Simd::store_some(y + i, n, Simd::mul(Simd::load_some(x + i, n), scale));
    }
  }
}
