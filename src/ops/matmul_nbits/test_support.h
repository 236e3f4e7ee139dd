// SPDX-License-Identifier: Apache-2.0
// Owns what the tests of this room share: weights of any form as the file has them, contexts, and the formulas of
// matmul_nbits.h in double, straight from the file's bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/half.h"
#include "ops/matmul_nbits/matmul_nbits.h"
#include "tests/support/random.h"

namespace quern::ops::nbits_test {

using support::Random;

inline constexpr NBitsActivations kS8 = NBitsActivations::s8;
inline constexpr NBitsActivations kF32 = NBitsActivations::f32;
inline constexpr int64_t kBlocks[] = {16, 32, 64, 128, 256};

// What test weights are made for.
struct Form {
  int64_t bits = 4;
  int64_t block = 32;
  NBitsZeros zeros = NBitsZeros::none;
  bool exact = false;  // all scales are bfloat16 values
  NBitsFloat type = NBitsFloat::f32;

  int codes() const { return 1 << bits; }
};

inline std::ostream& operator<<(std::ostream& out, const Form& f) {
  constexpr const char* kZeros[] = {"no", "u8", "f32"};
  return out << f.bits << " bits, block " << f.block << ", " << kZeros[static_cast<int>(f.zeros)] << " zero points, "
             << (f.exact ? "exact" : "any") << " scales, " << (f.type == NBitsFloat::f16 ? "f16" : "f32");
}

// Every form that the activations can meet, with float32 constants.
inline std::vector<Form> forms(NBitsActivations activations) {
  std::vector<Form> all;
  for (const int64_t bits : {4, 8}) {
    for (const int64_t block : kBlocks) {
      for (const NBitsZeros zeros : {NBitsZeros::none, NBitsZeros::u8, NBitsZeros::f32}) {
        if (zeros == NBitsZeros::f32 && activations == kS8) continue;
        for (const bool exact : {false, true}) all.push_back({bits, block, zeros, exact});
      }
    }
  }
  return all;
}

// Floats as the file has them.
inline std::vector<uint8_t> float_bytes(const std::vector<float>& values, NBitsFloat type) {
  std::vector<uint8_t> bytes(values.size() * (type == NBitsFloat::f32 ? 4 : 2));
  for (size_t i = 0; i < values.size(); i++) {
    const uint16_t half = float_to_half(values[i]);
    if (type == NBitsFloat::f32) std::memcpy(bytes.data() + i * 4, &values[i], 4);
    if (type == NBitsFloat::f16) std::memcpy(bytes.data() + i * 2, &half, 2);
  }
  return bytes;
}

// Codes, zero points and scales as plain numbers that `form.type` can hold, and the file's bytes of them.
struct Weights {
  Form form;
  int64_t k = 0, n = 0, blocks = 0;
  std::vector<uint8_t> q;     // [n][k]
  std::vector<float> z;       // [n][blocks], empty without zero points
  std::vector<float> scales;  // [n][blocks]
  std::vector<uint8_t> code_bytes, scale_bytes, zero_bytes;

  Weights() = default;
  Weights(const Form& f, int64_t k_, int64_t n_)
      : form(f), k(k_), n(n_), blocks(ceil_div(k_, f.block)), q(static_cast<size_t>(k_ * n_)) {
    scales.resize(static_cast<size_t>(n * blocks), 1.0f);
    if (form.zeros != NBitsZeros::none) z.resize(scales.size());
  }

  int code(int64_t column, int64_t i) const { return q[static_cast<size_t>(column * k + i)]; }
  float zero(int64_t column, int64_t b) const {
    return z.empty() ? static_cast<float>(form.codes() / 2) : z[static_cast<size_t>(column * blocks + b)];
  }
  float scale(int64_t column, int64_t b) const { return scales[static_cast<size_t>(column * blocks + b)]; }

  // Makes the bytes; codes past K and zero points past the last block get `garbage`.
  void encode(int garbage = 0) {
    const int64_t per_byte = 8 / form.bits;
    const auto pack_into = [&](std::vector<uint8_t>& bytes, int64_t at, int value) {
      bytes[static_cast<size_t>(at / per_byte)] |= static_cast<uint8_t>(value << (at % per_byte * form.bits));
    };
    code_bytes.assign(static_cast<size_t>(n * blocks * form.block / per_byte), 0);
    for (int64_t c = 0; c < n; c++) {
      for (int64_t i = 0; i < blocks * form.block; i++) {
        pack_into(code_bytes, c * blocks * form.block + i, i < k ? code(c, i) : garbage);
      }
    }
    scale_bytes = float_bytes(scales, form.type);
    zero_bytes.clear();
    if (form.zeros == NBitsZeros::f32) zero_bytes = float_bytes(z, form.type);
    if (form.zeros != NBitsZeros::u8) return;
    const int64_t padded = round_up(blocks, per_byte);
    zero_bytes.assign(static_cast<size_t>(n * padded / per_byte), 0);
    for (int64_t c = 0; c < n; c++) {
      for (int64_t b = 0; b < padded; b++) {
        pack_into(zero_bytes, c * padded + b, b < blocks ? static_cast<int>(zero(c, b)) : garbage);
      }
    }
  }

