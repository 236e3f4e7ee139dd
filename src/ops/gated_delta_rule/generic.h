// SPDX-License-Identifier: Apache-2.0
// The body of the vector variants of gated_delta_rule, written once over a vector type. The x86_*.cc files include it
// inside an anonymous namespace, after defining `struct Simd`; nothing else may. Simd gives V (kLanes floats) and the
// operations used below. Columns of the state are independent, so a block of them stays in registers (one row) and in
// the first-level cache (all rows) while the tokens of a call pass.

using V = Simd::V;
constexpr int64_t kLanes = Simd::kLanes;

// The columns of a block: kVectors whole vectors, or one part of a vector.
template <int kVectors>
struct Whole {
  static constexpr int kCount = kVectors;
  V load(const float* p, int i) const { return Simd::load(p + i * kLanes); }
  void store(float* p, int i, V x) const { Simd::store(p + i * kLanes, x); }
};
struct Part {
  static constexpr int kCount = 1;
  int64_t columns;
  V load(const float* p, int) const { return Simd::load_some(p, columns); }
  void store(float* p, int, V x) const { Simd::store_some(p, columns, x); }
};

// Calls f(block, first column) for blocks that cover all columns.
template <class F>
void for_blocks(int64_t columns, F f) {
  constexpr int kVectors = 4;
  int64_t at = 0;
  for (; at + kVectors * kLanes <= columns; at += kVectors * kLanes) f(Whole<kVectors>{}, at);
  for (; at + kLanes <= columns; at += kLanes) f(Whole<1>{}, at);
  if (at < columns) f(Part{columns - at}, at);
}

template <class Block>
void recurrent_block(const DeltaKernelArgs& a, Block block, int64_t column) {
  constexpr int kCount = Block::kCount;
  for (int64_t t = 0; t < a.tokens; t++) {
    const float* q = a.q + t * a.key_size;
    const float* k = a.k + t * a.key_size;
    const V kept = Simd::set(a.kept[t]), beta = Simd::set(a.beta[t]);
    V change[kCount], o[kCount];
    for (int i = 0; i < kCount; i++) change[i] = o[i] = Simd::zero();
    const float* row = a.state + column;
    // The decayed state is made twice rather than stored in between.
    for (int64_t r = 0; r < a.key_size; r++, row += a.value_size) {
      const V key = Simd::set(k[r]);
      for (int i = 0; i < kCount; i++) change[i] = Simd::fma(key, Simd::mul(kept, block.load(row, i)), change[i]);
    }
    for (int i = 0; i < kCount; i++) {
      change[i] = Simd::mul(beta, Simd::sub(block.load(a.v + t * a.value_size + column, i), change[i]));
    }
    float* out = a.state + column;
    for (int64_t r = 0; r < a.key_size; r++, out += a.value_size) {
      const V key = Simd::set(k[r]), query = Simd::set(q[r]);
      for (int i = 0; i < kCount; i++) {
        const V s = Simd::fma(key, change[i], Simd::mul(kept, block.load(out, i)));
        block.store(out, i, s);
        o[i] = Simd::fma(query, s, o[i]);
      }
    }
    for (int i = 0; i < kCount; i++) block.store(a.o + t * a.value_size + column, i, o[i]);
  }
}

float dot(const float* x, const float* y, int64_t n) {
  V sum = Simd::zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = Simd::fma(Simd::load(x + i), Simd::load(y + i), sum);
  if (i < n) sum = Simd::fma(Simd::load_some(x + i, n - i), Simd::load_some(y + i, n - i), sum);
  return Simd::total(sum);
}

// What the changes N of earlier tokens meet, and the decay since the chunk began. exp(G[i] - G[j]) is a product of the
// factors in between: no exponential, and no more rounding than the sums G bring.
struct ChunkWeights {
  float* among_keys;  // [kDeltaChunk][kDeltaChunk]: (k[i] . k[j]) exp(G[i] - G[j]) for j < i
  float* with_query;  // the same of q[i], for j <= i
  float* since;       // exp(G[i])
};

