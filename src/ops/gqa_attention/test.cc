// SPDX-License-Identifier: Apache-2.0
// Tests of the attention room: every line of kernels.inc against the reference, the entry against a softmax written out
// in double precision, and the ONNX operator against vectors of ONNX Runtime and its table of errors. Over 600 lines
// because a room has one test file, and each of the three layers has its own edges.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <vector>

#include "base/checked.h"
#include "ops/gqa_attention/gqa_attention.h"
#include "ops/gqa_attention/kernels.h"
#include "ops/gqa_attention/test_support.h"
#include "ops/registry.h"
#include "tests/support/guard_page.h"
#include "tests/support/random.h"

namespace {
// Counts the heap allocations of this binary.
thread_local uint64_t heap_allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  heap_allocations++;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace quern::ops {

#define QUERN_KIND_tile AttentionBlockFunction
#define QUERN_KIND_rows AttentionBlockFunction
#define QUERN_KIND_store AttentionStoreFunction
#define QUERN_KIND_merge AttentionMergeFunction
#define QUERN_KIND_rotate AttentionRotateFunction
#define QUERN_KERNEL(isa, symbol, kind, type) QUERN_ISA_LINE_##isa(QUERN_KIND_##kind symbol;)
#include "ops/gqa_attention/kernels.inc"
#undef QUERN_KERNEL

namespace {

using support::GuardedArray;
using support::Random;

template <class Function>
struct Listed {
  cpu::Isa isa;
  Function* run;
  std::string_view symbol;
  DType type;
  int32_t most_rows = 1 << 20;
};

struct Variants {
  std::vector<Listed<AttentionBlockFunction>> tile, rows;
  std::vector<Listed<AttentionStoreFunction>> store;
  std::vector<Listed<AttentionMergeFunction>> merge;
  std::vector<Listed<AttentionRotateFunction>> rotate;
};

Variants all_variants() {
  Variants v;
#define QUERN_KERNEL(isa, symbol, kind, type) \
  QUERN_ISA_LINE_##isa(v.kind.push_back({cpu::Isa::isa, &symbol, #symbol, DType::type});)
#include "ops/gqa_attention/kernels.inc"
#undef QUERN_KERNEL
  return v;
}

// Both kinds.
std::vector<Listed<AttentionBlockFunction>> block_variants() {
  Variants v = all_variants();
  for (auto& line : v.rows) line.most_rows = kAttentionFewRows;
  v.tile.insert(v.tile.end(), v.rows.begin(), v.rows.end());
  return v.tile;
}

AttentionBlockFunction* reference_of(DType type) {
  switch (type) {
    case DType::f16: return gqa_attention_tile_f16_reference;
    case DType::bf16: return gqa_attention_tile_bf16_reference;
    case DType::i8: return gqa_attention_tile_i8_reference;
    default: return gqa_attention_tile_f32_reference;
  }
}

// Calls f for every variant this machine can run; prints those that it cannot.
template <class Function, class F>
void for_variants(const std::vector<Listed<Function>>& variants, F f) {
  const cpu::Features features = cpu::detect_features();
  for (const auto& v : variants) {
    SCOPED_TRACE(std::string(v.symbol));
    if (features.has(v.isa)) {
      f(v);
    } else {
      std::printf("[  SKIPPED ] %s: the CPU lacks it\n", std::string(v.symbol).c_str());
    }
  }
}

// Every level that the entry can be capped to here.
std::vector<cpu::Features> levels() {
  const cpu::Features all = cpu::detect_features();
  std::vector<cpu::Features> out{cpu::Features{}};
  if (all.avx2) out.push_back({.avx2 = true});
  if (all.avx512vnni) out.push_back({.avx2 = true, .avx512vnni = true});
  if (all.avx512bf16) out.push_back(all);
  return out;
}

// ---- kernels ----

// Variants of this instruction set round queries and weights to bfloat16, by 2^-8 of them at most.
bool takes_pairs(cpu::Isa isa, DType type) { return isa == cpu::Isa::avx512bf16 && type == DType::bf16; }
constexpr float kWeightError = 0x1p-8f;

// `sizes`, where weights are rounded: the state that the absolute values lead to.
void expect_same_state(const Block& seen, const Block& truth, float tolerance, const Block* sizes = nullptr) {
  for (int32_t r = 0; r < truth.args.rows; r++) {
    const auto row = static_cast<size_t>(r);
    if (truth.m[row] == kLowest) {
      EXPECT_EQ(seen.m[row], kLowest) << "row " << r;
      EXPECT_EQ(seen.l[row], 0) << "row " << r;
      continue;
    }
    ASSERT_NEAR(seen.m[row], truth.m[row], tolerance * std::max(1.0f, std::abs(truth.m[row]))) << "row " << r;
    ASSERT_NEAR(seen.l[row] / truth.l[row], 1, tolerance) << "row " << r;
    for (int32_t i = 0; i < truth.args.d; i++) {
      const auto at = static_cast<size_t>(r * truth.args.o_stride + i);
      const float rounding = sizes == nullptr ? 0 : kWeightError * sizes->o[at] / truth.l[row];
      ASSERT_NEAR(seen.o[at] / truth.l[row], truth.o[at] / truth.l[row], tolerance + rounding)
          << "row " << r << " column " << i;
    }
  }
}

TEST(Block, VariantsAgreeWithTheReferenceForAllSizesAndRanges) {
  Random random(7);
  for_variants(block_variants(), [&](const auto& variant) {
    for (int32_t d : {8, 16, 24, 40, 56, 64, 80, 128, 200, 256}) {
      for (int32_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 23, 24, 31, 96}) {
        if (rows > variant.most_rows) continue;
        for (int32_t keys : {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128}) {
          if (rows * keys > 1024 && (rows + keys + d / 8) % 5 != 0) continue;  // enough of the large ones
          if (variant.type != DType::f32 && (rows + keys + d / 8) % 7 != 0) continue;
          const int64_t stride = d + random.below(2) * 8;
          const int misalign = static_cast<int>(random.below(3));
          const uint64_t seed = random.bits();
          Block seen(rows, keys, d, stride, misalign, seed, variant.type);
          Block truth(rows, keys, d, stride, misalign, seed, variant.type);
          std::optional<Block> sizes;
          if (takes_pairs(variant.isa, variant.type)) {
            sizes.emplace(rows, keys, d, stride, misalign, seed, variant.type);
            for (Block* b : {&seen, &truth, &*sizes}) b->round_queries();
            sizes->drop_signs_of_values();
          }
          const bool full = random.below(2) == 0;
          for (size_t r = 0; r < static_cast<size_t>(rows); r++) {
            const auto a = static_cast<int32_t>(full ? 0 : random.below(keys + 1));
            const auto b = static_cast<int32_t>(full ? keys : random.below(keys + 1));
            seen.lo[r] = truth.lo[r] = a;
            seen.hi[r] = truth.hi[r] = b;
            if (sizes) sizes->lo[r] = a, sizes->hi[r] = b;
          }
          SCOPED_TRACE(testing::Message() << "d " << d << " rows " << rows << " keys " << keys << " full " << full);
          // Twice, so that a state that is not the first one is carried.
          for (int step = 0; step < 2; step++) {
            seen.args.softcap = truth.args.softcap = step == 0 ? 0 : 3;
            if (step == 1 && seed % 4 == 0) {
              seen.add_bias(random);
              truth.args.bias = seen.args.bias;
            }
            variant.run(seen.args);
            reference_of(variant.type)(truth.args);
            if (sizes) {
              sizes->args.softcap = truth.args.softcap;
              sizes->args.bias = truth.args.bias;
              reference_of(variant.type)(sizes->args);
            }
            expect_same_state(seen, truth, 4e-6f, sizes ? &*sizes : nullptr);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(Block, CausalTilesReachNoRowThatDoesNotSeeThem) {
  for_variants(block_variants(), [&](const auto& variant) {
    for (int32_t rows : {2, 8, 48, 61}) {
      if (rows > variant.most_rows) continue;
      for (int32_t window : {0, 5}) {
        Block seen(rows, 40, 64, 64, 0, 3, variant.type);
        Block truth(rows, 40, 64, 64, 0, 3, variant.type);
        Block sizes(rows, 40, 64, 64, 0, 3, variant.type);
        const bool pairs = takes_pairs(variant.isa, variant.type);
        if (pairs) {
          for (Block* b : {&seen, &truth, &sizes}) b->round_queries();
          sizes.drop_signs_of_values();
        }
        // Row r sees keys up to r / 2; a key is poisoned and seen by the last rows only.
        const int32_t poisoned = rows > 8 ? 20 : rows / 4;
        for (Block* b : {&seen, &truth, &sizes}) {
          for (int32_t r = 0; r < rows; r++) {
            b->hi[static_cast<size_t>(r)] = r / 2 + 1;
            if (window > 0) b->lo[static_cast<size_t>(r)] = std::max(0, r / 2 + 1 - window);
          }
          b->poison(b->args.k, poisoned, 3);
          b->poison(b->args.v, poisoned, 5);
        }
        variant.run(seen.args);
        reference_of(variant.type)(truth.args);
        reference_of(variant.type)(sizes.args);
        for (int32_t r = 0; r < rows; r++) {
          const bool sees = r / 2 >= poisoned && (window == 0 || r / 2 + 1 - window <= poisoned);
          for (int32_t i = 0; i < 64; i++) {
            const auto at = static_cast<size_t>(r * 64 + i);
            ASSERT_EQ(std::isnan(seen.o[at]), sees) << "row " << r << " column " << i << " window " << window;
            if (!sees) {
              ASSERT_NEAR(seen.o[at], truth.o[at], 1e-5f + (pairs ? kWeightError * sizes.o[at] : 0));
            }
          }
        }
      }
    }
  });
}

// With a first score of 0 on value 0 and a second of -x on value 1, o is exp(-x) itself.
TEST(Block, ExponentialIsWithinItsStatedError) {
  for_variants(block_variants(), [&](const auto& variant) {
    if (variant.type != DType::f32) return;
    Block b(1, 2, 8, 8, 0, 1);
    for (int i = 0; i <= 90000; i += 7) {
      const float x = static_cast<float>(i) * 1e-3f;
      b.reset();
      std::vector<float> keys(16, 0), values(16, 0);
      keys[8] = -x;
      values[8] = 1;
      b.q[0] = 1;
      b.args.k = keys.data();
      b.args.v = values.data();
      variant.run(b.args);
      const double truth = std::exp(-static_cast<double>(x));
      ASSERT_NEAR(b.o[0], truth, truth * 1.5e-7 + 1.2e-38) << x;
    }
  });
}

TEST(Block, SoftcapIsWithinFloatRounding) {
  for_variants(block_variants(), [&](const auto& variant) {
    if (variant.type != DType::f32) return;
    Block b(1, 1, 8, 8, 0, 1);
    for (int i = -20000; i <= 20000; i += 13) {
      const float x = static_cast<float>(i) * 1e-3f;
      b.reset();
      std::vector<float> key(8, 0);
      key[0] = x;
      b.q[0] = 1;
      b.args.k = key.data();
      b.args.softcap = 2;
      variant.run(b.args);
      const double truth = 2 * std::tanh(static_cast<double>(x) / 2);
      ASSERT_NEAR(b.m[0], truth, std::abs(truth) * 3e-7) << x;
    }
  });
}

TEST(Block, RowsOfMinusInfinityAndNaNBehaveAsTheFormula) {
  for_variants(block_variants(), [&](const auto& variant) {
    if (variant.type != DType::f32) return;
    for (int32_t rows : {1, 12}) {
      if (rows > variant.most_rows) continue;
      Block b(rows, 4, 8, 8, 0, 5);
      std::vector<float> keys(32, 0);
      for (size_t i = 0; i < 4; i++) keys[8 * i] = kLowest;
      for (size_t r = 0; r < static_cast<size_t>(rows); r++) {
        for (size_t i = 0; i < 8; i++) b.q[8 * r + i] = i == 0 ? 1 : 0;
      }
      b.args.k = keys.data();
      variant.run(b.args);
      EXPECT_EQ(b.m[0], kLowest);
      EXPECT_EQ(b.l[0], 0);
      keys[0] = 1;  // a second block with one finite score: the first one must not have spoilt the state
      variant.run(b.args);
      EXPECT_EQ(b.l[0], 1);
      keys[8] = kNaN;
      variant.run(b.args);
      EXPECT_TRUE(std::isnan(b.l[0]));
      EXPECT_TRUE(std::isnan(b.o[0]));
    }
  });
}

// A block after a block has the state of both joined; a state that has seen nothing changes nothing.
TEST(Merge, JoinsStatesAsTheFormula) {
  for_variants(all_variants().merge, [&](const auto& variant) {
    for (int32_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 96}) {
      for (int32_t d : {8, 40, 128}) {
        Block first(rows, 50, d, d, 0, 3), second(rows, 70, d, d, 0, 4), both(rows, 50, d, d, 0, 3);
        std::memcpy(second.q.data(), first.q.data(), first.q.size() * sizeof(float));
        for (size_t r = 0; r < static_cast<size_t>(rows); r += 3) first.hi[r] = both.hi[r] = 0;
        for (size_t r = 1; r < static_cast<size_t>(rows); r += 4) second.hi[r] = 0;
        gqa_attention_tile_f32_reference(first.args);
        gqa_attention_tile_f32_reference(both.args);
        gqa_attention_tile_f32_reference(second.args);
        AttentionBlockArgs further = second.args;
        further.m = both.m.data();
        further.l = both.l.data();
        further.o = both.o.data();
        gqa_attention_tile_f32_reference(further);
        variant.run({rows, first.args.o_stride, first.m.data(), first.l.data(), first.o.data(), second.m.data(),
                     second.l.data(), second.o.data()});
        expect_same_state(first, both, 1e-6f);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(Merge, MinusInfinityAndNaNBehaveAsTheFormula) {
  for_variants(all_variants().merge, [&](const auto& variant) {
    GuardedArray<float> m(3), l(3), o(96), part_m(3), part_l(3), part_o(96);
    const auto set = [&](size_t r, float m_r, float l_r, float part_m_r, float part_l_r) {
      m[r] = m_r, l[r] = l_r, part_m[r] = part_m_r, part_l[r] = part_l_r;
      std::fill_n(o.data() + 32 * r, 32, l_r * 2);
      std::fill_n(part_o.data() + 32 * r, 32, part_l_r * 3);
    };
    set(0, kLowest, 0, kLowest, 0);
    set(1, kLowest, kNaN, 4, 1);
    set(2, 5, 1, kLowest, 0);
    variant.run({3, 32, m.data(), l.data(), o.data(), part_m.data(), part_l.data(), part_o.data()});
    EXPECT_EQ(m[0], kLowest);
    EXPECT_EQ(l[0], 0);
    EXPECT_EQ(o[31], 0);
    EXPECT_EQ(m[1], 4);
    EXPECT_TRUE(std::isnan(l[1]) && std::isnan(o[32]));
    EXPECT_EQ(m[2], 5);
    EXPECT_EQ(l[2], 1);
    EXPECT_EQ(o[95], 2);
  });
}

TEST(Rotate, VariantsGiveTheSameBits) {
  Random random(11);
  for_variants(all_variants().rotate, [&](const auto& variant) {
    for (int32_t d : {8, 16, 24, 48, 64, 80, 128, 256}) {
      for (int32_t rotary : {0, 16, 32, 48, 64, 128, 256}) {
        if (rotary > d) continue;
        for (bool interleaved : {false, true}) {
          const int32_t heads = 3;
          const auto floats = static_cast<size_t>(d) * heads;
          GuardedArray<float> x(floats), y(floats + 1), truth(floats + 1);
          GuardedArray<char> cos(static_cast<size_t>(rotary) * 2 + 1), sin(static_cast<size_t>(rotary) * 2 + 2);
          random.fill_normal(x.span());
          for (int32_t j = 0; j < rotary / 2; j++) {
            const float c = random.normal(), s = random.normal();
            std::memcpy(cos.data() + j * 4, &c, 4);  // misaligned by 3 and by 2 bytes
            std::memcpy(sin.data() + j * 4, &s, 4);
          }
          AttentionRotateArgs a{x.data(), y.data(), d, d, cos.data(), sin.data(), heads, d, rotary, interleaved, 0.37f};
          y[floats] = truth[floats] = 5;
          variant.run(a);
          a.y = truth.data();
          gqa_attention_rotate_reference(a);
          ASSERT_EQ(std::memcmp(y.data(), truth.data(), (floats + 1) * sizeof(float)), 0)
              << "d " << d << " rotary " << rotary << " interleaved " << interleaved;
        }
      }
    }
  });
}

TEST(Rotate, ReferenceTurnsPairsByTheirAngle) {
  const float x[16] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0};
  const float cos[8] = {0.5f, 0.25f, 1, 1, 1, 1, 1, 1}, sin[8] = {2, 3, 0, 0, 0, 0, 0, 0};
  float y[16];
  AttentionRotateArgs a{x, y, 16, 16, cos, sin, 1, 16, 16, false, 1};
  gqa_attention_rotate_reference(a);  // pairs (0, 8), (1, 9)
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[8], 2);
  EXPECT_EQ(y[1], -6);
  EXPECT_EQ(y[9], 0.5f);
  a.interleaved = true;
  a.scale = 2;
  gqa_attention_rotate_reference(a);  // pairs (0, 1), (8, 9)
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 4);
  EXPECT_EQ(y[9], 4);
}

// ---- store ----

// astype(float16) of NumPy 2.4.6 and astype(bfloat16) of ml_dtypes 0.6.0.
constexpr struct {
  uint32_t x;
  uint16_t half, brain;
} kNarrowed[] = {
    {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000}, {0x3f800000, 0x3c00, 0x3f80},
    {0xc0200000, 0xc100, 0xc020}, {0x477fe000, 0x7bff, 0x4780}, {0x477fefff, 0x7bff, 0x4780},
    {0x477ff000, 0x7c00, 0x4780}, {0xc77ff000, 0xfc00, 0xc780}, {0x7149f2ca, 0x7c00, 0x714a},
    {0xff800000, 0xfc00, 0xff80}, {0x7f800000, 0x7c00, 0x7f80}, {0x7fc00000, 0x7e00, 0x7fc0},
    {0x38800000, 0x0400, 0x3880}, {0x33800000, 0x0001, 0x3380}, {0x33000000, 0x0000, 0x3300},
    {0x33000347, 0x0001, 0x3300}, {0x33c00000, 0x0002, 0x33c0}, {0xb2800000, 0x8000, 0xb280},
    {0x387fda40, 0x03ff, 0x3880}, {0x000116c2, 0x0000, 0x0001}, {0x3f801000, 0x3c00, 0x3f80},
    {0x3f803000, 0x3c02, 0x3f80}, {0x3f801001, 0x3c01, 0x3f80}, {0x3f808000, 0x3c04, 0x3f80},
    {0x3f818000, 0x3c0c, 0x3f82}, {0x3f808001, 0x3c04, 0x3f81}, {0x7f7f7e82, 0x7c00, 0x7f7f},
    {0x7f7fffff, 0x7c00, 0x7f80}, {0xff7f0906, 0xfc00, 0xff7f}, {0x3dcccccd, 0x2e66, 0x3dcd},
    {0xbe99999a, 0xb4cd, 0xbe9a}, {0x4640e6b6, 0x7207, 0x4641},
};

// amax / 127 and rint(x * (127 / amax)) in NumPy 2.4.6's float32.
constexpr struct {
  float x[8];
  uint32_t scale;
  int8_t codes[8];
} kCoded[] = {
    {{127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 63.5f}, 0x3f800000, {127, -127, 0, 2, 2, 0, -2, 64}},
    {{1, -2, 3, -4, 5, -6, 7, -8}, 0x3d810204, {16, -32, 48, -64, 79, -95, 111, -127}},
    {{0.1f, 0.2f, 0.3f, -0.35f, 0.05f, 0, -0.0f, 0.349f}, 0x3b349c6c, {36, 73, 109, -127, 18, 0, 0, 127}},
    {{1e-20f, -3e-20f, 2e-20f, 0, 0, 5e-21f, -1.5e-20f, 2.99e-20f}, 0x1b8ec959, {42, -127, 85, 0, 0, 21, -64, 127}},
    {{3e+38f, -1e+38f, 2.9e+38f, 1, 0, -3e+38f, 1.5e+38f, 1.18e+36f}, 0x7be378d8, {127, -42, 123, 0, 0, -127, 64, 0}},
};

TEST(Store, RoundsAsNumPy) {
  for_variants(all_variants().store, [&](const auto& variant) {
    AttentionStoreArgs a{};
    a.heads = 1;
    a.d = 8;
    if (variant.type == DType::i8) {
      for (const auto& row : kCoded) {
        int8_t codes[8];
        float scale = -1;
        a.x = row.x;
        a.y = codes;
        a.scale = &scale;
        variant.run(a);
        EXPECT_EQ(std::bit_cast<uint32_t>(scale), row.scale);
        for (size_t i = 0; i < 8; i++) EXPECT_EQ(codes[i], row.codes[i]) << row.x[i];
      }
      return;
    }
    for (const auto& number : kNarrowed) {
      float x[8];
      uint16_t y[8];
      std::fill_n(x, 8, std::bit_cast<float>(number.x));
      a.x = x;
      a.y = y;
      variant.run(a);
      for (uint16_t bits : y) EXPECT_EQ(bits, variant.type == DType::f16 ? number.half : number.brain) << x[0];
    }
  });
}

TEST(Store, RowsThatAreNotFiniteOrAreNothingSaySo) {
  for_variants(all_variants().store, [&](const auto& variant) {
    if (variant.type != DType::i8) return;
    for (float odd : {kNaN, -kNaN, kLowest, -kLowest, 0.0f, -0.0f, 0x1p-101f, -1e-40f}) {
      for (size_t at : {0, 7, 12}) {
        float x[16] = {};
        int8_t codes[16];
        float scale = -1;
        std::fill_n(codes, 16, int8_t{5});
        if (!std::isfinite(odd)) std::fill_n(x, 16, 2.0f);
        x[at] = odd;
        AttentionStoreArgs a{x, codes, &scale, 16, 16, 1, 1, 16};
        variant.run(a);
        EXPECT_EQ(std::isnan(scale), !std::isfinite(odd));
        if (std::isfinite(odd)) {
          EXPECT_EQ(scale, 0);
        }
        for (int8_t code : codes) EXPECT_EQ(code, 0);
      }
    }
  });
}

TEST(Store, VariantsGiveTheSameBitsAndStayInTheirRows) {
  Random random(29);
  const auto reference = [](DType type) {
    return type == DType::f16    ? gqa_attention_store_f16_reference
           : type == DType::bf16 ? gqa_attention_store_bf16_reference
                                 : gqa_attention_store_i8_reference;
  };
  for_variants(all_variants().store, [&](const auto& variant) {
    const size_t size = size_of(variant.type);
    for (int round = 0; round < 400; round++) {
      const auto d = static_cast<int32_t>(8 * (1 + random.below(32)));
      const auto heads = static_cast<int32_t>(1 + random.below(4));
      const auto floats = static_cast<size_t>(d) * static_cast<size_t>(heads);
      GuardedArray<char> x(floats * sizeof(float) + 1);  // misaligned by 3 bytes
      GuardedArray<char> seen(floats * size), truth(floats * size);
      GuardedArray<float> seen_scale(static_cast<size_t>(heads)), truth_scale(static_cast<size_t>(heads));
      for (size_t i = 0; i < floats; i++) {
        // All bit patterns, or a narrow range with many ties.
        float value = static_cast<float>(random.below(4096) - 2048) / 16;
        if (round % 2 == 0) value = std::bit_cast<float>(static_cast<uint32_t>(random.bits() >> 32));
        if (round % 4 == 0 && !std::isfinite(value)) value = random.normal();
        std::memcpy(x.data() + i * sizeof(float), &value, sizeof(value));
      }
      AttentionStoreArgs a{reinterpret_cast<const float*>(x.data()), seen.data(), seen_scale.data(), d, d, 1, heads, d};
      variant.run(a);
      a.y = truth.data();
      a.scale = truth_scale.data();
      reference(variant.type)(a);
      ASSERT_EQ(std::memcmp(seen.data(), truth.data(), truth.size()), 0) << round;
      for (size_t h = 0; h < truth_scale.size(); h++) {
        if (std::isnan(truth_scale[h])) {
          ASSERT_TRUE(std::isnan(seen_scale[h]));
        } else {
          ASSERT_EQ(seen_scale[h], truth_scale[h]);
        }
      }
    }
  });
}

// ---- the entry ----

AttentionParams params_of(int32_t nq, int32_t nk, int32_t d, int64_t tokens, int32_t rotary) {
  AttentionParams p;
  p.query_heads = nq;
  p.kv_heads = nk;
  p.head_size = d;
  p.tokens = tokens;
  p.rotary = rotary;
  p.scale = 1 / std::sqrt(static_cast<float>(d));
  return p;
}

void expect_truth(const Problem& problem, const std::vector<double>& truth, double tolerance = 5e-6) {
  ASSERT_EQ(problem.out.size(), truth.size());
  for (size_t i = 0; i < truth.size(); i++) ASSERT_NEAR(problem.out[i], truth[i], tolerance) << "element " << i;
}

TEST(Attention, AgreesWithTheSoftmaxWrittenOut) {
  Random random(23);
  for (const cpu::Features& features : levels()) {
    for (int round = 0; round < 60; round++) {
      const auto nk = static_cast<int32_t>(1 + random.below(3));
      const int32_t group = std::array{1, 2, 3, 5, 8, 33}[static_cast<size_t>(random.below(6))];
      const int32_t d = std::array{8, 16, 32, 40, 64, 128}[static_cast<size_t>(random.below(6))];
      const int64_t tokens = std::array{1, 1, 2, 5, 17, 49, 100}[static_cast<size_t>(random.below(7))];
      AttentionParams p = params_of(nk * group, nk, d, tokens, static_cast<int32_t>(random.below(d / 16 + 1)) * 16);
      p.interleaved = random.below(2) == 1;
      if (random.below(3) == 0) p.window = 1 + random.below(150);
      if (random.below(3) == 0) p.softcap = 0.5f;
      const int64_t longest = std::array{1, 70, 300, 1200}[static_cast<size_t>(random.below(tokens > 40 ? 3 : 4))];
      std::vector<int64_t> past, valid;
      for (int64_t b = 0; b < 1 + round % 3; b++) {
        past.push_back(random.below(longest));
        valid.push_back(round % 4 == 0 ? 1 + random.below(past.back() + tokens) : past.back() + tokens);
      }
      SCOPED_TRACE(testing::Message() << "round " << round << " nk " << nk << " group " << group << " d " << d
                                      << " tokens " << tokens << " window " << p.window << " rotary " << p.rotary);
      Problem problem(p, past, valid, random.bits());
      if (round % 5 == 0) problem.add_sink_and_bias(random.bits());
      const DType type = kCacheTypes[static_cast<size_t>(random.below(4))];
      std::vector<double> truth;
      if (type == DType::f32) {
        truth = problem.truth();
      } else {
        problem.keep_as(type);
      }
      ASSERT_TRUE(problem.run(features, 2).ok());
      if (type != DType::f32) truth = problem.truth();
      // A query rounded to bfloat16 moves a score by up to 2^-8 of each product, with signs at random, and a weight by
      // as much.
      const bool pairs = features.avx512bf16 && type == DType::bf16;
      expect_truth(problem, truth, pairs ? 1e-2 : 5e-6);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Attention, BitsDoNotDependOnTheThreadCountOrTheBatch) {
  for (const cpu::Features& features : levels()) {
    for (int64_t tokens : {1, 4, 60}) {
      const AttentionParams p = params_of(6, 3, 64, tokens, 64);
      Problem one(p, {1300, 40}, {1300 + tokens, 40 + tokens}, 5);
      Problem many = one;
      ASSERT_TRUE(one.run(features, 1).ok());
      ASSERT_TRUE(many.run(features, 5).ok());
      EXPECT_EQ(std::memcmp(one.out.data(), many.out.data(), one.out.size() * sizeof(float)), 0) << tokens;
      EXPECT_EQ(std::memcmp(one.keys.data(), many.keys.data(), one.keys.size() * sizeof(float)), 0) << tokens;
      // The second sequence alone.
      Problem alone = many;
      const size_t half = alone.out.size() / 2;
      alone.past = {40};
      alone.valid = {40 + tokens};
      for (auto* x : {&alone.q, &alone.k, &alone.v, &alone.keys, &alone.values}) {
        x->erase(x->begin(), x->begin() + static_cast<int64_t>(x->size() / 2));
      }
      alone.out.assign(half, 0);
      ASSERT_TRUE(alone.run(features, 2).ok());
      EXPECT_EQ(std::memcmp(alone.out.data(), one.out.data() + half, half * sizeof(float)), 0) << tokens;
    }
  }
}

// Few heads are cut over the context, more of them less finely; in no case may the cut follow the threads.
TEST(Attention, SplitContextsGiveTheSameBitsForEveryThreadCountAndHeadCount) {
  for (const cpu::Features& features : levels()) {
    for (int32_t kv_heads : {1, 2, 3, 5, 8}) {
      for (int64_t past : {100, 127, 128, 300, 1100}) {
        for (int64_t tokens : {1, 3}) {
          const AttentionParams p = params_of(2 * kv_heads, kv_heads, 32, tokens, 32);
          Problem first(p, {past}, {past + tokens}, 5);
          const std::vector<double> truth = first.truth();
          ASSERT_TRUE(first.run(features, 1).ok());
          for (size_t i = 0; i < truth.size(); i++)
            ASSERT_NEAR(first.out[i], truth[i], 2e-5) << kv_heads << ' ' << past;
          for (int threads : {2, 3, 4}) {
            Problem other(p, {past}, {past + tokens}, 5);
            ASSERT_TRUE(other.run(features, threads).ok());
            ASSERT_EQ(std::memcmp(first.out.data(), other.out.data(), first.out.size() * sizeof(float)), 0)
                << kv_heads << " heads, " << past << " past rows, " << threads << " threads";
          }
        }
      }
    }
  }
}

TEST(Attention, TypedCachesGiveTheSameBitsForEveryThreadCountAndForASequenceAlone) {
  for (const cpu::Features& features : levels()) {
    for (DType type : {DType::f16, DType::bf16, DType::i8}) {
      for (int64_t tokens : {1, 40}) {
        const AttentionParams p = params_of(6, 3, 64, tokens, 64);
        Problem one(p, {700, 40}, {700 + tokens, 40 + tokens}, 5);
        one.keep_as(type);
        Problem many = one;
        Problem alone(p, {700}, {700 + tokens}, 5);
        alone.capacity = one.capacity;
        alone.keep_as(type);
        const auto take_half = [](const auto& x) {
          return std::decay_t<decltype(x)>(x.begin(), x.begin() + x.size() / 2);
        };
        alone.q = take_half(one.q);
        alone.k = take_half(one.k);
        alone.v = take_half(one.v);
        alone.cos = one.cos;
        alone.sin = one.sin;
        alone.kept_keys = take_half(one.kept_keys);
        alone.kept_values = take_half(one.kept_values);
        alone.key_scales = take_half(one.key_scales);
        alone.value_scales = take_half(one.value_scales);
        ASSERT_TRUE(one.run(features, 1).ok());
        ASSERT_TRUE(many.run(features, 5).ok());
        ASSERT_TRUE(alone.run(features, 2).ok());
        EXPECT_EQ(std::memcmp(one.out.data(), many.out.data(), one.out.size() * sizeof(float)), 0);
        EXPECT_EQ(one.kept_keys, many.kept_keys);
        EXPECT_EQ(one.kept_values, many.kept_values);
        EXPECT_EQ(std::memcmp(one.out.data(), alone.out.data(), alone.out.size() * sizeof(float)), 0);
        EXPECT_FALSE(std::isnan(one.out[0]));
      }
    }
  }
}

// Rotated keys and values as they are, in the cache's type: the scalar rotation and store are held by their own tests.
TEST(Attention, AppendsRowsInTheTypeOfTheCache) {
  for (const cpu::Features& features : levels()) {
    for (DType type : {DType::f16, DType::bf16, DType::i8}) {
      for (int64_t tokens : {1, 9, 70}) {
        Problem problem(params_of(4, 2, 64, tokens, 32), {7, 100}, {7 + tokens, 101}, 31);
        problem.keep_as(type);
        const Problem before = problem;
        Counters counters;
        ASSERT_TRUE(problem.run(features, 2, &counters).ok());
        const size_t bytes = 64 * size_of(type);
        EXPECT_EQ(counters.cache_bytes_appended,
                  static_cast<uint64_t>(2 * 2 * 2 * tokens) * (bytes + (type == DType::i8 ? sizeof(float) : 0)));
        for (size_t b = 0; b < 2; b++) {
          for (int64_t g = 0; g < 2; g++) {
            for (int64_t t = 0; t < problem.capacity; t++) {
              const auto row = static_cast<size_t>((static_cast<int64_t>(b) * 2 + g) * problem.capacity + t);
              char key[4 * 64], value[4 * 64];
              float key_scale = before.key_scales[row], value_scale = before.value_scales[row];
              std::memcpy(key, before.kept_keys.data() + row * bytes, bytes);
              std::memcpy(value, before.kept_values.data() + row * bytes, bytes);
              const int64_t token = t - problem.past[b];
              if (token >= 0 && token < tokens) {
                const int64_t at = ((static_cast<int64_t>(b) * tokens + token) * 2 + g) * 64;
                float turned[64];
                AttentionRotateArgs a{problem.k.data() + at,
                                      turned,
                                      64,
                                      64,
                                      problem.cos.data() + t * 16,
                                      problem.sin.data() + t * 16,
                                      1,
                                      64,
                                      32,
                                      false,
                                      1};
                gqa_attention_rotate_reference(a);
                encode_row(type, turned, 64, key, &key_scale);
                encode_row(type, problem.v.data() + at, 64, value, &value_scale);
              }
              ASSERT_EQ(std::memcmp(key, problem.kept_keys.data() + row * bytes, bytes), 0) << t;
              ASSERT_EQ(std::memcmp(value, problem.kept_values.data() + row * bytes, bytes), 0) << t;
              ASSERT_EQ(std::memcmp(&key_scale, &problem.key_scales[row], sizeof(float)), 0) << t;
              ASSERT_EQ(std::memcmp(&value_scale, &problem.value_scales[row], sizeof(float)), 0) << t;
            }
          }
        }
      }
    }
  }
}

TEST(Attention, PassesOverATypedCacheLeaveTheSameRowsAndAgree) {
  for (const cpu::Features& features : levels()) {
    for (DType type : {DType::f16, DType::bf16, DType::i8}) {
      const int64_t tokens = 20, past = 600;
      Problem whole(params_of(4, 2, 64, tokens, 64), {past}, {past + tokens}, 9);
      whole.keep_as(type);
      Problem steps = whole;
      ASSERT_TRUE(whole.run(features, 2).ok());
      const Problem all = steps;
      steps.p.tokens = 1;
      const int64_t kv = steps.width(), q = int64_t{4} * 64;
      for (int64_t s = 0; s < tokens; s++) {
        steps.past = {past + s};
        steps.valid = {past + s + 1};
        steps.q.assign(all.q.data() + s * q, all.q.data() + (s + 1) * q);
        steps.k.assign(all.k.data() + s * kv, all.k.data() + (s + 1) * kv);
        steps.v.assign(all.v.data() + s * kv, all.v.data() + (s + 1) * kv);
        ASSERT_TRUE(steps.run(features, 2).ok());
        for (int64_t i = 0; i < q; i++) {
          ASSERT_NEAR(steps.out[static_cast<size_t>(i)], whole.out[static_cast<size_t>(s * q + i)], 2e-6) << s;
        }
      }
      EXPECT_EQ(whole.kept_keys, steps.kept_keys);
      EXPECT_EQ(whole.kept_values, steps.kept_values);
    }
  }
}

// Keys of zero weigh all values alike: out is off by no more than a value row is. Then random keys, whose error was
// seen to be 0.4 (f16), 0.3 (bf16) and 0.8 (i8) of the limit at most.
TEST(Attention, RowsInBlocksGiveTheBitsOfRowsInOneStretch) {
  constexpr int64_t kHeads = 3, kSize = 64;
  for (const cpu::Features& features : levels()) {
    for (const DType type : kCacheTypes) {
      for (const auto& [past, tokens, window] : std::vector<std::array<int64_t, 3>>{
               {0, 1, 0}, {100, 40, 0}, {127, 1, 0}, {128, 1, 70}, {300, 1, 200}, {250, 150, 0}}) {
        AttentionParams p = params_of(2 * kHeads, kHeads, kSize, tokens, kSize);
        p.window = window;
        Problem stretch(p, {past}, {past + tokens}, 71);
        if (type != DType::f32) stretch.keep_as(type);
        Problem blocks = stretch;
        const KvView from = stretch.sequence(0).cache;
        AttentionSequence s = blocks.sequence(0);
        s.cache.head_stride = kKvBlockRows * kSize + 32;
        s.cache.block_stride = kHeads * s.cache.head_stride + 96;
        // What no row lies in stays as it is.
        const auto bytes =
            static_cast<size_t>(ceil_div(past + tokens, kKvBlockRows) * s.cache.block_stride) * size_of(type);
        std::vector<char> keys(bytes, '\xff'), values(bytes, '\xff');
        s.cache.keys = keys.data();
        s.cache.values = values.data();
        const size_t row = kSize * size_of(type);
        const auto at = [&](const KvView& view, void* base, int64_t head, int64_t t) {
          return static_cast<char*>(base) + static_cast<size_t>(view.offset(head, t)) * size_of(type);
        };
        const auto for_rows = [&](int64_t end, auto f) {
          for (int64_t head = 0; head < kHeads; head++) {
            for (int64_t t = 0; t < end; t++) {
              f(at(s.cache, s.cache.keys, head, t), at(from, from.keys, head, t));
              f(at(s.cache, s.cache.values, head, t), at(from, from.values, head, t));
            }
          }
        };
        for_rows(past, [&](char* to, const char* source) { std::memcpy(to, source, row); });
        Counters in_stretch, in_blocks;
        ASSERT_TRUE(stretch.run(features, 2, &in_stretch).ok());
        ASSERT_TRUE(blocks.run_on({&s, 1}, features, 2, &in_blocks).ok());
        EXPECT_EQ(std::memcmp(blocks.out.data(), stretch.out.data(), stretch.out.size() * sizeof(float)), 0) << past;
        EXPECT_FALSE(std::isnan(blocks.out[0]));
        EXPECT_EQ(in_blocks.cache_bytes_appended, in_stretch.cache_bytes_appended);
        for_rows(past + tokens, [&](const char* kept, const char* expected) {
          ASSERT_EQ(std::memcmp(kept, expected, row), 0) << past << " past rows, " << tokens << " new ones";
        });
        if (type == DType::i8) {
          const size_t scales = stretch.key_scales.size() * sizeof(float);
          EXPECT_EQ(std::memcmp(blocks.key_scales.data(), stretch.key_scales.data(), scales), 0);
          EXPECT_EQ(std::memcmp(blocks.value_scales.data(), stretch.value_scales.data(), scales), 0);
        }
        size_t touched = 0;
        for (const char c : keys) touched += c != '\xff' ? 1 : 0;
        EXPECT_LE(touched, static_cast<size_t>((past + tokens) * kHeads) * row);
      }
    }
  }
}

TEST(Attention, NarrowRowsCostTheAccuracyThatIsStated) {
  for (DType type : {DType::f16, DType::bf16, DType::i8}) {
    SCOPED_TRACE(std::string(dtype_name(type)));
    const int64_t past = 250;
    for (bool zero_keys : {true, false}) {
      Problem exact(params_of(16, 8, 128, 1, 0), {past}, {past + 1}, 41);
      if (zero_keys) {
        std::fill(exact.k.begin(), exact.k.end(), 0.0f);
        for (float& x : exact.keys) x = std::isnan(x) ? x : 0;
      }
      Problem narrow = exact;
      narrow.keep_as(type);
      const auto truth = exact.truth();
      ASSERT_TRUE(narrow.run(cpu::detect_features(), 2).ok());
      double largest = 0, squares = 0;
      for (size_t i = 0; i < truth.size(); i++) {
        const double error = std::abs(narrow.out[i] - truth[i]);
        largest = std::max(largest, error);
        squares += error * error;
      }
      const double root = std::sqrt(squares / static_cast<double>(truth.size()));
      const double unit = type == DType::f16 ? 0x1p-11 : type == DType::bf16 ? 0x1p-8 : 1.0 / 254;
      constexpr double kAmax = 6;  // of Random::normal
      EXPECT_LE(largest, zero_keys ? unit * kAmax : unit);
      EXPECT_GT(root, unit / 1000) << "rows are not narrow";
    }
  }
}

TEST(Attention, ARowThatIsMaskedEverywhereIsZeroAndHidesNoNaN) {
  for (const cpu::Features& features : levels()) {
    for (int64_t tokens : {1, 40}) {
      for (float sink : {kNaN, -200.0f, kLowest}) {
        for (float last : {kLowest, kNaN}) {
          Problem problem(params_of(2, 1, 16, tokens, 0), {700}, {700 + tokens}, 3);
          problem.add_sink_and_bias(4);
          std::fill_n(problem.bias.begin(), problem.capacity, kLowest);
          problem.bias[700] = last;
          problem.sink[0] = sink;
          if (std::isnan(sink)) problem.sink.clear();
          ASSERT_TRUE(problem.run(features, 2).ok());
          for (size_t i = 0; i < 16; i++) {
            if (std::isnan(last)) {
              EXPECT_TRUE(std::isnan(problem.out[i]));
            } else {
              EXPECT_EQ(problem.out[i], 0);
            }
          }
          EXPECT_TRUE(std::isfinite(problem.out[16]));
          EXPECT_NE(problem.out[16], 0);
        }
      }
    }
  }
}

TEST(Attention, RefusesCachesAndBiasesItCannotRead) {
  Problem problem(params_of(4, 2, 16, 1, 0), {5, 5}, {6, 6}, 1);
  problem.keep_as(DType::i8);
  const cpu::Features none;
  cpu::Pool pool(1);
  cpu::Arena arena;
  const Context ctx{&pool, &arena, none, nullptr};
  const auto code = [&](const std::function<void(std::vector<AttentionSequence>&, AttentionArgs&)>& change) {
    std::vector<AttentionSequence> sequences{problem.sequence(0), problem.sequence(1)};
    const std::vector<float> bias(24);
    AttentionArgs a;
    a.q = problem.q.data();
    a.k = problem.k.data();
    a.v = problem.v.data();
    a.q_rows.outer_stride = 64;
    a.k_rows.outer_stride = a.v_rows.outer_stride = 32;
    a.out = problem.out.data();
    a.bias = {bias.data(), 0, 6, 6, 6};
    change(sequences, a);
    a.sequences = sequences;
    const auto result = attention(ctx, problem.p, a, "test");
    return result.ok() ? std::optional<Errc>() : result.error().code;
  };
  EXPECT_EQ(code([](auto& s, auto&) { s[1].cache.dtype = DType::u8; }), Errc::unsupported);
  EXPECT_EQ(code([](auto& s, auto&) { s[1].cache.dtype = DType::f32; }), Errc::bad_request);
  EXPECT_EQ(code([](auto& s, auto&) { s[1].cache.key_scales = nullptr; }), Errc::bad_request);
  EXPECT_EQ(code([](auto& s, auto&) { s[0].cache.value_scales = nullptr; }), Errc::bad_request);
  EXPECT_EQ(code([](auto&, auto& a) { a.bias.keys = 5; }), Errc::bad_request);
  EXPECT_EQ(code([](auto&, auto&) {}), std::nullopt);
}

TEST(Attention, OnePassOfManyTokensAgreesWithPassesOfOne) {
  for (const cpu::Features& features : levels()) {
    const int64_t tokens = 37, past = 500;
    Problem whole(params_of(4, 2, 128, tokens, 128), {past}, {past + tokens}, 9);
    Problem steps = whole;
    ASSERT_TRUE(whole.run(features, 2).ok());
    const Problem all = steps;
    steps.p.tokens = 1;
    const int64_t kv = steps.width(), q = int64_t{4} * 128;
    for (int64_t s = 0; s < tokens; s++) {
      steps.past = {past + s};
      steps.valid = {past + s + 1};
      steps.q.assign(all.q.data() + s * q, all.q.data() + (s + 1) * q);
      steps.k.assign(all.k.data() + s * kv, all.k.data() + (s + 1) * kv);
      steps.v.assign(all.v.data() + s * kv, all.v.data() + (s + 1) * kv);
      ASSERT_TRUE(steps.run(features, 2).ok());
      for (int64_t i = 0; i < q; i++) {
        ASSERT_NEAR(steps.out[static_cast<size_t>(i)], whole.out[static_cast<size_t>(s * q + i)], 2e-6) << s;
      }
    }
    for (size_t i = 0; i < whole.keys.size(); i++) {
      ASSERT_EQ(std::bit_cast<uint32_t>(whole.keys[i]), std::bit_cast<uint32_t>(steps.keys[i])) << i;
    }
  }
}

// Runs the new tokens of `whole` in calls of so many and returns all rows of out. The cache of `whole` ends as it would
// after one call.
std::vector<float> in_calls(Problem& whole, const std::vector<int64_t>& sizes, const cpu::Features& features,
                            int threads) {
  Problem step = whole;
  const int64_t q = int64_t{whole.p.query_heads} * whole.p.head_size, kv = whole.width();
  std::vector<float> out;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    step.p.tokens = size;
    step.past = {whole.past[0] + at};
    step.valid = {whole.past[0] + at + size};
    step.q.assign(whole.q.data() + at * q, whole.q.data() + (at + size) * q);
    step.k.assign(whole.k.data() + at * kv, whole.k.data() + (at + size) * kv);
    step.v.assign(whole.v.data() + at * kv, whole.v.data() + (at + size) * kv);
    if (!whole.bias.empty()) {
      step.bias.clear();
      for (int64_t h = 0; h < whole.p.query_heads; h++) {
        const float* first = whole.bias.data() + (h * whole.p.tokens + at) * whole.capacity;
        step.bias.insert(step.bias.end(), first, first + size * whole.capacity);
      }
    }
    step.out.assign(static_cast<size_t>(size * q), kNaN);
    EXPECT_TRUE(step.run(features, threads).ok());
    out.insert(out.end(), step.out.begin(), step.out.end());
    at += size;
  }
  whole.keys = step.keys;
  whole.values = step.values;
  whole.kept_keys = step.kept_keys;
  whole.kept_values = step.kept_values;
  return out;
}

void expect_same_bits(const std::vector<float>& seen, const std::vector<float>& expected, int64_t row) {
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); i++) {
    ASSERT_EQ(std::bit_cast<uint32_t>(seen[i]), std::bit_cast<uint32_t>(expected[i]))
        << "row " << static_cast<int64_t>(i) / row << " element " << static_cast<int64_t>(i) % row << ": " << seen[i]
        << " for " << expected[i];
  }
}

// Calls of few rows, of a register tile and its neighbours, of more tokens than a tile has rows.
const std::vector<int64_t> kIrregular{3, 1, 21, 2, 7, 1, 1, 12, 4, 100, 5, 9};  // 166

TEST(Attention, ARowHasTheSameBitsInEveryCall) {
  constexpr int64_t kTokens = 166;
  Random random(77);
  for (const cpu::Features& features : levels()) {
    const bool vectors = features.avx2;
    for (DType type : kCacheTypes) {
      for (int32_t group : {1, 2, 4, 8}) {
        for (int32_t d : {8, 24, 64, 80, 128, 256}) {
          // Around the ends of blocks and splits, and over several of them; the scalar form takes its time.
          const int64_t past = std::array{0, 60, 450, 1000}[static_cast<size_t>(random.below(vectors ? 4 : 2))];
          const int32_t kv_heads = group < 4 ? 2 : 1;
          AttentionParams p = params_of(kv_heads * group, kv_heads, d, kTokens, d / 16 * 16);
          if (random.below(3) == 0) p.window = 1 + random.below(300);
          if (random.below(3) == 0) p.softcap = 2;
          // Two of six sizes with each type and group.
          if ((d / 8 + group + static_cast<int32_t>(type)) % 3 != 0) continue;
          if (!vectors && (d > 80 || group > 2)) continue;
          Problem whole(p, {past}, {past + kTokens}, random.bits());
          if (random.below(2) == 0) whole.add_sink_and_bias(random.bits());
          if (type != DType::f32) whole.keep_as(type);
          SCOPED_TRACE(testing::Message()
                       << dtype_name(type) << " group " << group << " d " << d << " past " << past << " window "
                       << p.window << " softcap " << p.softcap << " bias " << !whole.bias.empty());
          Problem single = whole, irregular = whole;
          ASSERT_TRUE(whole.run(features, 1 + static_cast<int>(random.below(4))).ok());
          ASSERT_TRUE(std::none_of(whole.out.begin(), whole.out.end(), [](float x) { return std::isnan(x); }));
          const int64_t row = int64_t{p.query_heads} * d;
          expect_same_bits(in_calls(irregular, kIrregular, features, 2), whole.out, row);
          if (HasFatalFailure()) return;
          expect_same_bits(in_calls(single, std::vector<int64_t>(kTokens, 1), features, 1), whole.out, row);
          if (HasFatalFailure()) return;
          EXPECT_EQ(whole.kept_keys, single.kept_keys);
          EXPECT_EQ(whole.kept_values, irregular.kept_values);
        }
      }
    }
  }
}

// A value that is not finite reaches the rows that see it, and the others keep their order of sums.
TEST(Attention, ARowHasTheSameBitsBesideRowsThatSeeValuesThatAreNotFinite) {
  for (const cpu::Features& features : levels()) {
    for (DType type : {DType::f32, DType::f16}) {
      for (int64_t window : {0, 30}) {
        AttentionParams p = params_of(4, 2, 64, 60, 64);
        p.window = window;
        Problem whole(p, {100}, {160}, 8);
        for (int64_t key : {20, 75}) whole.values[static_cast<size_t>(key * 64 + 5)] = -kLowest;
        whole.v[static_cast<size_t>(33 * 128 + 7)] = -kLowest;
        if (type != DType::f32) whole.keep_as(type);
        Problem single = whole, irregular = whole;
        ASSERT_TRUE(whole.run(features, 2).ok());
        SCOPED_TRACE(testing::Message() << dtype_name(type) << " window " << window);
        expect_same_bits(in_calls(single, std::vector<int64_t>(60, 1), features, 1), whole.out, 256);
        expect_same_bits(in_calls(irregular, {1, 3, 2, 20, 4, 30}, features, 2), whole.out, 256);
        EXPECT_TRUE(std::isinf(whole.out[static_cast<size_t>(40 * 256 + 7)]));
        EXPECT_TRUE(std::isfinite(whole.out[static_cast<size_t>(20 * 256 + 7)]));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Attention, RefusesWhatTheCacheOrTheTablesCannotHold) {
  const cpu::Features none;
  const auto code = [&](const std::function<void(Problem&)>& change) {
    Problem problem(params_of(4, 2, 16, 3, 16), {5}, {8}, 1);
    change(problem);
    const auto before = problem.out;
    const auto result = problem.run(none, 1);
    EXPECT_EQ(std::memcmp(before.data(), problem.out.data(), before.size() * sizeof(float)), result.ok() ? 1 : 0);
    return result.ok() ? std::optional<Errc>() : result.error().code;
  };
  for (const std::function<void(Problem&)>& change : std::initializer_list<std::function<void(Problem&)>>{
           [](Problem& x) { x.past = {x.capacity - 2}; }, [](Problem& x) { x.past = {-1}; },
           [](Problem& x) { x.valid = {0}; }, [](Problem& x) { x.valid = {9}; }, [](Problem& x) { x.p.head_size = 12; },
           [](Problem& x) { x.p.head_size = 264; }, [](Problem& x) { x.p.kv_heads = 3; },
           [](Problem& x) { x.p.kv_heads = 0; }, [](Problem& x) { x.p.rotary = 8; },
           [](Problem& x) { x.p.rotary = 32; }, [](Problem& x) { x.p.tokens = 0; },
           [](Problem& x) { x.p.window = -1; }}) {
    EXPECT_EQ(code(change), Errc::bad_request);
  }
}

// ---- the ONNX operator ----

std::unique_ptr<Operator> operator_of(const Node& node, const cpu::Features& features = cpu::detect_features()) {
  auto op = node.make(features);
  EXPECT_TRUE(op.ok()) << op.error().message();
  return op.ok() ? std::move(*op) : nullptr;
}

void expect_near(const std::vector<float>& seen, size_t at, std::initializer_list<float> expected) {
  for (float x : expected) EXPECT_NEAR(seen[at++], x, 2e-7 + 1e-6 * std::abs(x));
}

TEST(GroupQueryAttention, GivesTheVectorsOfOnnxRuntime) {
  Node node;
  node.set(Node::real("scale", 0.25f));
  for (const cpu::Features& features : levels()) {
    const auto op = operator_of(node, features);
    Call prefill(1, 3, 0, 3);
    prefill.ctx.features = features;
    ASSERT_TRUE(prefill.run(*op).ok());
    EXPECT_EQ(prefill.shapes[0], (Shape{1, 3, 32}));
    EXPECT_EQ(prefill.shapes[1], (Shape{1, 1, 3, 16}));
    expect_near(prefill.y, 64, {-0.2686962f, 0.1063038f, -0.02531792f, 0.01021126f});
    expect_near(prefill.y, 80, {-0.1167216f, 0.2582784f, 0.05167999f, -0.1729667f});
    expect_near(prefill.present_key, 32, {-0.5162925f, 0.7733887f, -0.9821998f, -0.3791938f});
    expect_near(prefill.present_key, 40, {-0.3737539f, -0.6461383f, -0.3127036f, 0.3707588f});
    EXPECT_EQ(prefill.present_value, prefill.v);

    Call decode(1, 1, 2, 3);
    decode.ctx.features = features;
    ASSERT_TRUE(decode.run(*op).ok());
    expect_near(decode.y, 0, {-0.3836323f, -0.4052573f, -0.09405229f, 0.2171527f});
    expect_near(decode.y, 16, {-0.08468072f, -0.4316481f, -0.1554859f, 0.1206765f});
    expect_near(decode.present_key, 32, {0.6434712f, -0.4821088f, 0.1862968f, 0.880568f});
  }
}

TEST(GroupQueryAttention, AbsentScaleIsOneOverTheRootOfTheHeadSize) {
  Node written;
  written.set(Node::real("scale", 0.25f));  // of heads of 16
  Call with(1, 3, 0, 3), without(1, 3, 0, 3);
  ASSERT_TRUE(with.run(*operator_of(written)).ok());
  ASSERT_TRUE(without.run(*operator_of(Node())).ok());
  EXPECT_EQ(with.y, without.y);
}

TEST(GroupQueryAttention, SeparateBuffersCopyOldRowsAndClearTheRest) {
  const auto op = operator_of(Node());
  Call call(2, 1, 5, 7);
  call.lengths = {3, 5};  // past 3 and 5 of 5, present extent 7
  call.in[5].data = call.lengths.data();
  ASSERT_TRUE(call.run(*op).ok());
  for (size_t b = 0; b < 2; b++) {
    const size_t past = b == 0 ? 3 : 5;
    for (size_t i = 0; i < 7 * 16; i++) {
      const float key = call.present_key[b * 7 * 16 + i], value = call.present_value[b * 7 * 16 + i];
      if (i < past * 16) {
        EXPECT_EQ(key, call.past_key[b * 5 * 16 + i]);
        EXPECT_EQ(value, call.past_value[b * 5 * 16 + i]);
      } else if (i < (past + 1) * 16) {
        EXPECT_EQ(value, call.v[b * 16 + i - past * 16]);
      } else {
        EXPECT_EQ(key, 0);
        EXPECT_EQ(value, 0);
      }
    }
  }
  EXPECT_EQ(call.counters.cache_bytes_copied, (3 + 5) * 2 * 16 * sizeof(float));
  EXPECT_EQ(call.counters.bytes_copied, call.counters.cache_bytes_copied);
  EXPECT_EQ(call.counters.cache_bytes_appended, 2 * 2 * 16 * sizeof(float));
}

TEST(GroupQueryAttention, SharedBufferWritesNewRowsOnly) {
  const auto op = operator_of(Node());
  Call apart(1, 2, 9, 6), shared(1, 2, 9, 6);
  // Rows that are not valid yet may hold anything.
  for (Call* call : {&apart, &shared}) {
    std::fill(call->past_key.begin() + 4 * 16, call->past_key.end(), kNaN);
    std::fill(call->past_value.begin() + 4 * 16, call->past_value.end(), kNaN);
  }
  ASSERT_TRUE(apart.run(*op).ok());
  const auto before = shared.past_key;
  shared.out.resize(3);
  shared.out[1].data = shared.past_key.data();
  shared.out[2].data = shared.past_value.data();
  ASSERT_TRUE(shared.run(*op).ok());
  EXPECT_EQ(std::memcmp(apart.y.data(), shared.y.data(), apart.y.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(shared.past_key.data(), before.data(), 4 * 16 * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(shared.past_key.data() + 4 * 16, apart.present_key.data() + 4 * 16, 2 * 16 * sizeof(float)), 0);
  EXPECT_TRUE(std::isnan(shared.past_key[6 * 16]));
  EXPECT_EQ(shared.counters.bytes_copied, 0);
  EXPECT_EQ(shared.counters.cache_bytes_appended, 2 * 2 * 16 * sizeof(float));

  Call half(1, 2, 9, 6);
  half.out.resize(3);
  half.out[1].data = half.past_key.data();
  EXPECT_EQ(half.run(*op).error().code, Errc::bad_request);
  Call longer(1, 2, 5, 6);  // the same memory, but rows of another sequence would move
  longer.out.resize(3);
  longer.out[1].data = longer.past_key.data();
  longer.out[2].data = longer.past_value.data();
  EXPECT_EQ(longer.run(*op).error().code, Errc::bad_request);
}

TEST(GroupQueryAttention, OmittedPresentOutputsAndPackedAndStridedInputsGiveTheSameResult) {
  Node node;
  Call whole(2, 2, 4, 6);
  ASSERT_TRUE(whole.run(*operator_of(node)).ok());

  node.outputs = {true, false, false, false};
  Call omitted(2, 2, 4, 6);
  ASSERT_TRUE(omitted.run(*operator_of(node), 1).ok());
  EXPECT_EQ(omitted.y, whole.y);

  std::vector<float> packed;
  for (size_t row = 0; row < 4; row++) {
    packed.insert(packed.end(), whole.q.begin() + static_cast<long>(row) * 32,
                  whole.q.begin() + static_cast<long>(row + 1) * 32);
    packed.insert(packed.end(), whole.k.begin() + static_cast<long>(row) * 16,
                  whole.k.begin() + static_cast<long>(row + 1) * 16);
    packed.insert(packed.end(), whole.v.begin() + static_cast<long>(row) * 16,
                  whole.v.begin() + static_cast<long>(row + 1) * 16);
  }
  node = Node();
  const auto separate = operator_of(node);
  Call strided(2, 2, 4, 6);
  const int64_t offsets[] = {0, 32, 48};
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(separate->accepts_rows(i));
    auto& t = strided.in[static_cast<size_t>(i)];
    t.data = packed.data() + offsets[i];
    t.contiguous = false;
    t.layout = {1, 0, 64};
  }
  EXPECT_FALSE(separate->accepts_rows(3));
  ASSERT_TRUE(strided.run(*separate).ok());
  EXPECT_EQ(strided.y, whole.y);
  EXPECT_EQ(strided.present_key, whole.present_key);
  EXPECT_EQ(strided.present_value, whole.present_value);

  node.inputs[1].present = node.inputs[2].present = false;
  Call joined(2, 2, 4, 6);
  joined.in[0] = Call::tensor(packed, {2, 2, 64});
  joined.in[1] = joined.in[2] = Tensor();
  joined.in[1].present = joined.in[2].present = false;
  ASSERT_TRUE(joined.run(*operator_of(node)).ok());
  EXPECT_EQ(joined.y, whole.y);
  EXPECT_EQ(joined.present_value, whole.present_value);
}

TEST(GroupQueryAttention, ABoundCacheIsReadAndWrittenInPlace) {
  Node node;
  node.outputs = {true, false, false, false};
  const auto op = operator_of(node);
  for (DType type : kCacheTypes) {
    SCOPED_TRACE(std::string(dtype_name(type)));
    Call apart(1, 2, 9, 6), bound(1, 2, 9, 6);
    // The cache's own rows, of more rows than the tensor's and further apart.
    const int64_t stride = 16 + 8;
    std::vector<char> keys(static_cast<size_t>(9 * stride) * size_of(type), 55), values = keys;
    std::vector<float> key_scales(9, kNaN), value_scales(9, kNaN);
    for (size_t t = 0; t < 4; t++) {
      const auto keep = [&](std::vector<float>& from, std::vector<char>& to, std::vector<float>& scales) {
        char* row = to.data() + t * static_cast<size_t>(stride) * size_of(type);
        encode_row(type, from.data() + t * 16, 16, row, &scales[t]);
        for (size_t i = 0; i < 16; i++) {
          from[t * 16 + i] = static_cast<float>(decoded(type, row, static_cast<int64_t>(i), scales[t]));
        }
      };
      keep(apart.past_key, keys, key_scales);
      keep(apart.past_value, values, value_scales);
    }
    const KvView view{keys.data(),       values.data(),       type, 9 * stride, stride, 9,
                      key_scales.data(), value_scales.data(), 9};
    for (size_t i : {3, 4}) {
      bound.in[i].data = nullptr;
      bound.in[i].cache = &view;
    }
    ASSERT_TRUE(apart.run(*operator_of(Node())).ok());
    ASSERT_TRUE(bound.run(*op, 1).ok());
    // The new rows are rounded to the type: of two keys in six.
    const double tolerance = type == DType::f32 ? 0 : type == DType::f16 ? 1e-3 : 0.02;
    for (size_t i = 0; i < apart.y.size(); i++) ASSERT_NEAR(bound.y[i], apart.y[i], tolerance) << i;
    for (size_t t = 4; t < 6; t++) {
      char row[64];
      float scale = kNaN;
      encode_row(type, apart.present_key.data() + t * 16, 16, row, &scale);
      EXPECT_EQ(std::memcmp(row, keys.data() + t * static_cast<size_t>(stride) * size_of(type), 16 * size_of(type)), 0);
      if (type == DType::i8) {
        EXPECT_EQ(key_scales[t], scale);
      }
    }
    EXPECT_EQ(keys.back(), 55);
    EXPECT_EQ(keys[static_cast<size_t>(6 * stride) * size_of(type)], 55);
    EXPECT_EQ(bound.counters.bytes_copied, 0);

    const KvView other = view;
    KvView small = view;
    small.capacity = 8;
    const auto refused = [&](const std::function<void(Call&)>& change, size_t outputs = 1) {
      Call call(1, 2, 9, 6);
      for (size_t i : {3, 4}) {
        call.in[i].data = nullptr;
        call.in[i].cache = &view;
      }
      EXPECT_TRUE(call.resolve(*op, outputs).ok());
      call.bind(outputs);
      change(call);
      const auto kept = keys;
      const auto result = op->run(call.ctx, call.in, call.out);
      EXPECT_EQ(kept, keys);
      return !result.ok() && result.error().code == Errc::bad_request;
    };
    EXPECT_TRUE(refused([&](Call& c) { c.in[4].cache = &other; }));
    EXPECT_TRUE(refused([&](Call& c) { c.in[4].cache = nullptr; }));
    EXPECT_TRUE(refused([&](Call& c) { c.in[3].cache = c.in[4].cache = &small; }));
    EXPECT_TRUE(refused([&](Call& c) { c.total_input = 10; }));
    EXPECT_TRUE(refused([](Call&) {}, 2));
    EXPECT_TRUE(refused([](Call& c) {
      c.in[0].shape[0] = c.in[1].shape[0] = c.in[2].shape[0] = c.in[3].shape[0] = c.in[4].shape[0] = 2;
      c.lengths = {5, 5};
      c.in[5] = Call::tensor(c.lengths.data(), {2}, DType::i32);
    }));
  }
}

TEST(GroupQueryAttention, AddsBiasAndSink) {
  Node node;
  node.inputs.resize(12);
  node.inputs[10].present = node.inputs[11].present = true;
  const auto op = operator_of(node);
  const auto make = [](std::vector<float>& bias, std::vector<float>& sink, const Shape& shape) {
    Call call(1, 3, 4, 7);
    call.in.resize(12);
    call.in[9].present = false;
    call.in[10] = Call::tensor(bias, shape);
    call.in[11] = Call::tensor(sink, {2});
    return call.in;
  };
  // A bias of -infinity on all but the key before the last, and a sink of that key's score: half of its value is left.
  std::vector<float> bias(21, kLowest), sink{0, kLowest};
  for (size_t s = 0; s < 3; s++) bias[s * 7 + 2] = 0;
  Call call(1, 3, 4, 7);
  std::fill(call.q.begin(), call.q.end(), 0.0f);
  auto in = make(bias, sink, {1, 1, 3, 7});
  std::copy(call.in.begin(), call.in.end(), in.begin());
  call.in = in;
  ASSERT_TRUE(call.run(*op).ok());
  for (size_t i = 0; i < 16; i++) {
    EXPECT_NEAR(call.y[i], call.past_value[2 * 16 + i] / 2, 1e-7);
    EXPECT_NEAR(call.y[16 + i], call.past_value[2 * 16 + i], 1e-7);
  }
  const std::pair<Shape, Shape> refused[] = {{{1, 1, 3, 8}, {2}}, {{1, 1, 3, 6}, {2}},   {{3, 7}, {2}},
                                             {{2, 1, 3, 7}, {2}}, {{1, 3, 3, 7}, {2}},   {{1, 1, 7, 7}, {2}},
                                             {{1, 1, 3, 7}, {3}}, {{1, 1, 3, 7}, {1, 2}}};
  for (const auto& [bias_shape, sink_shape] : refused) {
    call.in[10].shape = bias_shape;
    call.in[11].shape = sink_shape;
    EXPECT_EQ(op->run(call.ctx, call.in, call.out).error().code, Errc::bad_request) << bias_shape.to_string();
  }
}

TEST(GroupQueryAttention, LengthsDecideWhatIsPastAndWhatIsVisible) {
  const auto op = operator_of(Node());
  // S == total: a prompt, whatever the past tensors hold.
  Call fresh(1, 3, 0, 3), restarted(1, 3, 8, 3);
  ASSERT_TRUE(fresh.run(*op).ok());
  ASSERT_TRUE(restarted.run(*op).ok());
  EXPECT_EQ(restarted.y, fresh.y);
  EXPECT_EQ(restarted.shapes[1], (Shape{1, 1, 8, 16}));
  EXPECT_EQ(restarted.counters.cache_bytes_copied, 0);
  // A mask wider than the ids: present grows to it.
  Call wide(1, 3, 0, 5);
  wide.lengths[0] = 2;
  ASSERT_TRUE(wide.run(*op).ok());
  EXPECT_EQ(wide.shapes[1], (Shape{1, 1, 5, 16}));
  EXPECT_EQ(wide.y, fresh.y);
  // Padding on the right: the padding query sees the valid keys; the others see what they did.
  Call padded(1, 3, 0, 3);
  padded.lengths[0] = 1;
  ASSERT_TRUE(padded.run(*op).ok());
  EXPECT_TRUE(std::equal(padded.y.begin(), padded.y.begin() + 64, fresh.y.begin()));
  EXPECT_NE(padded.y[64], fresh.y[64]);
  EXPECT_EQ(padded.present_key, fresh.present_key);
  // No sequence: empty outputs.
  Call none(0, 3, 0, 3);
  ASSERT_TRUE(none.run(*op).ok());
  EXPECT_EQ(none.shapes[0], (Shape{0, 3, 32}));
}

TEST(GroupQueryAttention, RefusesCallsThatBreakTheContractBeforeWriting) {
  const auto op = operator_of(Node());
  using Change = std::function<void(Call&)>;
  const std::pair<const char*, Change> cases[] = {
      {"query rank",
       [](Call& c) {
         c.in[0].shape = {2, 64};
       }},
      {"key rank",
       [](Call& c) {
         c.in[1].shape = {2, 16};
       }},
      {"value rank",
       [](Call& c) {
         c.in[2].shape = {2, 16};
       }},
      {"query width",
       [](Call& c) {
         c.in[0].shape = {1, 2, 31};
       }},
      {"head size 8 under rotation",
       [](Call& c) {
         c.in[0].shape = {1, 2, 16};
         c.in[1].shape = c.in[2].shape = {1, 2, 8};
       }},
      {"head size 0",
       [](Call& c) {
         c.in[0].shape = {1, 2, 0};
       }},
      {"key length",
       [](Call& c) {
         c.in[1].shape = c.in[2].shape = {1, 1, 16};
       }},
      {"key length 0",
       [](Call& c) {
         c.in[1].shape = c.in[2].shape = {1, 0, 16};
       }},
      {"no tokens",
       [](Call& c) {
         c.in[0].shape = {1, 0, 32};
         c.in[1].shape = c.in[2].shape = {1, 0, 16};
       }},
      {"past rank",
       [](Call& c) {
         c.in[3].shape = c.in[4].shape = {1, 4, 16};
       }},
      {"past heads",
       [](Call& c) {
         c.in[3].shape = c.in[4].shape = {1, 2, 2, 16};
       }},
      {"past head size",
       [](Call& c) {
         c.in[3].shape = c.in[4].shape = {1, 1, 8, 8};
       }},
      {"past batch",
       [](Call& c) {
         c.in[3].shape = c.in[4].shape = {2, 1, 2, 16};
       }},
      {"past extents",
       [](Call& c) {
         c.in[4].shape = {1, 1, 3, 16};
       }},
      {"lengths count", [](Call& c) { c.in[5].shape = {2}; }},
      {"total rank",
       [](Call& c) {
         c.in[6].shape = {1, 1};
       }},
      {"total count", [](Call& c) { c.in[6].shape = {2}; }},
      {"total zero", [](Call& c) { c.total = 0; }},
      {"total negative", [](Call& c) { c.total = -3; }},
      {"total beyond the tables", [](Call& c) { c.total = 65; }},
      {"tables differ",
       [](Call& c) {
         c.in[8].shape = {32, 8};
       }},
      {"tables rank", [](Call& c) { c.in[7].shape = c.in[8].shape = {512}; }},
      {"table width",
       [](Call& c) {
         c.in[7].shape = c.in[8].shape = {32, 16};
       }},
      {"table width 4",
       [](Call& c) {
         c.in[7].shape = c.in[8].shape = {128, 4};
       }},
      {"length negative", [](Call& c) { c.lengths[0] = -1; }},
      {"length at the capacity", [](Call& c) { c.lengths[0] = 6; }},
      {"length below the new tokens", [](Call& c) { c.lengths[0] = 0; }},
      {"past rows missing",
       [](Call& c) {
         c.in[3].shape = c.in[4].shape = {1, 1, 3, 16};
       }},
  };
  for (const auto& [name, change] : cases) {
    SCOPED_TRACE(name);
    Call call(1, 2, 4, 6);
    ASSERT_TRUE(call.resolve(*op).ok());
    call.bind();
    const auto y = call.y, key = call.present_key;
    change(call);
    call.total_input = static_cast<int32_t>(call.total);
    // Shapes are asked for first, but run() holds on its own.
    const auto resolved = call.resolve(*op);
    EXPECT_TRUE(resolved.ok() || resolved.error().code == Errc::bad_request);
    const auto result = op->run(call.ctx, call.in, call.out);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, Errc::bad_request) << result.error().message();
    EXPECT_EQ(result.error().where, "GroupQueryAttention node '/attn/GQA'");
    EXPECT_EQ(std::memcmp(y.data(), call.y.data(), y.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(key.data(), call.present_key.data(), key.size() * sizeof(float)), 0);
  }
}

TEST(GroupQueryAttention, RefusesLengthsThatOnlyTheirOwnLimitCatches) {
  const auto op = operator_of(Node());
  Call prompt(1, 3, 0, 3);  // three rows, so the last valid one is 2
  prompt.lengths[0] = 3;
  EXPECT_EQ(prompt.run(*op).error().code, Errc::bad_request);
  Call tables(1, 1, 70, 40);  // room for 70 rows, but tables for 64
  tables.lengths[0] = 64;
  EXPECT_EQ(tables.run(*op).error().code, Errc::bad_request);
  tables.lengths[0] = 63;
  EXPECT_TRUE(tables.run(*op).ok());
}

TEST(GroupQueryAttention, RefusesNodesItCannotRunByName) {
  using Change = std::function<void(Node&)>;
  const auto absent = [](int i) { return [i](Node& n) { n.inputs[static_cast<size_t>(i)].present = false; }; };
  const auto present = [](size_t i) {
    return [i](Node& n) {
      n.inputs.resize(i + 1);
      n.inputs[i].present = true;
    };
  };
  const auto with = [](std::string_view name, int64_t v) { return [=](Node& n) { n.set(Node::integer(name, v)); }; };
  const auto text = [](std::string_view name) { return [=](Node& n) { n.set(Node::text(name, "PER_TENSOR")); }; };
  const std::tuple<const char*, Errc, Change> cases[] = {
      {"num_heads", Errc::bad_model, [](Node& n) { n.attributes.erase(n.attributes.begin()); }},
      {"num_heads", Errc::bad_model, with("num_heads", 0)},
      {"kv_num_heads", Errc::bad_model, with("kv_num_heads", -1)},
      {"kv_num_heads", Errc::bad_model, with("kv_num_heads", 3)},
      {"scale", Errc::bad_model, [](Node& n) { n.set(Node::real("scale", kNaN)); }},
      {"softcap", Errc::bad_model, [](Node& n) { n.set(Node::real("softcap", -1)); }},
      {"local_window_size", Errc::bad_model, with("local_window_size", 0)},
      {"local_window_size", Errc::bad_model, with("local_window_size", -2)},
      {"do_rotary", Errc::bad_model, with("do_rotary", 2)},
      {"smooth_softmax", Errc::unsupported, with("smooth_softmax", 1)},
      {"qk_output", Errc::unsupported, with("qk_output", 1)},
      {"k_quant_type", Errc::unsupported, text("k_quant_type")},
      {"v_quant_type", Errc::unsupported, text("v_quant_type")},
      {"kv_cache_bit_width", Errc::unsupported, with("kv_cache_bit_width", 8)},
      {"causal", Errc::unsupported, with("causal", 0)},
      {"sliding_window_cache", Errc::unsupported, with("sliding_window_cache", 1)},
      {"surprise", Errc::unsupported, with("surprise", 1)},
      {"query", Errc::bad_model, absent(0)},
      {"key", Errc::bad_model, absent(1)},
      {"value", Errc::bad_model, absent(2)},
      {"past_key", Errc::bad_model, absent(3)},
      {"seqlens_k", Errc::bad_model, absent(5)},
      {"total_sequence_length", Errc::bad_model, absent(6)},
      {"cos_cache", Errc::bad_model, absent(8)},
      {"cos_cache", Errc::bad_model, [](Node& n) { n.inputs.resize(7); }},
      {"position_ids", Errc::unsupported, present(9)},
      {"k_scale", Errc::unsupported, present(12)},
      {"q_norm_weight", Errc::unsupported, present(14)},
      {"float16", Errc::unsupported, [](Node& n) { n.inputs[0].dtype = DType::f16; }},
      {"float16", Errc::unsupported,
       [](Node& n) {
         n.inputs.resize(12);
         n.inputs[11].present = true;
         n.inputs[11].dtype = DType::f16;
       }},
      {"int64", Errc::unsupported, [](Node& n) { n.inputs[5].dtype = DType::i64; }},
      {"output 3", Errc::unsupported, [](Node& n) { n.outputs[3] = true; }},
      {"output 0", Errc::bad_model, [](Node& n) { n.outputs[0] = false; }},
      {"cos_cache", Errc::bad_model,
       [](Node& n) {
         n.inputs[7].constant = n.inputs[8].constant = true;
         n.inputs[7].value.shape = n.inputs[8].value.shape = {64, 7};
       }},
  };
  for (const auto& [name, code, change] : cases) {
    Node node;
    change(node);
    const auto result = node.make(cpu::Features{});
    ASSERT_FALSE(result.ok()) << name;
    EXPECT_EQ(result.error().code, code) << result.error().message();
    EXPECT_NE(result.error().what.find(name), std::string::npos) << result.error().message();
    EXPECT_EQ(result.error().where, "GroupQueryAttention node '/attn/GQA'");
  }
}

TEST(GroupQueryAttention, SteadyCallsDoNotAllocate) {
  const auto op = operator_of(Node());
  for (int64_t tokens : {1, 5}) {
    Call call(1, tokens, 20, 20 + tokens);
    ASSERT_TRUE(call.run(*op).ok());
    const uint64_t before = heap_allocations;
    ASSERT_TRUE(call.resolve(*op).ok());
    ASSERT_TRUE(op->run(call.ctx, call.in, call.out).ok());
    EXPECT_EQ(heap_allocations, before);
  }
}

}  // namespace
}  // namespace quern::ops
