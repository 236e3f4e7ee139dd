// SPDX-License-Identifier: Apache-2.0
// Tests of this room: the reference against numbers of ONNX Runtime, hand-written ones and an independent form; every
// variant against the reference bit for bit; packing; the entries; the ONNX adapter. Above 600 lines because a room has
// one test file, and this room has four kinds of kernels, three entries and an adapter with some fifty refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/matmul_nbits/layout.h"
#include "ops/matmul_nbits/matmul_nbits.h"
#include "ops/matmul_nbits/test_support.h"
#include "ops/registry.h"
#include "tests/support/guard_page.h"
#include "tests/support/random.h"

namespace {
std::atomic<uint64_t> heap_allocations{0};
std::atomic<size_t> largest_heap_allocation{0};

void* counted_allocation(size_t bytes) {
  heap_allocations++;
  if (bytes > largest_heap_allocation) largest_heap_allocation = bytes;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  std::abort();
}
}  // namespace

void* operator new(size_t bytes) { return counted_allocation(bytes); }
void* operator new[](size_t bytes) { return counted_allocation(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace quern::ops {

using PrepareFunction = void(const NBitsRowsArgs&) noexcept;
using MultiplyFunction = void(const NBitsProductArgs&) noexcept;
#define QUERN_ROLE_quantize PrepareFunction
#define QUERN_ROLE_arrange PrepareFunction
#define QUERN_ROLE_product MultiplyFunction
#define QUERN_ROLE_float_product MultiplyFunction
#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa(QUERN_ROLE_##role symbol;)
#include "ops/matmul_nbits/kernels.inc"
#undef QUERN_KERNEL
#undef QUERN_ROLE_quantize
#undef QUERN_ROLE_arrange
#undef QUERN_ROLE_product
#undef QUERN_ROLE_float_product
Result<std::unique_ptr<Operator>> make_matmul_nbits(const NodeView& node, const PrepareContext& ctx);

namespace {

using nbits_test::Bench;
using nbits_test::features;
using nbits_test::first_columns;
using nbits_test::float_bytes;
using nbits_test::Form;
using nbits_test::forms;
using nbits_test::kBlocks;
using nbits_test::kF32;
using nbits_test::kInexactScale;
using nbits_test::kS8;
using nbits_test::near_independent;
using nbits_test::only;
using nbits_test::pack;
using nbits_test::panels_of;
using nbits_test::random_rows;
using nbits_test::random_weights;
using nbits_test::same_bits;
using nbits_test::same_values;
using nbits_test::usable_sets;
using nbits_test::Weights;
using nbits_test::with_inexact_column;
using support::GuardedArray;
using support::Random;

enum class Role { quantize, arrange, product, float_product };

struct TestVariant {
  cpu::Isa isa;
  std::string symbol;
  Role role;
  PrepareFunction* prepare = nullptr;
  MultiplyFunction* multiply = nullptr;

  TestVariant(cpu::Isa i, const char* s, Role r, PrepareFunction* f) : isa(i), symbol(s), role(r), prepare(f) {}
  TestVariant(cpu::Isa i, const char* s, Role r, MultiplyFunction* f) : isa(i), symbol(s), role(r), multiply(f) {}

  NBitsActivations activations() const { return role == Role::quantize || role == Role::product ? kS8 : kF32; }
};

void PrintTo(const TestVariant& v, std::ostream* out) { *out << v.symbol; }

std::vector<TestVariant> variants(std::initializer_list<Role> roles) {
  const std::vector<TestVariant> all = {
#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa(TestVariant(cpu::Isa::isa, #symbol, Role::role, &symbol), )
#include "ops/matmul_nbits/kernels.inc"
#undef QUERN_KERNEL
  };
  std::vector<TestVariant> wanted;
  std::ranges::copy_if(all, std::back_inserter(wanted),
                       [&](const TestVariant& v) { return std::ranges::find(roles, v.role) != roles.end(); });
  return wanted;
}

PrepareFunction* reference_prepare(NBitsActivations activations) {
  return activations == kS8 ? &quantize_rows_f32_s8_reference : &arrange_rows_f32_reference;
}
MultiplyFunction* reference_multiply(NBitsActivations activations) {
  return activations == kS8 ? &matmul_nbits_s8_reference : &matmul_nbits_f32_reference;
}

#define SKIP_IF_CPU_LACKS(isa) \
  if (!features().has(isa)) GTEST_SKIP() << "the CPU lacks " << cpu::isa_name(isa)

// A value at a byte offset of prepared rows or panels.
template <class T>
T read_at(const uint8_t* bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

std::string name_of(NBitsActivations activations) { return activations == kS8 ? "s8" : "f32"; }

// ---- the reference ----

// K = 40, N = 3, two rows: the specification's golden case. Expected values are ONNX Runtime 1.30.0's.
Weights golden_weights(bool zero_points) {
  Weights w({.zeros = zero_points ? NBitsZeros::u8 : NBitsZeros::none}, 40, 3);
  for (size_t n = 0; n < 3; n++) {
    for (size_t k = 0; k < 40; k++) w.q[n * 40 + k] = static_cast<uint8_t>((3 * k + 5 * n + 1) % 16);
    w.scales[n * 2] = 0.0625f * static_cast<float>(n + 1);
    w.scales[n * 2 + 1] = -0.03125f * static_cast<float>(n + 1);
    for (size_t b = 0; b < 2 && zero_points; b++) w.z[n * 2 + b] = static_cast<float>((4 + 3 * n + 5 * b) % 16);
  }
  w.encode();
  return w;
}

std::vector<float> golden_rows() {
  std::vector<float> x;
  for (int k = 0; k < 40; k++) x.push_back(static_cast<float>((7 * k) % 11 - 5) / 4);
  for (int k = 0; k < 40; k++) x.push_back(static_cast<float>((5 * k) % 13 - 6) / 8);
  return x;
}

TEST(MatMulNBitsGolden, FileBytesAreThoseOfTheSpecification) {
  const Weights w = golden_weights(true);
  const std::vector<uint8_t> row0(w.code_bytes.begin(), w.code_bytes.begin() + 8);
  const std::vector<uint8_t> row1(w.code_bytes.begin() + 32, w.code_bytes.begin() + 36);
  EXPECT_EQ(row0, (std::vector<uint8_t>{65, 167, 13, 99, 201, 47, 133, 235}));
  EXPECT_EQ(row1, (std::vector<uint8_t>{150, 252, 82, 184}));
  EXPECT_EQ(w.zero_bytes, (std::vector<uint8_t>{148, 199, 250}));
}

TEST(MatMulNBitsGolden, ResultsAreThoseOfOnnxRuntime) {
  struct Golden {
    bool zero_points;
    NBitsActivations activations;
    float y[6];
  };
  const Golden goldens[] = {
      {false, kF32, {2.335938f, -2.5f, 3.117188f, 0.65625f, -1.578125f, -1.828125f}},
      {false, kS8, {2.321912f, -2.496924f, 3.15668f, 0.6577264f, -1.580094f, -1.832554f}},
      {true, kF32, {2.40625f, -2.40625f, 3.1875f, 0.6328125f, -1.765625f, -2.320312f}},
      {true, kS8, {2.391425f, -2.40219f, 3.232345f, 0.6342889f, -1.767594f, -2.324741f}},
  };
  for (const Golden& golden : goldens) {
    for (const cpu::Isa isa : usable_sets()) {
      const Weights weights = golden_weights(golden.zero_points);
      for (const Weights& w : {weights, with_inexact_column(weights)}) {
        const auto y =
            first_columns(Bench(1, only(isa)).product(pack(w), golden_rows(), golden.activations), w.n, weights.n);
        for (size_t i = 0; i < 6; i++) {
          EXPECT_NEAR(y[i], golden.y[i], 1e-6f * 4)
              << cpu::isa_name(isa) << " " << name_of(golden.activations) << " " << golden.zero_points << " " << i;
        }
      }
    }
  }
}

TEST(MatMulNBitsReference, QuantizesTheGoldenRow) {
  const auto x = golden_rows();
  std::vector<uint8_t> out(2 * 40);
  quantize_rows_f32_s8_reference({x.data(), 1, 40, 32, 4, out.data()});
  const int expected[12] = {-127, 51, -51, 127, 25, -76, 102, 0, -102, 76, -25, -127};
  for (size_t i = 0; i < 12; i++) EXPECT_EQ(static_cast<int8_t>(out[i]), expected[i]) << i;
  for (size_t i = 8; i < 32; i++) EXPECT_EQ(out[40 + i], 0) << "past the end of the row, " << i;
  EXPECT_EQ(read_at<float>(out.data(), 36), 1.25f / 127.0f);
}

TEST(MatMulNBitsReference, RowsOfATileLieSideBySide) {
  // Rows 0 to 3 in one tile, row 4 alone; K = 20 in blocks of 16. Row r's largest element is 127 (r + 1), so that its
  // codes are its elements divided by r + 1.
  const int64_t k = 20, rows = 5;
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (size_t r = 0; r < 5; r++) {
    x[r * 20] = 127.0f * static_cast<float>(r + 1);
    x[r * 20 + 16] = -127.0f * static_cast<float>(r + 1);
    x[r * 20 + 17] = static_cast<float>((r + 1) * 10);
  }
  std::vector<uint8_t> s8(5 * 2 * (16 + 8));
  quantize_rows_f32_s8_reference({x.data(), rows, k, 16, 4, s8.data()});
  constexpr int64_t kTileBlock = 4 * 24;  // codes of 4 rows, then corrections, then scales
  for (int64_t r = 0; r < 4; r++) {
    EXPECT_EQ(static_cast<int8_t>(s8[static_cast<size_t>(r * 16)]), 127);
    EXPECT_EQ(static_cast<int8_t>(s8[static_cast<size_t>(kTileBlock + r * 16)]), -127);
    EXPECT_EQ(static_cast<int8_t>(s8[static_cast<size_t>(kTileBlock + r * 16 + 1)]), 10);
    EXPECT_EQ(read_at<int32_t>(s8.data(), 64 + r * 4), -8 * 127);
    EXPECT_EQ(read_at<int32_t>(s8.data(), kTileBlock + 64 + r * 4), -8 * (10 - 127));
    EXPECT_EQ(read_at<float>(s8.data(), kTileBlock + 80 + r * 4), static_cast<float>(r + 1));
  }
  EXPECT_EQ(static_cast<int8_t>(s8[2 * kTileBlock]), 127);
  EXPECT_EQ(read_at<int32_t>(s8.data(), 2 * kTileBlock + 16), -8 * 127);
  EXPECT_EQ(read_at<float>(s8.data(), 2 * kTileBlock + 20), 5.0f);

  // f32, blocks of 64: two chunks of 32, then the sums. Two rows.
  std::vector<float> long_rows(2 * 64, 0.0f);
  for (size_t i = 0; i < 64; i++) long_rows[i] = static_cast<float>(i + 1) * 0x1p28f;
  long_rows[64 + 33] = 3.0f * 0x1p28f;
  for (const int64_t bits : {4, 8}) {
    std::vector<uint8_t> f32(2 * 65 * 4);
    arrange_rows_f32_reference({long_rows.data(), 2, 64, 64, bits, f32.data()});
    const auto element = [&](int64_t i) { return read_at<float>(f32.data(), i * 4); };
    // The position of code k in its lane, less 12 from 20 on (4 bits) or 16 from 16 on (8 bits).
    const int shift4[8] = {0, 8, 16, 12, 4, 12, 8, 16}, shift8[4] = {0, 8, 0, 8};
    for (int64_t i = 0; i < 64; i++) {
      const int shift = bits == 4 ? shift4[i % 8] : shift8[i % 4];
      const int64_t at = i < 32 ? i : 64 + i - 32;
      EXPECT_EQ(element(at), std::ldexp(long_rows[static_cast<size_t>(i)], -shift)) << bits << " " << i;
    }
    EXPECT_EQ(element(32), 0.0f);
    EXPECT_EQ(element(96 + 1), std::ldexp(3.0f * 0x1p28f, -8));
    EXPECT_EQ(element(128), 64.0f * 65.0f / 2 * 0x1p28f);
    EXPECT_EQ(element(129), 3.0f * 0x1p28f);
  }
}

TEST(MatMulNBitsReference, RoundsTiesToEven) {
  // The largest element is 127, so inv is 1 and the elements are their own products.
  const float x[32] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, 125.5f, 0.49999997f, 2.4999998f, -127};
  const int expected[12] = {127, 0, 2, 2, 0, -2, -2, 126, 126, 0, 2, -127};
  for (const TestVariant& v : variants({Role::quantize})) {
    if (!features().has(v.isa)) continue;
    std::vector<uint8_t> out(40);
    v.prepare({x, 1, 32, 32, 4, out.data()});
    int32_t sum = 0;
    for (size_t i = 0; i < 12; i++) {
      EXPECT_EQ(static_cast<int8_t>(out[i]), expected[i]) << v.symbol << " " << i;
      sum += expected[i];
    }
    EXPECT_EQ(read_at<int32_t>(out.data(), 32), -8 * sum) << v.symbol;
  }
}

TEST(MatMulNBitsReference, MultipliesByTheRoundedInverse) {
  // Elements half-way between codes, where dividing by the scale or multiplying by its inverse gives other codes.
  Random random(10);
  int told_apart = 0;
  for (int i = 0; i < 2000; i++) {
    const float amax = random.uniform(0.5f, 50.0f);
    const float inverse = 127.0f / amax;
    float x[32] = {amax};
    for (int j = 1; j < 32; j++) x[j] = (static_cast<float>(random.below(127)) + 0.5f) / inverse;
    const float scale = amax / 127.0f;
    for (const TestVariant& v : variants({Role::quantize})) {
      if (!features().has(v.isa)) continue;
      std::vector<uint8_t> out(40);
      v.prepare({x, 1, 32, 32, 4, out.data()});
      for (size_t j = 1; j < 32; j++) {
        ASSERT_EQ(static_cast<int8_t>(out[j]), std::lrint(x[j] * inverse)) << v.symbol << " " << x[j] << " of " << amax;
        told_apart += out[j] != std::lrint(x[j] / scale) || out[j] != std::lrint(x[j] * (1.0f / scale));
      }
    }
  }
  EXPECT_GT(told_apart, 100);
}

TEST(MatMulNBitsReference, AgreesWithTheIndependentForm) {
  Random random(11);
  for (const NBitsActivations activations : {kS8, kF32}) {
    for (Form form : forms(activations)) {
      for (const NBitsFloat type : {NBitsFloat::f32, NBitsFloat::f16}) {
        form.type = type;
        for (const int64_t k : {int64_t{1}, form.block - 1, form.block + 1, 3 * form.block, int64_t{300}}) {
          const int64_t n = 17;
          const Weights w = random_weights(random, form, k, n);
          auto x = random_rows(random, 3, k);
          for (int64_t i = k; i < 2 * k; i++) x[static_cast<size_t>(i)] *= 1000;
          const auto y = Bench(1, only(cpu::Isa::scalar)).product(pack(w), x, activations);
          for (int64_t m = 0; m < 3; m++) {
            EXPECT_TRUE(near_independent(w, x.data() + m * k, std::span(y).subspan(static_cast<size_t>(m * n), 17),
                                         activations))
                << name_of(activations) << ", " << form << ", k " << k << ", row " << m;
          }
        }
      }
    }
  }
}

TEST(MatMulNBitsReference, EveryCodeAndZeroPointDecodes) {
  // Rows with a single element of 127, which is its own int8 code: y is 127 (q - z) scale, exact for these scales. The
  // columns have all codes at each k and all zero points in each block, between them.
  for (const int64_t bits : {4, 8}) {
    for (const NBitsZeros zeros : {NBitsZeros::none, NBitsZeros::u8}) {
      const int64_t k = 64, n = bits == 4 ? 20 : 257;
      Weights w({.bits = bits, .block = 32, .zeros = zeros}, k, n);
      const int codes = w.form.codes();
      for (int64_t c = 0; c < n; c++) {
        for (int64_t i = 0; i < k; i++) w.q[static_cast<size_t>(c * k + i)] = static_cast<uint8_t>((i * 7 + c) % codes);
      }
      for (size_t i = 0; i < w.z.size(); i++)
        w.z[i] = static_cast<float>((i / 2 * 3 + i % 2) % static_cast<size_t>(codes));
      for (size_t i = 0; i < w.scales.size(); i++) w.scales[i] = i % 2 == 0 ? 0.25f : -0.5f;
      w.encode(9);
      std::vector<float> x(static_cast<size_t>(k * k));
      for (int64_t i = 0; i < k; i++) x[static_cast<size_t>(i * k + i)] = 127;
      for (const NBitsActivations activations : {kS8, kF32}) {
        for (const cpu::Isa isa : usable_sets()) {
          const auto y = Bench(1, only(isa)).product(pack(w), x, activations);
          for (int64_t i = 0; i < k; i++) {
            for (int64_t c = 0; c < n; c++) {
              const float expected =
                  127.0f * (static_cast<float>(w.code(c, i)) - w.zero(c, i / 32)) * w.scale(c, i / 32);
              ASSERT_EQ(y[static_cast<size_t>(i * n + c)], expected) << cpu::isa_name(isa) << " " << i << " " << c;
            }
          }
        }
      }
    }
  }
}

// ---- every variant ----

// Those that are held against the reference, and all that multiply.
class PrepareVariant : public ::testing::TestWithParam<TestVariant> {};
class ProductVariant : public ::testing::TestWithParam<TestVariant> {};
class AnyProduct : public ::testing::TestWithParam<TestVariant> {};

std::vector<TestVariant> but_the_reference(std::vector<TestVariant> all) {
  std::erase_if(all, [](const TestVariant& v) { return v.isa == cpu::Isa::scalar; });
  return all;
}

std::string test_name(const ::testing::TestParamInfo<TestVariant>& info) { return info.param.symbol; }
INSTANTIATE_TEST_SUITE_P(MatMulNBits, PrepareVariant,
                         ::testing::ValuesIn(but_the_reference(variants({Role::quantize, Role::arrange}))), test_name);
INSTANTIATE_TEST_SUITE_P(MatMulNBits, ProductVariant,
                         ::testing::ValuesIn(but_the_reference(variants({Role::product, Role::float_product}))),
                         test_name);
INSTANTIATE_TEST_SUITE_P(MatMulNBits, AnyProduct, ::testing::ValuesIn(variants({Role::product, Role::float_product})),
                         test_name);

// Rows with ordinary numbers, and now and then a block that is zero, tiny, huge, not finite, or of one large element.
void fill_awkward(Random& random, std::span<float> x, int64_t k, int64_t block_size) {
  const float specials[] = {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(),
                            -0.0f,
                            1e-38f,
                            3.7e-37f,
                            3.8e-37f,
                            1e30f};
  random.fill_normal(x);
  const int64_t rows = static_cast<int64_t>(x.size()) / std::max<int64_t>(k, 1);
  for (int64_t m = 0; m < rows; m++) {
    for (int64_t begin = 0; begin < k; begin += block_size) {
      const auto block =
          x.subspan(static_cast<size_t>(m * k + begin), static_cast<size_t>(std::min(block_size, k - begin)));
      switch (random.below(8)) {
        case 0: std::ranges::fill(block, 0.0f); break;
        case 1:
          for (float& v : block) v *= 1e-38f;
          break;
        case 2:
          for (float& v : block) v *= 1e35f;
          break;
        case 3:
          block[static_cast<size_t>(random.below(static_cast<int64_t>(block.size())))] =
              specials[random.below(static_cast<int64_t>(std::size(specials)))];
          break;
        default: break;
      }
    }
  }
}

size_t rows_bytes(int64_t rows, NBitsActivations activations, int64_t k, int64_t block) {
  return *nbits_rows_bytes(rows, {activations, k, block, 4});
}

TEST_P(PrepareVariant, WritesTheBytesOfTheReference) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(3);
  for (const int64_t bits : {4, 8}) {
    if (v.role == Role::quantize && bits == 8) continue;  // does not depend on it
    for (const int64_t block : kBlocks) {
      for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{31}, int64_t{33},
                              block - 1, block, block + 1, 2 * block, 3 * block - 7, 5 * block + 19}) {
        for (const int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 9}) {
          GuardedArray<float> x(static_cast<size_t>(rows * k));
          fill_awkward(random, x.span(), k, block);
          const size_t bytes = rows_bytes(rows, v.activations(), k, block);
          GuardedArray<uint8_t> seen(bytes), expected(bytes);
          std::ranges::fill(seen, uint8_t{0xaa});
          v.prepare({x.data(), rows, k, block, bits, seen.data()});
          reference_prepare(v.activations())({x.data(), rows, k, block, bits, expected.data()});
          ASSERT_TRUE(same_bits(seen, expected))
              << bits << " bits, block " << block << ", k " << k << ", rows " << rows;
        }
      }
    }
  }
}