  PackMatMulNBitsArgs args() const {
    PackMatMulNBitsArgs a;
    a.form = {.k = k, .n = n, .bits = form.bits, .block = form.block, .zeros = form.zeros};
    a.codes = std::as_bytes(std::span(code_bytes));
    a.scales = std::as_bytes(std::span(scale_bytes));
    a.zero_points = std::as_bytes(std::span(zero_bytes));
    a.float_type = form.type;
    return a;
  }
  size_t serialized_bytes() const { return code_bytes.size() + scale_bytes.size() + zero_bytes.size(); }
};

inline Weights random_weights(Random& random, const Form& form, int64_t k, int64_t n) {
  Weights w(form, k, n);
  const auto stored = [&](float value) {
    return form.type == NBitsFloat::f16 ? half_to_float(float_to_half(value)) : value;
  };
  for (auto& q : w.q) q = static_cast<uint8_t>(random.below(form.codes()));
  for (auto& z : w.z) {
    const auto integer = static_cast<float>(random.below(form.codes()));
    z = form.zeros == NBitsZeros::u8 ? integer : stored(integer + random.uniform(-1, 1));
  }
  const float range = 0.5f / static_cast<float>(form.codes());
  for (auto& s : w.scales) {
    s = form.exact ? static_cast<float>(random.below(255) - 127) / 128 * range : stored(random.uniform(-range, range));
  }
  // Whoever wants inexact scales gets one for sure.
  if (!form.exact) w.scales.back() = stored(range * 0.87f);
  w.encode(static_cast<int>(random.below(form.codes())));
  return w;
}

// Held by float32 and float16, by bfloat16 not.
inline constexpr float kInexactScale = 1 + 0x1p-10f;

// The same and one more column, whose scales make packing keep all of them as they are.
inline Weights with_inexact_column(const Weights& w) {
  Weights wider(w.form, w.k, w.n + 1);
  std::copy(w.q.begin(), w.q.end(), wider.q.begin());
  std::copy(w.z.begin(), w.z.end(), wider.z.begin());
  std::copy(w.scales.begin(), w.scales.end(), wider.scales.begin());
  wider.scales.back() = kInexactScale;
  wider.encode();
  return wider;
}

// Of rows of `columns` products the first `count` each.
inline std::vector<float> first_columns(const std::vector<float>& y, int64_t columns, int64_t count) {
  std::vector<float> out;
  for (auto row = y.begin(); row != y.end(); row += columns) out.insert(out.end(), row, row + count);
  return out;
}

inline PackedWeights pack(const Weights& w, int threads = 1) {
  cpu::Pool pool(threads);
  auto packed = pack_matmul_nbits(pool, w.args());
  QUERN_CHECK(packed.ok(), "test weights are well formed");
  return std::move(packed).value();
}

inline const uint8_t* panels_of(const PackedWeights& w) { return w.view(0, w.panels()).data; }

inline std::vector<float> random_rows(Random& random, int64_t rows, int64_t k) {
  std::vector<float> x(static_cast<size_t>(rows * k));
  random.fill_normal(x);
  return x;
}

inline cpu::Features features() {
  auto usable = cpu::usable_features();
  QUERN_CHECK(usable.ok(), "QUERN_ISA names a set that this CPU has");
  return *usable;
}

// Features with no set better than `isa`.
inline cpu::Features only(cpu::Isa isa) {
  cpu::Features f;
  f.avx2 = isa != cpu::Isa::scalar;
  f.avxvnni = isa == cpu::Isa::avxvnni;
  f.avx512vnni = isa == cpu::Isa::avx512vnni;
  return f;
}

inline std::vector<cpu::Isa> usable_sets() {
  std::vector<cpu::Isa> sets;
  for (const cpu::Isa isa : {cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avxvnni, cpu::Isa::avx512vnni}) {
    if (features().has(isa)) sets.push_back(isa);
  }
  return sets;
}

// A context with its own pool, arena and counters.
struct Bench {
  cpu::Pool pool;
  cpu::Arena arena;
  Counters counters;
  Context ctx;
  explicit Bench(int threads = 1, cpu::Features f = features())
      : pool(threads), arena(), counters(), ctx{&pool, &arena, f, &counters} {}

