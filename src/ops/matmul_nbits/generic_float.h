// SPDX-License-Identifier: Apache-2.0
// Owns the product of float rows, which AVX2 and AVX-512 share but for the width of a vector. For files with
// instruction-set flags only, like generic.h.
//
// A 32-bit lane has several codes of one column. With the bits of the float 2^23 set in it, an AND that keeps these and
// the code at bit s gives the float 2^23 + q * 2^s, and one subtraction (q - zi) * 2^s, exactly, for a whole vector of
// columns; the rows carry the 2^-s. There is no buffer of expanded weights.
#pragma once

#include "ops/matmul_nbits/generic.h"

namespace quern::ops {
namespace {

// V has Float and Int (vectors), kLanes, kOneRowPanels, kTilePanels, kMaxSums (vectors of sums that registers hold; a
// larger tile is done panel by panel), kHasLookup (lookup<s>: (q - 8) * 2^s of the low 4 bits q of each lane) and the
// operations used below.
template <class V, int Bits, int Chunk>
struct FloatProduct {
  using Float = typename V::Float;
  using Int = typename V::Int;
  static constexpr int kOneRowPanels = V::kOneRowPanels;
  static constexpr int kTilePanels = V::kTilePanels;
  static constexpr bool kExpands = false;
  static constexpr int kParts = kNBitsPanel / V::kLanes;  // vectors of a panel
  static constexpr int kPartBytes = V::kLanes * 4;
  static constexpr int kLaneCodes = 32 / Bits;
  // Codes from this bit of the lane on are taken after a shift: in place they would not fit below 2^23.
  static constexpr int kFirstShifted = Bits == 4 ? 20 : 16;
  static constexpr int kShift = Bits == 4 ? 12 : 16;
  static constexpr int kZero = 1 << (Bits - 1);  // z0
  static constexpr int kMagic = 0x4B000000;      // the float 2^23
  static constexpr int kChunkLines = Chunk / kLaneCodes;
  static int64_t row_block_bytes(int64_t block) { return (block + 1) * 4; }

  template <int Rows, int Panels>
  static void tile(const NBitsTile& t) {
    t.form->zeros == NBitsZeros::none ? tile_of<Rows, Panels, false>(t) : tile_of<Rows, Panels, true>(t);
  }

 private:
  template <int Rows, int Panels, bool Zeros>
  [[gnu::always_inline]] static inline void tile_of(const NBitsTile& t) {
    if constexpr (Rows * Panels * kParts > V::kMaxSums) {
      NBitsTile one = t;
      for (int i = 0; i < Panels; i++) {
        small_tile<Rows, 1, Zeros>(one);
        one.weights += t.panel_stride;
        one.prefetch += t.panel_stride;
        one.y += t.y_panel_stride;
        one.columns -= t.y_panel_stride;
      }
    } else {
      small_tile<Rows, Panels, Zeros>(t);
    }
  }

  // A function of its own, whatever the compiler thinks of inlining, keeps its sums in registers.
  template <int Rows, int Panels, bool Zeros>
  [[gnu::noinline]] static void small_tile(const NBitsTile& t) {
    constexpr int kVectors = Panels * kParts;
    constexpr int kSums = Rows * kVectors;
    const NBitsPanels form = *t.form;
    const int chunks = static_cast<int>(form.block) / Chunk;
    const uint8_t* weights = t.weights;
    const auto* x = reinterpret_cast<const float*>(t.rows);
    const uint8_t* prefetch = t.prefetch;
    // One row reads its lines in the order of memory and is faster without requests (8 bits: 158 instead of 190 us).
    // Those of several rows are spread evenly over the chunks, and are no more than the panel has lines: what they run
    // ahead they would ask for again in the next panel.
    const int64_t all_chunks = form.blocks * chunks;
    const int64_t panel_lines = form.panel_bytes / kNBitsLineBytes;
    const int64_t prefetch_lines =
        t.prefetch_lines * form.blocks < panel_lines ? t.prefetch_lines * form.blocks : panel_lines;
    int64_t lines_due = 0;
    const uint8_t* zeros = weights;  // the last lines that were met
    const uint8_t* scales = weights;
    // 2^23 + zi * 2^s of each vector of columns and each s.
    alignas(64) float middles[Zeros ? kVectors * kPowers * V::kLanes : 1];
    Float totals[kSums];
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) { totals[i] = V::zero(); });
    for (int64_t b = 0; b < form.blocks; b++) {
      if (form.zeros == NBitsZeros::f32 || (form.zeros == NBitsZeros::u8 && b % 4 == 0)) {
        zeros = weights;
        weights += kNBitsLineBytes;
      }
      if constexpr (Zeros) {
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          const Float zero = whole(zero_points(form, zeros + (j / kParts) * t.panel_stride, b, j % kParts));
          unrolled<kPowers>([&](auto i) __attribute__((always_inline)) {
            constexpr float kPower = 1 << i * kPowerStep;
            V::store_whole(middles + (j * kPowers + i) * V::kLanes,
                           V::multiply_add(zero, V::floats(kPower), V::floats(1 << 23)));
          });
        });
      }
      Float sum[kSums];
      unrolled<kSums>([&](auto i) __attribute__((always_inline)) { sum[i] = V::zero(); });
      for (int c = 0; c < chunks; c++) {
        if constexpr (Rows > 1) {
          for (lines_due += prefetch_lines; lines_due >= all_chunks; lines_due -= all_chunks) {
            prefetch_panels<Panels>(prefetch, t.panel_stride, 1);
            prefetch += kNBitsLineBytes;
          }
        }
        for (int l = 0; l < kChunkLines; l++) {
          add_line<Rows, Panels, Zeros>(weights, t.panel_stride, x, middles, sum);
          weights += kNBitsLineBytes;
          x += kLaneCodes;
        }
        x += (Rows - 1) * Chunk;
      }