// One product of random weights and rows; all memory ends at guard pages.
void check_product(const TestVariant& v, Random& random, const Form& form, int64_t rows, int64_t n, int64_t k) {
  SCOPED_TRACE(::testing::Message() << form << ": M " << rows << " N " << n << " K " << k);
  const PackedWeights packed = pack(random_weights(random, form, k, n));
  GuardedArray<uint8_t> weights(packed.bytes());
  std::memcpy(weights.data(), panels_of(packed), packed.bytes());
  const auto x = random_rows(random, rows, k);
  GuardedArray<uint8_t> prepared(rows_bytes(rows, v.activations(), k, form.block));
  reference_prepare(v.activations())({x.data(), rows, k, form.block, form.bits, prepared.data()});
  // Between the rows of y lie 3 floats that are nobody's.
  const int64_t stride = n + 3;
  const size_t floats = static_cast<size_t>(rows * stride - 3);
  GuardedArray<float> seen(floats), expected(floats);
  std::ranges::fill(seen, 77.0f);
  std::ranges::fill(expected, 77.0f);
  NBitsProductArgs args{packed.view(0, packed.panels()), prepared.data(), seen.data(), stride, rows};
  args.weights.data = weights.data();
  v.multiply(args);
  args.y = expected.data();
  reference_multiply(v.activations())(args);
  ASSERT_TRUE(same_bits(seen, expected));
}