  std::vector<float> product(const PackedWeights& w, const std::vector<float>& x, NBitsActivations activations,
                             std::span<const float> bias = {}) {
    const int64_t rows = static_cast<int64_t>(x.size()) / w.k();
    std::vector<float> y(static_cast<size_t>(rows * w.n()), -1.0f);
    const NBitsProduct one{&w, bias, y};
    const auto done = matmul_nbits(ctx, {.rows = rows, .activations = activations}, {x, {&one, 1}});
    EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
    return y;
  }
};

template <class A, class B>
bool same_bits(const A& a, const B& b) {
  return a.size() == b.size() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

// Equal bits, but one NaN is as good as another.
template <class A, class B>
bool same_values(const A& a, const B& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++) {
    const bool same = std::isnan(a[i]) ? std::isnan(b[i]) : std::memcmp(&a[i], &b[i], sizeof(float)) == 0;
    if (!same) return false;
  }
  return true;
}

// The specification's decoding of one weight, from the file's bytes alone.
struct FileWeight {
  int code = 0;
  double zero = 0, scale = 0;

  FileWeight(const Weights& w, int64_t column, int64_t i) {
    const int64_t bits = w.form.bits, block = w.form.block, b = i / block, j = i % block;
    const auto unpacked = [bits](const std::vector<uint8_t>& bytes, int64_t at, int64_t index) {
      if (bits == 8) return static_cast<int>(bytes[static_cast<size_t>(at + index)]);
      const int byte = bytes[static_cast<size_t>(at + index / 2)];
      return index % 2 == 0 ? byte & 15 : byte >> 4;
    };
    const auto number = [&](const std::vector<uint8_t>& bytes, int64_t index) {
      float value = 0;
      uint16_t half = 0;
      if (w.form.type == NBitsFloat::f32) std::memcpy(&value, bytes.data() + index * 4, 4);
      if (w.form.type == NBitsFloat::f16) std::memcpy(&half, bytes.data() + index * 2, 2);
      return static_cast<double>(w.form.type == NBitsFloat::f32 ? value : half_to_float(half));
    };
    code = unpacked(w.code_bytes, (column * w.blocks + b) * block * bits / 8, j);
    scale = number(w.scale_bytes, column * w.blocks + b);
    switch (w.form.zeros) {
      case NBitsZeros::none: zero = static_cast<double>(w.form.codes()) / 2; break;
      case NBitsZeros::u8: zero = unpacked(w.zero_bytes, column * ((w.blocks * bits + 7) / 8), b); break;
      case NBitsZeros::f32: zero = number(w.zero_bytes, column * w.blocks + b); break;
    }
  }
};

// round_half_even by its definition.
inline double round_half_even(double value) {
  const double lower = std::floor(value);
  const double part = value - lower;
  const bool up = part > 0.5 || (part == 0.5 && std::fmod(lower, 2.0) != 0.0);
  return lower + (up ? 1 : 0);
}

// One result in double, with the float32 steps of the quantization that the contract names.
inline double independent(const Weights& w, const float* x, int64_t column, NBitsActivations activations) {
  double y = 0;
  for (int64_t begin = 0; begin < w.k; begin += w.form.block) {
    const int64_t end = std::min(w.k, begin + w.form.block);
    float amax = 0;
    for (int64_t i = begin; i < end; i++) amax = std::fmax(amax, std::fabs(x[i]));
    const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
    for (int64_t i = begin; i < end; i++) {
      const FileWeight weight(w, column, i);
      double a = static_cast<double>(x[i]);
      if (activations == kS8) {
        const float product = x[i] * inverse;
        a = round_half_even(static_cast<double>(product)) * static_cast<double>(amax / 127.0f);
      }
      y += a * (weight.code - weight.zero) * weight.scale;
    }
  }
  return y;
}

// Whether a row of results is within the documented tolerance of the formula in double.
inline ::testing::AssertionResult near_independent(const Weights& w, const float* x, std::span<const float> y,
                                                   NBitsActivations activations) {
  std::vector<double> expected(static_cast<size_t>(w.n));
  double largest = 1;
  for (int64_t c = 0; c < w.n; c++) {
    expected[static_cast<size_t>(c)] = independent(w, x, c, activations);
    largest = std::max(largest, std::fabs(expected[static_cast<size_t>(c)]));
  }
  for (size_t c = 0; c < expected.size(); c++) {
    if (std::fabs(static_cast<double>(y[c]) - expected[c]) <= 1e-5 * largest) continue;
    return ::testing::AssertionFailure() << "column " << c << ": " << y[c] << ", expected " << expected[c];
  }
  return ::testing::AssertionSuccess();
}

}  // namespace quern::ops::nbits_test