void fill_weights(const DeltaKernelArgs& a, const ChunkWeights& w) {
  float between[kDeltaChunk];
  float since = 1;
  for (int64_t i = 0; i < a.tokens; i++) {
    const float* q = a.q + i * a.key_size;
    const float* k = a.k + i * a.key_size;
    since *= a.kept[i];
    w.since[i] = since;
    for (int64_t j = 0; j < i; j++) {
      between[j] *= a.kept[i];
      w.among_keys[i * kDeltaChunk + j] = dot(k, a.k + j * a.key_size, a.key_size) * between[j];
      w.with_query[i * kDeltaChunk + j] = dot(q, a.k + j * a.key_size, a.key_size) * between[j];
    }
    between[i] = 1;
    w.with_query[i * kDeltaChunk + i] = dot(q, k, a.key_size);
  }
}

template <class Block>
void chunked_block(const DeltaKernelArgs& a, const ChunkWeights& w, Block block, int64_t column) {
  constexpr int kCount = Block::kCount;
  float* changes = a.scratch + column;
  for (int64_t t = 0; t < a.tokens; t++) {
    const float* q = a.q + t * a.key_size;
    const float* k = a.k + t * a.key_size;
    V known[kCount], seen[kCount];
    for (int i = 0; i < kCount; i++) known[i] = seen[i] = Simd::zero();
    const float* row = a.state + column;
    for (int64_t r = 0; r < a.key_size; r++, row += a.value_size) {
      const V key = Simd::set(k[r]), query = Simd::set(q[r]);
      for (int i = 0; i < kCount; i++) {
        const V s = block.load(row, i);
        known[i] = Simd::fma(key, s, known[i]);
        seen[i] = Simd::fma(query, s, seen[i]);
      }
    }
    const V since = Simd::set(w.since[t]);
    for (int i = 0; i < kCount; i++) {
      known[i] = Simd::mul(since, known[i]);
      seen[i] = Simd::mul(since, seen[i]);
    }
    const float* among_keys = w.among_keys + t * kDeltaChunk;
    const float* with_query = w.with_query + t * kDeltaChunk;
    for (int64_t j = 0; j < t; j++) {
      const V key = Simd::set(among_keys[j]), query = Simd::set(with_query[j]);
      for (int i = 0; i < kCount; i++) {
        const V change = block.load(changes + j * a.value_size, i);
        known[i] = Simd::fma(key, change, known[i]);
        seen[i] = Simd::fma(query, change, seen[i]);
      }
    }
    const V beta = Simd::set(a.beta[t]), query = Simd::set(with_query[t]);
    for (int i = 0; i < kCount; i++) {
      const V change = Simd::mul(beta, Simd::sub(block.load(a.v + t * a.value_size + column, i), known[i]));
      block.store(changes + t * a.value_size, i, change);
      block.store(a.o + t * a.value_size + column, i, Simd::fma(query, change, seen[i]));
    }
  }
  float after = 1;  // exp(G[last] - G[t])
  for (int64_t t = a.tokens; t-- > 0;) {
    float* change = changes + t * a.value_size;
    for (int i = 0; i < kCount; i++) block.store(change, i, Simd::mul(Simd::set(after), block.load(change, i)));
    after *= a.kept[t];
  }
  float* row = a.state + column;
  for (int64_t r = 0; r < a.key_size; r++, row += a.value_size) {
    V sum[kCount];
    for (int i = 0; i < kCount; i++) sum[i] = Simd::mul(Simd::set(after), block.load(row, i));
    for (int64_t t = 0; t < a.tokens; t++) {
      const V key = Simd::set(a.k[t * a.key_size + r]);
      for (int i = 0; i < kCount; i++) sum[i] = Simd::fma(key, block.load(changes + t * a.value_size, i), sum[i]);
    }
    for (int i = 0; i < kCount; i++) block.store(row, i, sum[i]);
  }
}

void recurrent(const DeltaKernelArgs& a) {
  for_blocks(a.value_size, [&](auto block, int64_t column) { recurrent_block(a, block, column); });
}

void chunked(const DeltaKernelArgs& a) {
  constexpr int64_t kPairs = kDeltaChunk * kDeltaChunk;
  float* among_keys = a.scratch + kDeltaChunk * a.value_size;
  const ChunkWeights w{among_keys, among_keys + kPairs, among_keys + 2 * kPairs};
  fill_weights(a, w);
  for_blocks(a.value_size, [&](auto block, int64_t column) { chunked_block(a, w, block, column); });
}