TEST_P(ProductVariant, GivesTheBitsOfTheReference) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(5);
  int64_t turn = 0;
  for (const Form& form : forms(v.activations())) {
    // One to five blocks, with and without a tail; the form's own turn decides which of them meets which rows and
    // columns.
    const std::array<int64_t, 7> depths = {
        1, form.block - 1, form.block, form.block + 1, 2 * form.block, 3 * form.block - 5, 4 * form.block + 17};
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9}) {
      for (const int64_t n : {1, 7, 15, 16, 17, 33, 48, 63, 64, 65, 81, 127, 144}) {
        if (n > 65 && form.block == 256 && rows > 2) continue;
        check_product(v, random, form, rows, n, depths[static_cast<size_t>(turn++) % depths.size()]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(ProductVariant, GivesTheBitsOfTheReferenceAtModelSizes) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(6);
  const NBitsZeros none = NBitsZeros::none;
  const std::vector<Form> all = {{4, 32, none, true},
                                 {4, 32, none, false},
                                 {4, 128, NBitsZeros::u8, true},
                                 {8, 32, none, true},
                                 {8, 128, NBitsZeros::u8, false}};
  for (const Form& form : all) {
    for (const int64_t rows : {1, 4, 6}) check_product(v, random, form, rows, 272, 1024);
    check_product(v, random, form, 1, 528, 3072);
  }
  check_product(v, random, all[0], 128, 48, 2048);
  check_product(v, random, all[0], 1, 151936, 32);
}

TEST_P(AnyProduct, ExtremeCodesNeitherOverflowNorSaturate) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  for (const int64_t bits : {4, 8}) {
    for (const int64_t block : {int64_t{32}, int64_t{256}}) {
      const int highest = (1 << bits) - 1, middle = 1 << (bits - 1);
      for (const int q : {0, highest}) {
        for (const int zero : {0, middle, highest}) {
          Weights w({.bits = bits, .block = block, .zeros = zero == middle ? NBitsZeros::none : NBitsZeros::u8},
                    2 * block, 16);
          std::ranges::fill(w.q, static_cast<uint8_t>(q));
          std::ranges::fill(w.z, static_cast<float>(zero));
          w.encode();
          for (const float value : {127.0f, -127.0f}) {
            for (const int64_t rows : {1, 4, 5}) {
              const std::vector<float> x(static_cast<size_t>(2 * block * rows), value);
              const auto y = Bench(1, only(v.isa)).product(pack(w), x, v.activations());
              // Integers below 2^24 in every step.
              const float expected = 2 * value * static_cast<float>(block * (q - zero));
              for (const float seen : y) ASSERT_EQ(seen, expected) << bits << " " << block << " " << q << " " << zero;
            }
          }
        }
      }
    }
  }
}

TEST_P(ProductVariant, SpecialScalesGiveTheBitsOfTheReference) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(8);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float any[] = {0.0f, -0.0f, 1e-40f, -1e-44f, 1e-30f, 3e38f, kInf};
  const float bf16[] = {0.0f, -0.0f, 0x1p-133f, -0x1p-130f, 0x1p-100f, 0x1.fep127f, -kInf};
  for (const bool exact : {false, true}) {
    for (const int64_t rows : {1, 4}) {
      Weights w = random_weights(random, {.exact = exact}, 96, 40);
      for (float& s : w.scales) s = (exact ? bf16 : any)[random.below(7)];
      w.scales[0] = exact ? 1.0f : 0.1f;
      w.encode();
      const auto x = random_rows(random, rows, 96);
      const PackedWeights packed = pack(w);
      ASSERT_EQ(packed.form().bf16_scales, exact);
      EXPECT_TRUE(same_values(Bench(1, only(v.isa)).product(packed, x, v.activations()),
                              Bench(1, only(cpu::Isa::scalar)).product(packed, x, v.activations())));
    }
  }
}

TEST_P(ProductVariant, AwkwardRowsGiveTheValuesOfTheReference) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(9);
  for (const Form& form : {Form{4, 32, NBitsZeros::none, true}, Form{4, 64, NBitsZeros::u8},
                           Form{8, 16, NBitsZeros::u8, true}, Form{8, 128, NBitsZeros::none}}) {
    for (const int64_t rows : {1, 2, 7}) {
      const int64_t k = 3 * form.block + 9;
      const PackedWeights packed = pack(random_weights(random, form, k, 35));
      std::vector<float> x(static_cast<size_t>(rows * k));
      fill_awkward(random, x, k, form.block);
      EXPECT_TRUE(same_values(Bench(1, only(v.isa)).product(packed, x, v.activations()),
                              Bench(1, only(cpu::Isa::scalar)).product(packed, x, v.activations())))
          << form << ", rows " << rows;
    }
  }
}

// ---- packing ----

TEST(MatMulNBitsPack, BytesLieAsDocumented) {
  // 17 columns, so that the second panel has one; 3 blocks of 16, so that the last has no partner.
  Random random(12);
  for (const int64_t bits : {4, 8}) {
    for (const bool exact : {false, true}) {
      for (const NBitsZeros zeros : {NBitsZeros::none, NBitsZeros::u8, NBitsZeros::f32}) {
        const Weights w = random_weights(random, {bits, 16, zeros, exact}, 40, 17);
        const PackedWeights packed = pack(w);
        ASSERT_EQ(packed.form().bf16_scales, exact);
        const int64_t codes = 16 * 16 * bits / 8;  // bytes of a block of codes in a panel
        // Line by line: where the codes of the three blocks, their scales and their zero points begin.
        const bool u8 = zeros == NBitsZeros::u8, f32 = zeros == NBitsZeros::f32;
        int64_t codes_at[3], scales_at[3], zeros_at[3], bytes = 0;
        for (int64_t b = 0; b < 3; b++) {
          if (f32 || (u8 && b == 0)) bytes += 64;
          zeros_at[b] = u8 ? b * 16 : bytes - 64;
          codes_at[b] = bytes;
          bytes += codes;
          scales_at[b] = exact && b == 1 ? scales_at[0] : bytes;
          if (!(exact && b == 1)) bytes += 64;
        }
        ASSERT_EQ(packed.bytes(), static_cast<size_t>(2 * bytes));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(panels_of(packed)) % 64, 0u);
        for (const int64_t column : {0, 5, 15, 16}) {
          const uint8_t* panel = panels_of(packed) + column / 16 * bytes;
          const int64_t c = column % 16;
          for (int64_t b = 0; b < 3; b++) {
            for (int64_t i = 0; i < 16 && b * 16 + i < 40; i++) {
              int seen = panel[codes_at[b] + i / (32 / bits) * 64 + c * 4 + i % 4];
              if (bits == 4) seen = i % 8 < 4 ? seen & 15 : seen >> 4;
              EXPECT_EQ(seen, w.code(column, b * 16 + i));
            }
            if (exact) {
              const auto half = read_at<uint16_t>(panel, scales_at[b] + c * 4 + b % 2 * 2);
              EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(half) << 16), w.scale(column, b));
            } else {
              EXPECT_EQ(read_at<float>(panel, scales_at[b] + c * 4), w.scale(column, b));
            }
            if (u8) {
              EXPECT_EQ(panel[zeros_at[b] + c], w.zero(column, b));
            }
            if (f32) {
              EXPECT_EQ(read_at<float>(panel, zeros_at[b] + c * 4), w.zero(column, b));
            }
          }
        }
        // Columns that nobody has.
        const uint8_t* last = panels_of(packed) + bytes;
        for (int64_t i = 0; i < bytes; i++) {
          const bool zero_line = u8 && i < 64;
          if (zero_line ? i % 16 >= 1 : i % 64 >= 4) {
            ASSERT_EQ(last[i], 0) << i;
          }
        }
      }
    }
  }
}

TEST(MatMulNBitsPack, CompactScalesChangeNoResult) {
  Random random(13);
  for (const NBitsActivations activations : {kS8, kF32}) {
    for (Form form : forms(activations)) {
      if (!form.exact) continue;
      for (const NBitsFloat type : {NBitsFloat::f32, NBitsFloat::f16}) {
        form.type = type;
        for (const int64_t blocks : {1, 2, 5}) {
          const int64_t k = blocks * form.block - 3;
          const Weights w = random_weights(random, form, k, 50);
          const PackedWeights compact = pack(w), full = pack(with_inexact_column(w));
          EXPECT_EQ(compact.form().bf16_scales, blocks > 1) << form;  // alone, a block's half line saves nothing
          EXPECT_FALSE(full.form().bf16_scales);
          const size_t lines = static_cast<size_t>(compact.panels() * (blocks / 2)) * 64;
          EXPECT_EQ(full.bytes() - compact.bytes(), lines) << form;
          for (const int64_t rows : {1, 6}) {
            const auto x = random_rows(random, rows, k);
            Bench bench;
            EXPECT_TRUE(same_bits(bench.product(compact, x, activations),
                                  first_columns(bench.product(full, x, activations), w.n + 1, w.n)))
                << name_of(activations) << ", " << form << ", k " << k << ", rows " << rows;
          }
        }
      }
    }
  }
}