      if (!form.bf16_scales || b % 2 == 0) {
        scales = weights;
        weights += kNBitsLineBytes;
      }
      unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
        const int64_t panel = (j / kParts) * t.panel_stride;
        Int bits = V::load(scales + panel + (j % kParts) * kPartBytes);
        if (form.bf16_scales) {
          bits = b % 2 == 0 ? V::template shift_left<16>(bits) : V::bit_and(bits, V::ints(-0x10000));
        }
        if (Zeros && form.zeros == NBitsZeros::f32) {
          const Float z = zero_points(form, zeros + panel, b, j % kParts);
          const Float offset = V::subtract(whole(z), z);
          unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
            constexpr int kSum = decltype(r)::value * kVectors + decltype(j)::value;
            sum[kSum] = V::multiply_add(offset, V::floats(x[r]), sum[kSum]);
          });
        }
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
          constexpr int kSum = decltype(r)::value * kVectors + decltype(j)::value;
          totals[kSum] = V::multiply_add(sum[kSum], V::as_floats(bits), totals[kSum]);
        });
      });
      x += Rows;
    }
    unrolled<kSums>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRow = decltype(i)::value / kVectors;
      constexpr int kPanel = decltype(i)::value % kVectors / kParts;
      constexpr int kColumn = decltype(i)::value % kParts * V::kLanes;
      V::store(t.y + kRow * t.y_stride + kPanel * t.y_panel_stride + kColumn, totals[i],
               t.columns - kPanel * t.y_panel_stride - kColumn);
    });
  }

  template <int Rows, int Panels, bool Zeros>
  [[gnu::always_inline]] static inline void add_line(const uint8_t* weights, int64_t panel_stride, const float* x,
                                                     const float* middles, Float* sum) {
    constexpr int kVectors = Panels * kParts;
    // Table look-ups pay where one row leaves the multiply-adds idle (AVX-512: 130 instead of 138 us), not in larger
    // tiles, whose multiply-adds they get in the way of.
    constexpr bool kLookup = Rows == 1 && Bits == 4 && V::kHasLookup && !Zeros;
    static constexpr Constants kConstants = constants();
    const Constants* memory = &kConstants;
    asm("" : "+r"(memory));
    const Int magic = V::ints(memory->magic);
    Line lines[kVectors];
    unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
      lines[j] = expand<kLookup>(V::load(weights + (j / kParts) * panel_stride + (j % kParts) * kPartBytes), magic);
    });
    unrolled<kLaneCodes>([&](auto i) __attribute__((always_inline)) {
      using C = Code<decltype(i)::value>;
      Float q[kVectors];
      if constexpr (kLookup && C::kLookup) {
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) { q[j] = lookup<C>(lines[j].raw); });
      } else {
        const Int mask = V::ints(memory->masks[i]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          q[j] = V::as_floats(V::bit_and(C::kShifted ? lines[j].shifted : lines[j].in_place, mask));
        });
        const Float middle = V::floats(memory->middles[i]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          q[j] = V::subtract(q[j], Zeros ? V::load_whole(middles + (j * kPowers + C::kPower) * V::kLanes) : middle);
        });
      }
      unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
        const Float v = V::floats(x[r * Chunk + i]);
        unrolled<kVectors>([&](auto j) __attribute__((always_inline)) {
          constexpr int kSum = decltype(r)::value * kVectors + decltype(j)::value;
          sum[kSum] = V::multiply_add(v, q[j], sum[kSum]);
        });
      });
    });
  }

  // s is a multiple of this, and takes this many values.
  static constexpr int kPowerStep = Bits == 4 ? 4 : 8;
  static constexpr int kPowers = Bits == 4 ? 5 : 2;

  // Of code i of a lane.
  static constexpr int position(int i) { return i % 4 * 8 + i / 4 * 4; }
  static constexpr int power(int i) { return position(i) - (position(i) >= kFirstShifted ? kShift : 0); }
  static constexpr int mask(int i) { return kMagic | ((1 << Bits) - 1) << power(i); }
  static constexpr float middle(int i) { return static_cast<float>((1 << 23) + (kZero << power(i))); }

  // Read through a pointer of unknown value, each constant is loaded once for all vectors. Where the
  // compiler knows the values, it keeps some in registers and spills sums instead (AVX2, 128 rows: 4 bits 12.3 instead
  // of 13.0 ms, 8 bits 12.4 instead of 16.0).
  struct Constants {
    int magic;
    int masks[kLaneCodes];
    float middles[kLaneCodes];
  };
  static constexpr Constants constants() {
    Constants c{kMagic, {}, {}};
    for (int i = 0; i < kLaneCodes; i++) {
      c.masks[i] = mask(i);
      c.middles[i] = middle(i);
    }
    return c;
  }

  template <int I>
  struct Code {
    static constexpr int kPosition = position(I);
    static constexpr bool kShifted = kPosition >= kFirstShifted;
    static constexpr int kS = power(I);
    static constexpr int kPower = kS / kPowerStep;
    // Both forms take two operations, but code 0 needs no shift before its look-up, and without `shifted` its OR is
    // spared. Look-ups for the other two codes measured no better.
    static constexpr bool kLookup = kPosition == 0 || kPosition >= kShift;
  };

  struct Line {
    Int in_place, shifted;  // with the bits of 2^23
    Int raw;                // for look-ups
  };

  template <bool Lookup>
  [[gnu::always_inline]] static inline Line expand(Int raw, Int magic) {
    Line line;
    line.raw = raw;
    line.in_place = V::bit_or(raw, magic);
    // The compiler would make the OR a part of every AND, and spill (4 rows: 344 instead of 306 us).
    asm("" : "+v"(line.in_place));
    if constexpr (!Lookup) {
      line.shifted = V::bit_or(V::template shift_right<kShift>(raw), magic);
      asm("" : "+v"(line.shifted));
    }
    return line;
  }

  // (q - z0) * 2^s of the code in its lane.
  template <class C>
  [[gnu::always_inline]] static inline Float lookup(Int raw) {
    if constexpr (C::kPosition == 0) {
      return V::template lookup<C::kS>(raw);
    } else {
      return V::template lookup<C::kS>(V::template shift_right<C::kPosition>(raw));
    }
  }

  // zi of the formula.
  [[gnu::always_inline]] static inline Float whole(Float zero) {
    return V::round(V::least(V::most(zero, V::zero()), V::floats((1 << Bits) - 1)));
  }

  [[gnu::always_inline]] static inline Float zero_points(const NBitsPanels& form, const uint8_t* zeros, int64_t b,
                                                         int part) {
    if (form.zeros == NBitsZeros::f32) return V::as_floats(V::load(zeros + part * kPartBytes));
    return V::to_floats(V::load_bytes(zeros + b % 4 * kNBitsPanel + part * V::kLanes));
  }
};

template <class V>
void float_product(const NBitsProductArgs& args) {
  constexpr int kShortChunk = 16;
  const bool short_blocks = args.weights.block < kNBitsChunk;
  if (args.weights.bits == 4) {
    short_blocks ? walk<FloatProduct<V, 4, kShortChunk>>(args) : walk<FloatProduct<V, 4, kNBitsChunk>>(args);
  } else {
    short_blocks ? walk<FloatProduct<V, 8, kShortChunk>>(args) : walk<FloatProduct<V, 8, kNBitsChunk>>(args);
  }
}

}  // namespace
}  // namespace quern::ops