TEST(MatMulNBitsPack, CompactScalesTakeNineTenthsOfTheBytes) {
  Random random(14);
  Weights w = random_weights(random, {.exact = true}, 1024, 64);
  EXPECT_EQ(pack(w).bytes() * 20, w.serialized_bytes() * 18);
  w.scales.back() = kInexactScale;
  w.encode();
  EXPECT_EQ(pack(w).bytes(), w.serialized_bytes());
}

TEST(MatMulNBitsPack, OneInexactScaleKeepsAllOfThem) {
  Random random(15);
  for (const NBitsFloat type : {NBitsFloat::f32, NBitsFloat::f16}) {
    const Weights exact = random_weights(random, {.exact = true, .type = type}, 640, 5000);
    ASSERT_TRUE(pack(exact).form().bf16_scales);
    for (const size_t i : {size_t{0}, exact.scales.size() / 2, exact.scales.size() - 1}) {
      Weights w = exact;
      w.scales[i] = type == NBitsFloat::f32 ? std::nextafter(1.0f, 2.0f) : kInexactScale;
      w.encode();
      EXPECT_FALSE(pack(w, 2).form().bf16_scales) << i;
    }
  }
}

TEST(MatMulNBitsPack, PaddingHasNoInfluence) {
  Random random(16);
  for (const NBitsActivations activations : {kS8, kF32}) {
    for (const Form& form : forms(activations)) {
      // 3 blocks: the last zero-point nibble of a column is padding too.
      Weights w = random_weights(random, form, 2 * form.block + 6, 19);
      const auto x = random_rows(random, 2, w.k);
      w.encode(0);
      const auto clean = Bench().product(pack(w), x, activations);
      w.encode(form.codes() - 1);
      EXPECT_TRUE(same_bits(clean, Bench().product(pack(w), x, activations))) << form;
    }
  }
}

TEST(MatMulNBitsPack, GivesSourceBackInSteps) {
  Random random(30);
  for (const Form& form : {Form{4, 32, NBitsZeros::u8}, Form{8, 64, NBitsZeros::f32, true}}) {
    const Weights w = random_weights(random, form, 1024, form.bits == 4 ? 40000 : 20000);  // 20 MB of codes
    cpu::Pool pool(2);
    std::vector<uint8_t> dropped(w.code_bytes.size());
    size_t bytes = 0, largest = 0;
    PackMatMulNBitsArgs args = w.args();
    args.drop_source = [&](std::span<const std::byte> part) {
      bytes += part.size();
      largest = std::max(largest, part.size());
      const std::ptrdiff_t offset = part.data() - args.codes.data();
      if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(dropped.size())) return;
      for (size_t i = 0; i < part.size(); i++) dropped[static_cast<size_t>(offset) + i]++;
    };
    ASSERT_TRUE(pack_matmul_nbits(pool, args).ok());
    EXPECT_EQ(bytes, w.serialized_bytes());
    EXPECT_LE(largest, static_cast<size_t>(8 << 20));
    EXPECT_TRUE(std::ranges::all_of(dropped, [](uint8_t times) { return times == 1; }));
  }
}

TEST(MatMulNBitsPack, UnalignedSourcePacksTheSame) {
  Random random(31);
  for (const Form& form : {Form{4, 32, NBitsZeros::u8}, Form{8, 16, NBitsZeros::f32},
                           Form{4, 32, NBitsZeros::f32, true, NBitsFloat::f16}}) {
    const Weights w = random_weights(random, form, 96, 18);
    PackMatMulNBitsArgs args = w.args();
    std::vector<std::byte> copy(1);
    const auto moved = [&](std::span<const std::byte> bytes) {
      copy.insert(copy.end(), bytes.begin(), bytes.end());
      return bytes.size();
    };
    copy.reserve(1 + w.serialized_bytes());
    for (auto* part : {&args.codes, &args.scales, &args.zero_points}) {
      const size_t at = copy.size();
      const size_t size = moved(*part);
      *part = std::span<const std::byte>(copy.data() + at, size);
    }
    ASSERT_NE(reinterpret_cast<uintptr_t>(args.scales.data()) % 2, 0u);
    cpu::Pool pool(1);
    const auto packed = pack_matmul_nbits(pool, args);
    ASSERT_TRUE(packed.ok());
    const PackedWeights expected = pack(w);
    EXPECT_EQ(std::memcmp(panels_of(*packed), panels_of(expected), expected.bytes()), 0) << form;
  }
}

TEST(MatMulNBitsPack, SizesThatDoNotFitAreRefused) {
  Random random(32);
  const Weights w = random_weights(random, {.zeros = NBitsZeros::u8}, 70, 5);
  cpu::Pool pool(1);
  const auto refused = [&](auto change) {
    PackMatMulNBitsArgs args = w.args();
    args.where = "here";
    change(args);
    const auto packed = pack_matmul_nbits(pool, args);
    return !packed.ok() && packed.error().code == Errc::bad_model && packed.error().where == "here";
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(refused([](PackMatMulNBitsArgs&) {}));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.k = 0; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.n = -1; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.k = kHuge - 32; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.n = kHuge; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.k = a.form.n = int64_t{1} << 40; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.bits = 8; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.block = 16; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.zeros = NBitsZeros::f32; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.form.zeros = NBitsZeros::none; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.float_type = NBitsFloat::f16; }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.codes = a.codes.first(a.codes.size() - 1); }));
  EXPECT_TRUE(refused([](PackMatMulNBitsArgs& a) { a.zero_points = a.zero_points.first(a.zero_points.size() - 1); }));
}

// The specification's bound on what a preparation may take.
TEST(MatMulNBitsPack, PackedBytesStayWithinAQuarterMore) {
  Random random(33);
  for (const NBitsFloat type : {NBitsFloat::f32, NBitsFloat::f16}) {
    for (Form form : forms(kF32)) {
      form.type = type;
      // Two bytes become four in each block of 16, twice.
      const bool known = form.block == 16 && form.bits == 4 && type == NBitsFloat::f16 && form.zeros == NBitsZeros::f32;
      const Weights w = random_weights(random, form, 8 * form.block, 64);
      EXPECT_LE(static_cast<double>(pack(w).bytes()), (known ? 1.34 : 1.25) * static_cast<double>(w.serialized_bytes()))
          << form;
    }
  }
}

// ---- the entries ----

// Forms that the tests of entries and threads go through, so that each kind of zero points and scales is among them.
struct Case {
  NBitsActivations activations;
  Form form;
};
const Case kCases[] = {
    {kS8, {4, 32, NBitsZeros::none, true}}, {kS8, {4, 32, NBitsZeros::u8}},          {kS8, {8, 128, NBitsZeros::none}},
    {kS8, {8, 64, NBitsZeros::u8, true}},   {kF32, {4, 32, NBitsZeros::none, true}}, {kF32, {4, 128, NBitsZeros::f32}},
    {kF32, {8, 32, NBitsZeros::u8, true}},
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << name_of(c.activations) << ", " << c.form; }

TEST(MatMulNBits, RowsDoNotDependOnHowManyThereAre) {
  Random random(21);
  for (const Case& c : kCases) {
    for (const int64_t k : {33, 520}) {
      const PackedWeights packed = pack(random_weights(random, c.form, k, 83));
      const auto x = random_rows(random, 300, k);
      Bench bench;
      std::vector<float> single;
      for (int64_t m = 0; m < 300; m++) {
        const auto row = bench.product(packed, {x.begin() + m * k, x.begin() + (m + 1) * k}, c.activations);
        single.insert(single.end(), row.begin(), row.end());
      }
      for (const int64_t rows : {0, 1, 2, 3, 7, 8, 16, 31, 128, 129, 300}) {
        const auto all = bench.product(packed, {x.begin(), x.begin() + rows * k}, c.activations);
        EXPECT_TRUE(same_bits(all, std::span(single).first(static_cast<size_t>(rows * 83))))
            << c << " " << k << " " << rows;
      }
    }
  }
}

TEST(MatMulNBits, OutlierRowsLeaveTheOthersAlone) {
  Random random(17);
  for (const Case& c : kCases) {
    const Weights w = random_weights(random, c.form, 200, 35);
    const PackedWeights packed = pack(w);
    const auto ordinary = random_rows(random, 5, 200);
    auto x = ordinary;
    for (size_t i = 2 * 200; i < 3 * 200; i++) x[i] *= 1000;
    Bench bench;
    auto y = bench.product(packed, x, c.activations);
    EXPECT_TRUE(near_independent(w, x.data() + 400, std::span(y).subspan(70, 35), c.activations)) << c;
    const auto expected = bench.product(packed, ordinary, c.activations);
    std::copy_n(expected.begin() + 70, 35, y.begin() + 70);
    EXPECT_TRUE(same_bits(y, expected)) << c;
  }
}

TEST(MatMulNBits, EveryInstructionSetGivesTheSameBits) {
  Random random(18);
  for (const Case& c : kCases) {
    for (const int64_t n : {1, 17, 70}) {
      const PackedWeights packed = pack(random_weights(random, c.form, 300, n));
      for (const int64_t rows : {1, 2, 5, 259}) {
        const auto x = random_rows(random, rows, 300);
        const auto expected = Bench(1, only(cpu::Isa::scalar)).product(packed, x, c.activations);
        for (const cpu::Isa isa : usable_sets()) {
          EXPECT_TRUE(same_bits(Bench(2, only(isa)).product(packed, x, c.activations), expected))
              << cpu::isa_name(isa) << ", " << c << ", M " << rows << " N " << n;
        }
      }
    }
  }
}

TEST(MatMulNBits, ThreadCountDoesNotChangeBits) {
  Random random(22);
  for (const Case& c : kCases) {
    for (const int64_t n : {1, 16, 50, 640}) {
      const Weights w = random_weights(random, c.form, 193, n);
      for (const int64_t rows : {1, 2, 5, 64, 260}) {
        const auto x = random_rows(random, rows, 193);
        const auto one = Bench(1).product(pack(w, 1), x, c.activations);
        for (const int threads : {2, 3, 7}) {
          EXPECT_TRUE(same_bits(one, Bench(threads).product(pack(w, threads), x, c.activations)))
              << c << " " << threads;
        }
      }
    }
  }
}

// With two threads each begins with half of 7/8 of all panels: the calling one with the first.
TEST(MatMulNBits, WhatAJoiningThreadReadsFirstIsTheSecondPiece) {
  Random random(53);
  const int64_t k = 64;
  const auto panels = [&](int64_t count) {
    return pack(random_weights(random, {4, 32, NBitsZeros::none}, k, count * kNBitsPanel));
  };
  const PackedWeights few = panels(8), some = panels(56), many = panels(64), large = panels(1 << 16);
  const NBitsProduct one[] = {{&many, {}, {}}}, two[] = {{&few, {}, {}}, {&some, {}, {}}}, huge[] = {{&large, {}, {}}};
  const auto begins_at = [](std::span<const std::byte> bytes, const PackedWeights& weights, int64_t panel) {
    const NBitsPanels rest = weights.view(panel, weights.panels());
    const size_t left = static_cast<size_t>(rest.panels * rest.panel_bytes);
    return bytes.data() == reinterpret_cast<const std::byte*>(rest.data) && !bytes.empty() && bytes.size() <= left;
  };
  EXPECT_TRUE(begins_at(matmul_nbits_first_bytes(one, 2), many, 28));
  EXPECT_TRUE(begins_at(matmul_nbits_first_bytes(two, 2), some, 20));
  EXPECT_TRUE(begins_at(matmul_nbits_first_bytes(huge, 2), large, 7 << 12));
  EXPECT_LT(matmul_nbits_first_bytes(huge, 2).size(), large.bytes() / 2) << "no second-level cache keeps that";
  for (const auto& products : {std::span<const NBitsProduct>(one), std::span<const NBitsProduct>(two)}) {
    EXPECT_TRUE(matmul_nbits_first_bytes(products, 1).empty()) << "nobody joins";
  }
}

TEST(MatMulNBits, SeveralProductsInOneCallEqualSingleOnes) {
  Random random(19);
  const int64_t k = 260;
  // With int8 rows 4- and 8-bit weights may share them.
  const std::vector<std::pair<NBitsActivations, std::vector<Form>>> groups = {
      {kS8,
       {{4, 32, NBitsZeros::none, true},
        {4, 32, NBitsZeros::u8},
        {8, 32, NBitsZeros::none},
        {8, 32, NBitsZeros::u8, true}}},
      {kF32, {{4, 64, NBitsZeros::none}, {4, 64, NBitsZeros::f32, true}, {4, 64, NBitsZeros::u8}}},
      {kF32, {{8, 32, NBitsZeros::f32}, {8, 32, NBitsZeros::none, true}}}};
  for (const auto& [activations, members] : groups) {
    for (const int threads : {1, 2, 7}) {
      for (const int64_t rows : {0, 1, 5, 261}) {
        std::vector<PackedWeights> packed;
        for (size_t i = 0; i < members.size(); i++) {
          packed.push_back(pack(random_weights(random, members[i], k, std::array<int64_t, 4>{150, 1, 33, 16}[i])));
        }
        const auto x = random_rows(random, rows, k);
        Bench bench(threads);
        std::vector<std::vector<float>> y, bias;
        std::vector<NBitsProduct> products;
        for (size_t i = 0; i < packed.size(); i++) {
          y.emplace_back(static_cast<size_t>(rows * packed[i].n()), -1.0f);
          bias.push_back(random_rows(random, 1, i % 2 == 0 ? packed[i].n() : 0));
        }
        for (size_t i = 0; i < packed.size(); i++) products.push_back({&packed[i], bias[i], y[i]});
        ASSERT_TRUE(matmul_nbits(bench.ctx, {.rows = rows, .activations = activations}, {x, products}).ok());
        size_t bytes = 0;
        for (size_t i = 0; i < packed.size(); i++) {
          EXPECT_TRUE(same_bits(y[i], Bench().product(packed[i], x, activations, bias[i])))
              << members[i] << ", M " << rows;
          bytes += packed[i].bytes();
        }
        const int64_t pass = matmul_nbits_pass_rows(nbits_rows_form(packed[0].form(), activations));
        EXPECT_EQ(bench.counters.weight_bytes_read, bytes * static_cast<size_t>(ceil_div(rows, pass)));
      }
    }
  }
}

TEST(MatMulNBits, BiasIsAddedLast) {
  Random random(20);
  for (const Case& c : kCases) {
    const PackedWeights packed = pack(random_weights(random, c.form, 100, 37));
    auto bias = random_rows(random, 1, 37);
    bias[3] = 1e30f;
    bias[4] = std::numeric_limits<float>::infinity();
    for (const int64_t rows : {1, 6, 259}) {
      const auto x = random_rows(random, rows, 100);
      Bench bench(2);
      auto expected = bench.product(packed, x, c.activations);
      for (size_t i = 0; i < expected.size(); i++) expected[i] += bias[i % 37];
      EXPECT_TRUE(same_bits(bench.product(packed, x, c.activations, bias), expected)) << c << ", M " << rows;
    }
  }
}

TEST(MatMulNBits, TwoHalvesEqualTheWhole) {
  Random random(23);
  for (const Case& c : kCases) {
    for (const int64_t k : {100, 2600}) {
      const PackedWeights packed = pack(random_weights(random, c.form, k, 33));
      const NBitsRowsForm form = nbits_rows_form(packed.form(), c.activations);
      for (const int64_t rows : {0, 1, 6, 131, 260}) {
        const auto x = random_rows(random, rows, k);
        Bench bench(2);
        std::vector<uint32_t> storage(*nbits_rows_bytes(rows, form) / 4);
        const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(storage.data()), storage.size() * 4);
        const auto prepared = prepare_nbits_rows(bench.ctx, {.rows = rows, .form = form}, {x, bytes});
        ASSERT_TRUE(prepared.ok());
        std::vector<float> y(static_cast<size_t>(rows * 33));
        const NBitsProduct one{&packed, {}, y};
        ASSERT_TRUE(matmul_prepared(bench.ctx, {*prepared, {&one, 1}}).ok());
        EXPECT_TRUE(same_bits(y, bench.product(packed, x, c.activations))) << c << " " << k << " " << rows;
      }
    }
  }
}

TEST(MatMulNBits, NotFiniteBlockSpoilsItsRowOnly) {
  Random random(24);
  for (const Case& c : kCases) {
    if (c.form.zeros != NBitsZeros::none) continue;
    Weights w = random_weights(random, c.form, 96, 37);
    // Weights of zero do not hide it, nor do codes of zero.
    for (size_t i = 0; i < w.q.size(); i++) w.q[i] = static_cast<uint8_t>(i % 2 == 0 ? w.form.codes() / 2 : 0);
    w.encode();
    const PackedWeights packed = pack(w);
    for (const cpu::Isa isa : usable_sets()) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        for (const size_t rows : {1u, 3u}) {
          for (const size_t at : {40u, 41u, 95u}) {
            std::vector<float> x(rows * 96, 1.0f);
            x[(rows - 1) * 96 + at] = bad;
            const auto y = Bench(1, only(isa)).product(packed, x, c.activations);
            for (size_t i = 0; i < y.size(); i++) {
              // Float rows leave an infinity infinite where the weight is not zero.
              const bool spoilt = c.activations == kS8 || std::isnan(bad) ? std::isnan(y[i]) : !std::isfinite(y[i]);
              ASSERT_EQ(spoilt, i / 37 == rows - 1) << cpu::isa_name(isa) << ", " << c << ", " << bad;
            }
          }
        }
      }
    }
  }
}

TEST(MatMulNBits, ZeroAndTinyBlocksCountAsZero) {
  Random random(25);
  for (const Case& c : kCases) {
    const PackedWeights packed = pack(random_weights(random, c.form, 64, 17));
    std::vector<float> x(64, 0.0f);
    Bench bench;
    for (const float y : bench.product(packed, x, c.activations)) EXPECT_EQ(y, 0.0f);
    x[3] = 1e-38f;
    x[40] = -std::numeric_limits<float>::denorm_min();
    for (const float y : bench.product(packed, x, c.activations)) {
      if (c.activations == kS8) {
        EXPECT_EQ(y, 0.0f);
      }
      EXPECT_LT(std::fabs(y), 1e-37f);
    }
  }
}

TEST(MatMulNBits, WritesNothingPastTheOutput) {
  Random random(27);
  for (const Case& c : kCases) {
    for (const int64_t n : {1, 15, 17, 127}) {
      for (const int64_t rows : {1, 5}) {
        const PackedWeights packed = pack(random_weights(random, c.form, 65, n));
        GuardedArray<float> x(static_cast<size_t>(rows * 65)), y(static_cast<size_t>(rows * n)),
            bias(static_cast<size_t>(n));
        random.fill_normal(x.span());
        Bench bench(2);
        const NBitsProduct one{&packed, bias.span(), y.span()};
        EXPECT_TRUE(matmul_nbits(bench.ctx, {.rows = rows, .activations = c.activations}, {x.span(), {&one, 1}}).ok());
      }
    }
  }
}

TEST(MatMulNBits, SizesOfPreparedRowsAreChecked) {
  EXPECT_EQ(nbits_rows_bytes(3, {kS8, 65, 32, 4}), std::optional<size_t>(3 * 3 * 40));
  EXPECT_EQ(nbits_rows_bytes(3, {kF32, 65, 32, 8}), std::optional<size_t>(3 * 3 * 132));
  EXPECT_EQ(nbits_rows_bytes(0, {kF32, 65, 256, 8}), std::optional<size_t>(0));
  EXPECT_EQ(nbits_rows_bytes(-1, {kS8, 64, 32, 4}), std::nullopt);
  for (const int64_t block : {0, 8, 24, 512}) EXPECT_EQ(nbits_rows_bytes(1, {kS8, 64, block, 4}), std::nullopt);
  EXPECT_EQ(nbits_rows_bytes(1, {kS8, 64, 32, 2}), std::nullopt);
  EXPECT_EQ(nbits_rows_bytes(1, {kS8, -64, 32, 4}), std::nullopt);
  EXPECT_EQ(nbits_rows_bytes(int64_t{1} << 40, {kF32, int64_t{1} << 40, 32, 4}), std::nullopt);
  for (const NBitsActivations activations : {kS8, kF32}) {
    for (const int64_t block : kBlocks) {
      for (const int64_t k : {1, 1024, 3072, 25600}) {
        const int64_t pass = matmul_nbits_pass_rows({activations, k, block, 4});
        EXPECT_GE(pass, 64);
        EXPECT_LE(pass, 256);
        EXPECT_EQ(pass % kNBitsTileRows, 0);
      }
    }
  }
}

TEST(MatMulNBits, SizesThatDoNotFitAreRefused) {
  Random random(28);
  const PackedWeights packed = pack(random_weights(random, {}, 64, 5));
  const PackedWeights eight = pack(random_weights(random, {.bits = 8}, 64, 5));
  const PackedWeights larger = pack(random_weights(random, {.block = 64}, 64, 5));
  std::vector<float> x(64), y(5), z(5), bias(5);
  std::vector<uint32_t> storage(66);
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(storage.data()), storage.size() * 4);
  Bench bench;
  const auto code = [](const auto& result) { return result.ok() ? std::optional<Errc>() : result.error().code; };
  const auto one = [&](int64_t rows, const NBitsProduct& product, NBitsActivations activations = kS8) {
    return matmul_nbits(bench.ctx, {.rows = rows, .activations = activations, .where = "here"}, {x, {&product, 1}});
  };
  EXPECT_TRUE(one(1, {&packed, bias, y}).ok());
  EXPECT_EQ(code(one(2, {&packed, {}, y})), Errc::bad_request);
  EXPECT_EQ(one(2, {&packed, {}, y}).error().where, "here");
  EXPECT_EQ(code(one(-1, {&packed, {}, y})), Errc::bad_request);
  EXPECT_EQ(code(one(1, {&packed, {}, std::span(y).first(4)})), Errc::bad_request);
  EXPECT_EQ(code(one(1, {&packed, std::span(bias).first(4), y})), Errc::bad_request);
  EXPECT_EQ(code(one(std::numeric_limits<int64_t>::max(), {&packed, {}, y})), Errc::bad_request);

  // Products that cannot share their rows.
  const auto two = [&](const PackedWeights& other, NBitsActivations activations) {
    const NBitsProduct products[] = {{&packed, {}, y}, {&other, {}, z}};
    return matmul_nbits(bench.ctx, {.rows = 1, .activations = activations}, {x, products});
  };
  EXPECT_TRUE(two(eight, kS8).ok());
  EXPECT_EQ(code(two(eight, kF32)), Errc::bad_request);
  EXPECT_EQ(code(two(larger, kS8)), Errc::bad_request);

  const auto prepared = [&](const NBitsRowsForm& form, int64_t rows, size_t available) {
    return prepare_nbits_rows(bench.ctx, {.rows = rows, .form = form}, {x, bytes.first(available)});
  };
  EXPECT_EQ(code(prepared({kS8, 64, 32, 4}, 1, 79)), Errc::bad_request);
  EXPECT_TRUE(prepared({kS8, 64, 32, 4}, 1, 80).ok());
  EXPECT_EQ(code(prepared({kF32, 64, 32, 4}, 1, 263)), Errc::bad_request);
  EXPECT_TRUE(prepared({kF32, 64, 32, 4}, 1, 264).ok());
  EXPECT_EQ(code(prepared({kS8, 32, 32, 4}, 1, 80)), Errc::bad_request);
  EXPECT_EQ(code(prepared({kS8, 64, 32, 4}, -1, 80)), Errc::bad_request);
  const NBitsProduct product{&packed, {}, y};
  const auto product_of = [&](const NBitsRowsForm& form) {
    return matmul_prepared(bench.ctx, {{bytes.data(), 1, form}, {&product, 1}});
  };
  EXPECT_EQ(code(product_of({kS8, 32, 32, 4})), Errc::bad_request);
  EXPECT_EQ(code(product_of({kS8, 64, 64, 4})), Errc::bad_request);
  EXPECT_EQ(code(product_of({kF32, 64, 32, 8})), Errc::bad_request);
}

TEST(MatMulNBits, MemoryAndTrafficStayWithinTheirBounds) {
  Random random(29);
  const int64_t k = 1024, n = 1024;
  for (const Case& c : {Case{kS8, {}}, Case{kS8, {.bits = 8, .block = 128}}, Case{kF32, {.exact = true}}}) {
    const Weights w = random_weights(random, c.form, k, n);
    largest_heap_allocation = 0;
    const PackedWeights packed = pack(w, 2);
    EXPECT_LT(largest_heap_allocation.load(), static_cast<size_t>(k * n / 4));
    EXPECT_LE(packed.bytes(), w.serialized_bytes());

    Bench bench(2);
    const auto x = random_rows(random, 128, k);
    std::vector<float> y(static_cast<size_t>(128 * n));
    const NBitsRowsForm form = nbits_rows_form(packed.form(), c.activations);
    const int64_t pass = matmul_nbits_pass_rows(form);
    const cpu::MemoryUsage before = cpu::memory_usage();
    for (const int64_t rows : {1, 2, 16, 128}) {
      const auto call = [&] {
        const NBitsProduct one{&packed, {}, std::span(y).first(static_cast<size_t>(rows * n))};
        const std::span<const float> view(x.data(), static_cast<size_t>(rows * k));
        return matmul_nbits(bench.ctx, {.rows = rows, .activations = c.activations}, {view, {&one, 1}}).ok();
      };
      ASSERT_TRUE(call());
      const uint64_t heap = heap_allocations;
      bench.counters = {};
      ASSERT_TRUE(call());
      EXPECT_EQ(heap_allocations, heap) << rows << " rows";
      EXPECT_EQ(bench.counters.weight_bytes_read, packed.bytes() * static_cast<size_t>(ceil_div(rows, pass))) << rows;
      EXPECT_LE(bench.arena.peak_bytes(), *nbits_rows_bytes(std::min(rows, pass), form) + 63) << rows << " rows";
    }
    const cpu::MemoryUsage after = cpu::memory_usage();
    EXPECT_EQ(after.allocations[static_cast<size_t>(cpu::MemoryTag::weights)],
              before.allocations[static_cast<size_t>(cpu::MemoryTag::weights)]);
  }
}

// ---- the ONNX adapter ----

struct Node {
  std::vector<Attribute> attributes;
  std::vector<NodeInput> inputs;
  bool outputs[1] = {true};
  Weights weights;
  std::vector<float> bias;
  std::vector<uint8_t> bias_bytes;

  explicit Node(int64_t level = 4, const Form& form = {}, int64_t k = 70, int64_t n = 19, bool with_bias = false) {
    Random random(41 + static_cast<uint64_t>(n));
    weights = random_weights(random, form, k, n);
    set("K", k);
    set("N", n);
    set("block_size", form.block);
    set("bits", form.bits);
    set("accuracy_level", level);
    inputs.resize(3);
    inputs[0].present = true;
    inputs[0].dtype = type();
    if (with_bias) {
      bias = random_rows(random, 1, n);
      for (float& b : bias) b = half_to_float(float_to_half(b));
      bias_bytes = float_bytes(bias, form.type);
      constant(5, type(), {n}, bias_bytes.data());
    }
    use_weights();
  }

  DType type() const { return weights.form.type == NBitsFloat::f16 ? DType::f16 : DType::f32; }
  // Of zero points, as the file has them.
  Shape zeros_shape() const {
    const bool pairs = weights.form.zeros == NBitsZeros::u8 && weights.form.bits == 4;
    return {weights.n, pairs ? (weights.blocks + 1) / 2 : weights.blocks};
  }
  void use_weights() {
    constant(1, DType::u8, {weights.n, weights.blocks, weights.form.block * weights.form.bits / 8},
             weights.code_bytes.data());
    constant(2, type(), {weights.n, weights.blocks}, weights.scale_bytes.data());
    if (weights.form.zeros == NBitsZeros::none) return;
    constant(3, weights.form.zeros == NBitsZeros::u8 ? DType::u8 : type(), zeros_shape(), weights.zero_bytes.data());
  }
  void set(std::string_view name, int64_t value) {
    unset(name);
    Attribute a;
    a.name = name;
    a.type = AttributeType::i;
    a.i = value;
    attributes.push_back(a);
  }
  void unset(std::string_view name) {
    std::erase_if(attributes, [&](const Attribute& a) { return a.name == name; });
  }
  void constant(size_t i, DType dtype, Shape shape, void* data) {
    if (inputs.size() <= i) inputs.resize(i + 1);
    inputs[i] = {.present = true, .dtype = dtype, .constant = true, .value = {}};
    inputs[i].value.data = data;
    inputs[i].value.dtype = dtype;
    inputs[i].value.shape = shape;
  }
};

// What all nodes of a model share.
struct Maker {
  std::map<SharedKey, std::shared_ptr<const void>> shared;
  uint64_t preparations = 0;
  cpu::Pool pool{1};

  Result<std::unique_ptr<Operator>> make(const Node& node) {
    NodeView view;
    view.name = "/lm_head/MatMul_Q4";
    view.op = "MatMulNBits";
    view.domain = "com.microsoft";
    view.opset = 1;
    view.attributes = node.attributes;
    view.inputs = node.inputs;
    view.outputs = node.outputs;
    PrepareContext ctx;
    ctx.features = features();
    ctx.pool = &pool;
    ctx.shared = &shared;
    ctx.preparations = &preparations;
    return make_matmul_nbits(view, ctx);
  }
};

Result<std::unique_ptr<Operator>> make(const Node& node) { return Maker().make(node); }

Result<std::vector<Shape>> resolve(const Operator& op, const Shape& a, size_t outputs = 1) {
  Tensor in;
  in.shape = a;
  IntValues in_values;
  std::vector<IntValues> out_values(outputs);
  std::vector<Shape> out(outputs);
  std::vector<View> views(outputs);
  const auto done = op.resolve({{&in, 1}, {&in_values, 1}, out, out_values, views});
  if (!done.ok()) return done.error();
  return out;
}

// All outputs of one run; T is float or, for float16, uint16_t.
template <class T>
Result<std::vector<std::vector<T>>> run_all(const Operator& op, Bench& bench, const std::vector<T>& x, const Shape& a,
                                            size_t outputs) {
  const DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::f16;
  const auto shapes = resolve(op, a, outputs);
  if (!shapes.ok()) return shapes.error();
  std::vector<std::vector<T>> y(outputs);
  std::vector<Tensor> out(outputs);
  Tensor in;
  in.data = const_cast<T*>(x.data());
  in.dtype = dtype;
  in.shape = a;
  for (size_t j = 0; j < outputs; j++) {
    EXPECT_EQ(op.output_dtype(static_cast<int>(j)), dtype);
    y[j].resize(static_cast<size_t>((*shapes)[j].elements()));
    out[j].data = y[j].data();
    out[j].dtype = dtype;
    out[j].shape = (*shapes)[j];
  }
  const auto done = op.run(bench.ctx, {&in, 1}, out);
  if (!done.ok()) return done.error();
  return y;
}

template <class T>
Result<std::vector<T>> run(const Operator& op, Bench& bench, const std::vector<T>& x, const Shape& a) {
  auto y = run_all(op, bench, x, a, 1);
  if (!y.ok()) return y.error();
  return std::move((*y)[0]);
}

std::vector<uint16_t> halves(const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  std::ranges::transform(values, out.begin(), float_to_half);
  return out;
}
std::vector<float> floats(const std::vector<uint16_t>& values) {
  std::vector<float> out(values.size());
  std::ranges::transform(values, out.begin(), half_to_float);
  return out;
}

TEST(MatMulNBitsNode, RunsAnyRankFromOneUp) {
  Node node;
  auto op = make(node);
  ASSERT_TRUE(op.ok()) << op.error().message();
  Random random(42);
  const auto x = random_rows(random, 6, 70);
  const auto expected = Bench().product(pack(node.weights), x, kS8);
  Bench bench;
  for (const Shape& shape : {Shape{6, 70}, Shape{2, 3, 70}, Shape{1, 2, 1, 3, 70}}) {
    auto y = run(**op, bench, x, shape);
    ASSERT_TRUE(y.ok()) << y.error().message();
    EXPECT_TRUE(same_bits(*y, expected)) << shape.to_string();
  }
  EXPECT_EQ((*resolve(**op, {2, 3, 70}))[0], (Shape{2, 3, 19}));
  auto one = run<float>(**op, bench, {x.begin(), x.begin() + 70}, {70});
  ASSERT_TRUE(one.ok());
  EXPECT_TRUE(same_bits(*one, std::vector<float>(expected.begin(), expected.begin() + 19)));
  auto none = run<float>(**op, bench, {}, {2, 0, 70});
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  EXPECT_TRUE((*op)->row_wise());
  EXPECT_FALSE((*op)->accepts_unaligned(0));
  EXPECT_TRUE((*op)->accepts_unaligned(2));
}

TEST(MatMulNBitsNode, EveryFormGivesTheResultOfItsWeights) {
  Random random(45);
  for (const Form& form : forms(kF32)) {
    for (const int64_t level : {0, 1, 2, 3, 4}) {
      for (const bool with_bias : {false, true}) {
        const int64_t k = 2 * form.block + 6;
        Node node(level, form, k, 19, with_bias);
        const auto op = make(node);
        ASSERT_TRUE(op.ok()) << op.error().message();
        // Zero points that are no integers leave no integer to sum.
        const NBitsActivations activations = level == 4 && form.zeros != NBitsZeros::f32 ? kS8 : kF32;
        EXPECT_EQ((*op)->variant(), matmul_nbits_variant(features(), activations)) << form << ", level " << level;
        const auto x = random_rows(random, 2, k);
        Bench bench;
        const auto y = run(**op, bench, x, {2, k});
        ASSERT_TRUE(y.ok()) << y.error().message();
        EXPECT_TRUE(same_bits(*y, Bench().product(pack(node.weights), x, activations, node.bias)))
            << form << ", level " << level << ", bias " << with_bias;
      }
    }
  }
}

TEST(MatMulNBitsNode, AbsentAttributesHaveTheirDefaults) {
  Random random(46);
  const auto x = random_rows(random, 2, 70);
  Node full(0), bare(0), prepacked(0);
  bare.unset("bits");
  bare.unset("accuracy_level");
  prepacked.set("weight_prepacked", 0);
  Bench bench;
  const auto expected = *run(**make(full), bench, x, {2, 70});
  EXPECT_TRUE(same_bits(*run(**make(bare), bench, x, {2, 70}), expected));
  EXPECT_TRUE(same_bits(*run(**make(prepacked), bench, x, {2, 70}), expected));
}

TEST(MatMulNBitsNode, VariantsAreThoseOfTheList) {
  const auto all = matmul_nbits_variants();
  EXPECT_EQ(all.size(), variants({Role::quantize, Role::arrange, Role::product, Role::float_product}).size());
  for (const NBitsActivations activations : {kS8, kF32}) {
    for (const cpu::Isa isa : usable_sets()) {
      const std::string_view chosen = matmul_nbits_variant(only(isa), activations);
      const auto found = std::ranges::find_if(all, [&](const VariantInfo& v) { return v.symbol == chosen; });
      ASSERT_NE(found, all.end()) << chosen;
      EXPECT_TRUE(only(isa).has(found->isa)) << chosen;
    }
    EXPECT_EQ(matmul_nbits_variant(only(cpu::Isa::scalar), activations),
              activations == kS8 ? "matmul_nbits_s8_reference" : "matmul_nbits_f32_reference");
  }
}

TEST(MatMulNBitsNode, FlatScalesAndZeroPointsGiveTheSamePlan) {
  Random random(43);
  const auto x = random_rows(random, 2, 70);
  for (const Form& form :
       {Form{}, Form{.zeros = NBitsZeros::u8}, Form{.zeros = NBitsZeros::f32}, Form{8, 32, NBitsZeros::u8}}) {
    Node a(4, form), b(4, form);
    b.constant(2, DType::f32, {19 * 3}, b.weights.scale_bytes.data());
    if (form.zeros != NBitsZeros::none) {
      b.constant(3, b.inputs[3].dtype, {b.zeros_shape().elements()}, b.weights.zero_bytes.data());
    }
    auto first = make(a), second = make(b);
    ASSERT_TRUE(first.ok() && second.ok()) << form;
    Bench bench;
    EXPECT_TRUE(same_bits(*run(**first, bench, x, {2, 70}), *run(**second, bench, x, {2, 70}))) << form;
  }
}

TEST(MatMulNBitsNode, HalvesAreComputedInFloatAndRoundedOnce) {
  Random random(47);
  for (const int64_t level : {0, 4}) {
    for (const Form& base :
         {Form{}, Form{4, 64, NBitsZeros::u8, true}, Form{8, 32, NBitsZeros::f32}, Form{8, 128, NBitsZeros::u8}}) {
      Form form = base;
      form.type = NBitsFloat::f16;
      Node half(level, form, 150, 21, true);
      // The same numbers in float32.
      Node full(level, base, 150, 21, true);
      full.weights = half.weights;
      full.weights.form.type = NBitsFloat::f32;
      full.weights.encode();
      full.use_weights();
      const auto half_op = make(half), full_op = make(full);
      ASSERT_TRUE(half_op.ok() && full_op.ok());
      for (const int64_t rows : {0, 1, 5, 259}) {
        const auto x = halves(random_rows(random, rows, 150));
        Bench bench(2), other(2);
        const auto seen = run(**half_op, bench, x, {rows, 150});
        ASSERT_TRUE(seen.ok()) << seen.error().message();
        EXPECT_TRUE(same_bits(*seen, halves(*run(**full_op, other, floats(x), {rows, 150}))))
            << form << ", level " << level << ", M " << rows;
      }
    }
  }
}

TEST(MatMulNBitsNode, HalvesThatOverflowBecomeInfinite) {
  Form form;
  form.type = NBitsFloat::f16;
  Node node(0, form, 64, 3);
  std::ranges::fill(node.weights.q, uint8_t{15});
  std::ranges::fill(node.weights.scales, 100.0f);
  node.weights.scales[2] = node.weights.scales[3] = -100.0f;
  node.weights.encode();
  node.use_weights();
  const auto op = make(node);
  ASSERT_TRUE(op.ok());
  Bench bench;
  const auto y = run(**op, bench, halves(std::vector<float>(64, 3.0f)), {64});
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(*y, (std::vector<uint16_t>{0x7c00, 0xfc00, 0x7c00}));
}

TEST(MatMulNBitsNode, PreparesOnceForAllCallsAndNodes) {
  for (const int64_t level : {0, 4}) {
    Node node(level, {.zeros = NBitsZeros::u8}, 64, 33);
    Maker maker;
    auto first = maker.make(node), second = maker.make(node);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(maker.preparations, 1u);
    EXPECT_GT((*first)->prepared_bytes(), 0u);
    EXPECT_EQ((*first)->serialized_bytes(), node.weights.serialized_bytes());
    EXPECT_EQ((*second)->prepared_bytes(), 0u);
    Random random(44);
    const auto x = random_rows(random, 5, 64);
    Bench bench;
    for (int i = 0; i < 1000; i++) {
      const int64_t rows = i % 5 + 1;
      ASSERT_TRUE(run<float>(**second, bench, {x.begin(), x.begin() + rows * 64}, {rows, 64}).ok());
    }
    EXPECT_EQ(maker.preparations, 1u);
    // The levels differ in what they do with rows only.
    node.set("accuracy_level", 4 - level);
    ASSERT_TRUE(maker.make(node).ok());
    EXPECT_EQ(maker.preparations, 1u);
    node.set("K", 63);  // the same number of blocks, but another matrix
    ASSERT_TRUE(maker.make(node).ok());
    EXPECT_EQ(maker.preparations, 2u);
  }
}

TEST(MatMulNBitsNode, SharedCodesWithOtherZeroPointsAreAnotherMatrix) {
  Node plain(4, {}, 64, 33), zeros(4, {}, 64, 33);
  zeros.weights.form.zeros = NBitsZeros::u8;
  zeros.weights.z.assign(66, 3.0f);
  zeros.weights.encode();
  zeros.use_weights();
  // The same addresses of codes and scales.
  zeros.inputs[1] = plain.inputs[1];
  zeros.inputs[2] = plain.inputs[2];
  Node others = zeros;
  others.weights.z.assign(66, 5.0f);
  others.weights.encode();
  others.constant(3, DType::u8, others.zeros_shape(), others.weights.zero_bytes.data());
  Maker maker;
  const auto second = maker.make(zeros), third = maker.make(others), first = maker.make(plain);
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ(maker.preparations, 3u);
  Random random(48);
  const auto x = random_rows(random, 3, 64);
  Bench bench;
  EXPECT_TRUE(same_bits(*run(**first, bench, x, {3, 64}), bench.product(pack(plain.weights), x, kS8)));
  EXPECT_TRUE(same_bits(*run(**second, bench, x, {3, 64}), bench.product(pack(zeros.weights), x, kS8)));
  EXPECT_TRUE(same_bits(*run(**third, bench, x, {3, 64}), bench.product(pack(others.weights), x, kS8)));
}

TEST(MatMulNBitsNode, JoinedNodesGiveTheBitsOfSingleOnes) {
  Random random(49);
  for (const NBitsFloat type : {NBitsFloat::f32, NBitsFloat::f16}) {
    for (const int64_t level : {0, 4}) {
      const Node nodes[] = {Node(level, {4, 32, NBitsZeros::none, true, type}, 150, 70),
                            Node(level, {4, 32, NBitsZeros::u8, false, type}, 150, 1, true),
                            Node(level, {level == 4 ? 8 : 4, 32, NBitsZeros::none, false, type}, 150, 33, true)};
      std::vector<std::unique_ptr<Operator>> single, others;
      for (const Node& node : nodes) {
        single.push_back(*make(node));
        EXPECT_EQ(single.back()->join_key(), single[0]->join_key());
      }
      EXPECT_FALSE(single[0]->join_key().empty());
      auto head = *make(nodes[0]);
      others.push_back(*make(nodes[1]));
      others.push_back(*make(nodes[2]));
      const auto joint = head->join(std::move(others));
      head.reset();
      ASSERT_NE(joint, nullptr);
      EXPECT_TRUE(joint->row_wise());
      EXPECT_EQ(joint->prepared_bytes(),
                single[0]->prepared_bytes() + single[1]->prepared_bytes() + single[2]->prepared_bytes());
      EXPECT_EQ(joint->serialized_bytes(), nodes[0].weights.serialized_bytes() + nodes[1].weights.serialized_bytes() +
                                               nodes[2].weights.serialized_bytes());
      const auto shapes = resolve(*joint, {2, 5, 150}, 3);
      ASSERT_TRUE(shapes.ok());
      EXPECT_EQ((*shapes)[1], (Shape{2, 5, 1}));
      EXPECT_EQ((*shapes)[2], (Shape{2, 5, 33}));
      for (const int64_t rows : {0, 1, 5, 259}) {
        const auto x = random_rows(random, rows, 150);
        for (const int threads : {1, 3}) {
          Bench bench(threads);
          const auto compare = [&](const auto& input) {
            const auto all = run_all(*joint, bench, input, {rows, 150}, 3);
            ASSERT_TRUE(all.ok()) << all.error().message();
            for (size_t j = 0; j < 3; j++) {
              EXPECT_TRUE(same_bits((*all)[j], *run(*single[j], bench, input, {rows, 150})))
                  << level << " " << rows << " " << j;
            }
          };
          if (type == NBitsFloat::f32) compare(x);
          if (type == NBitsFloat::f16) compare(halves(x));
        }
      }
    }
  }
}

TEST(MatMulNBitsNode, OnlyNodesThatShareTheirRowsAreJoined) {
  const auto key = [](int64_t level, const Form& form, int64_t k = 70) {
    const auto op = make(Node(level, form, k));
    EXPECT_TRUE(op.ok());
    return (*op)->join_key();
  };
  const NBitsZeros f32 = NBitsZeros::f32, u8 = NBitsZeros::u8;
  EXPECT_EQ(key(4, {}), key(4, {8, 32, u8, true}));
  EXPECT_EQ(key(0, {}), key(1, {4, 32, u8, true}));
  EXPECT_EQ(key(0, {}), key(4, {4, 32, f32}));
  EXPECT_NE(key(4, {}), key(0, {}));
  EXPECT_NE(key(0, {}), key(0, {.bits = 8}));
  EXPECT_NE(key(4, {}), key(4, {.block = 64}));
  EXPECT_NE(key(4, {}), key(4, {}, 71));
  EXPECT_NE(key(4, {}), key(4, {.type = NBitsFloat::f16}));
  EXPECT_NE(key(4, {.zeros = u8}), key(4, {.zeros = f32}));
}

TEST(MatMulNBitsNode, WrongLastDimensionIsRefusedAtRunTime) {
  Node node;
  auto op = make(node);
  ASSERT_TRUE(op.ok());
  for (const Shape& shape : {Shape{2, 71}, Shape{70, 2}, Shape{}, Shape{0}}) {
    const auto out = resolve(**op, shape);
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.error().code, Errc::bad_request);
    EXPECT_NE(out.error().message().find("/lm_head/MatMul_Q4"), std::string::npos);
    EXPECT_NE(out.error().what.find(shape.to_string()), std::string::npos);
  }
  const auto huge = resolve(**op, {int64_t{1} << 40, int64_t{1} << 40, 70});
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code, Errc::bad_request);
  EXPECT_FALSE(resolve(**op, {0, int64_t{1} << 40, int64_t{1} << 40, 70}).ok());
}

using Change = std::function<void(Node&)>;

Change attribute(const char* name, int64_t value) {
  return [=](Node& n) { n.set(name, value); };
}
Change no_attribute(const char* name) {
  return [=](Node& n) { n.unset(name); };
}
// Input i becomes another constant, whose payload is never read.
Change other_constant(size_t i, DType dtype, Shape shape) {
  static float payload[1024];
  return [=](Node& n) { n.constant(i, dtype, shape, payload); };
}
Change not_constant(size_t i) {
  return [=](Node& n) { n.inputs[i].constant = false; };
}
Change other_type(size_t i, DType dtype) {
  return [=](Node& n) { n.inputs[i].dtype = dtype; };
}
Change no_input(size_t i) {
  return [=](Node& n) { n.inputs[i].present = false; };
}
Change both(Change first, Change second) {
  return [=](Node& n) {
    first(n);
    second(n);
  };
}
void make_k_a_float(Node& n) {
  n.attributes[0].type = AttributeType::f;
  n.attributes[0].f = 70;
}

struct Refusal {
  std::string name;  // what the message must contain
  Errc code;
  Change change;
};

TEST(MatMulNBitsNode, RefusesOtherFormsByName) {
  constexpr Errc kBad = Errc::bad_model;
  constexpr Errc kUnsupported = Errc::unsupported;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const Change eight_bits = both(attribute("bits", 8), other_constant(1, DType::u8, {19, 3, 32}));
  const std::vector<Refusal> refusals = {
      {"bits = 2", kUnsupported, attribute("bits", 2)},
      {"bits = 3", kBad, attribute("bits", 3)},
      {"bits = 16", kBad, attribute("bits", 16)},
      {"block_size = 48", kBad, attribute("block_size", 48)},
      {"block_size = 512", kBad, attribute("block_size", 512)},
      {"block_size = 8", kBad, attribute("block_size", 8)},
      {"block_size = 0", kBad, attribute("block_size", 0)},
      {"accuracy_level = 5", kBad, attribute("accuracy_level", 5)},
      {"accuracy_level = -1", kBad, attribute("accuracy_level", -1)},
      {"attribute K", kBad, no_attribute("K")},
      {"attribute N", kBad, no_attribute("N")},
      {"attribute block_size", kBad, no_attribute("block_size")},
      {"attribute K", kBad, make_k_a_float},
      {"weight_prepacked", kUnsupported, attribute("weight_prepacked", 1)},
      {"group_size", kUnsupported, attribute("group_size", 32)},
      {"K = 0", kBad, attribute("K", 0)},
      {"N = -19", kBad, attribute("N", -19)},
      {"K = 9223372036854775807", kBad, attribute("K", kHuge)},
      {"input 0", kBad, no_input(0)},
      {"input 0 (A)", kUnsupported, other_type(0, DType::bf16)},
      {"input 0 (A)", kUnsupported, other_type(0, DType::f64)},
      {"input 1 (B)", kBad, attribute("K", 97)},
      {"input 1 (B)", kBad, attribute("K", kHuge - 32)},
      {"input 1 (B)", kBad, attribute("N", 18)},
      {"input 1 (B)", kBad, attribute("N", kHuge)},
      {"input 1 (B)", kBad, attribute("bits", 8)},
      {"input 1 (B)", kBad, attribute("block_size", 64)},
      {"input 1 (B)", kBad, attribute("block_size", 16)},
      {"input 1 (B)", kBad, other_constant(1, DType::u8, {19, 48})},
      {"input 1 (B)", kUnsupported, not_constant(1)},
      {"input 1 (B)", kUnsupported, both(attribute("accuracy_level", 0), not_constant(1))},
      {"input 1", kUnsupported, other_type(1, DType::i8)},
      {"input 1", kBad, no_input(1)},
      {"input 2 (scales)", kBad, other_constant(2, DType::f32, {19 * 3 - 1})},
      {"input 2 (scales)", kBad, other_constant(2, DType::f32, {3, 19})},
      {"input 2 (scales)", kUnsupported, not_constant(2)},
      {"input 2", kUnsupported, other_type(2, DType::f16)},
      {"input 2", kUnsupported, other_type(0, DType::f16)},
      {"input 2", kBad, no_input(2)},
      {"input 3 (zero_points)", kBad, other_constant(3, DType::u8, {19 * 3 / 2})},
      {"input 3 (zero_points)", kBad, other_constant(3, DType::u8, {19, 3})},
      {"input 3 (zero_points)", kBad, both(eight_bits, other_constant(3, DType::u8, {19, 2}))},
      {"input 3 (zero_points)", kBad, other_constant(3, DType::f32, {19, 2})},
      {"input 3 (zero_points)", kUnsupported, both(other_constant(3, DType::u8, {19, 2}), not_constant(3))},
      {"input 3 (zero_points)", kUnsupported, both(other_constant(3, DType::f32, {19, 3}), not_constant(3))},
      {"input 3", kUnsupported, other_constant(3, DType::f16, {19, 3})},
      {"input 3", kUnsupported, other_constant(3, DType::i8, {19, 2})},
      {"g_idx", kUnsupported, other_constant(4, DType::i32, {70})},
      {"g_idx", kUnsupported, both(eight_bits, other_constant(4, DType::i32, {70}))},
      {"input 5 (bias)", kBad, other_constant(5, DType::f32, {18})},
      {"input 5 (bias)", kBad, other_constant(5, DType::f32, {1, 19})},
      {"input 5 (bias)", kUnsupported, both(other_constant(5, DType::f32, {19}), not_constant(5))},
      {"input 5", kUnsupported, other_constant(5, DType::f16, {19})},
      {"input 6", kUnsupported, other_constant(6, DType::f32, {19})},
  };
  for (const Refusal& refusal : refusals) {
    Node node;
    refusal.change(node);
    Maker maker;
    const auto op = maker.make(node);
    ASSERT_FALSE(op.ok()) << refusal.name;
    EXPECT_EQ(op.error().code, refusal.code) << op.error().message();
    EXPECT_NE(op.error().what.find(refusal.name), std::string::npos) << op.error().message();
    EXPECT_NE(op.error().where.find("/lm_head/MatMul_Q4"), std::string::npos) << op.error().message();
    EXPECT_EQ(maker.preparations, 0u);
  }
}

}  // namespace
}  // namespace quern::ops
