// SPDX-License-Identifier: Apache-2.0
// Tests of this room: the reference against hand-written numbers and an independent form, every variant against the
// reference bit for bit, the entries, and the ONNX adapter. Above 600 lines because a room has one test file, and this
// room has two kinds of kernels, three entries and an adapter with some forty refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/checked.h"
#include "ops/matmul_nbits/kernels.h"
#include "ops/matmul_nbits/matmul_nbits.h"
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

using QuantizeFunction = void(const NBitsQuantizeArgs&) noexcept;
using ProductFunction = void(const NBitsProductArgs&) noexcept;
#define QUERN_ROLE_quantize QuantizeFunction
#define QUERN_ROLE_product ProductFunction
#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa(QUERN_ROLE_##role symbol;)
#include "ops/matmul_nbits/kernels.inc"
#undef QUERN_KERNEL
#undef QUERN_ROLE_quantize
#undef QUERN_ROLE_product
Result<std::unique_ptr<Operator>> make_matmul_nbits(const NodeView& node, const PrepareContext& ctx);

namespace {

using support::GuardedArray;
using support::Random;

struct TestVariant {
  cpu::Isa isa;
  std::string symbol;
  QuantizeFunction* quantize = nullptr;
  ProductFunction* product = nullptr;
};

void PrintTo(const TestVariant& v, std::ostream* out) { *out << v.symbol; }

std::vector<TestVariant> variants(bool products) {
  std::vector<TestVariant> all;
#define QUERN_KERNEL(isa_name, name, role)                     \
  QUERN_ISA_LINE_##isa_name({                                  \
    TestVariant v{.isa = cpu::Isa::isa_name, .symbol = #name}; \
    v.role = &name;                                            \
    all.push_back(v);                                          \
  })
#include "ops/matmul_nbits/kernels.inc"
#undef QUERN_KERNEL
  std::erase_if(all, [&](const TestVariant& v) { return (v.product != nullptr) != products; });
  return all;
}

cpu::Features features() {
  auto usable = cpu::usable_features();
  QUERN_CHECK(usable.ok(), "QUERN_ISA names a set that this CPU has");
  return *usable;
}

// `features` with no set better than `isa`.
cpu::Features only(cpu::Isa isa) {
  cpu::Features f;
  f.avx2 = isa != cpu::Isa::scalar;
  f.avxvnni = isa == cpu::Isa::avxvnni;
  f.avx512vnni = isa == cpu::Isa::avx512vnni;
  return f;
}

#define SKIP_IF_CPU_LACKS(isa) \
  if (!features().has(isa)) GTEST_SKIP() << "the CPU lacks " << cpu::isa_name(isa)

// Weights as the file has them, with codes and zero points also as plain numbers.
struct Weights {
  int64_t k, n, blocks;
  std::vector<uint8_t> q;     // [n][k]
  std::vector<uint8_t> z;     // [n][blocks], empty without zero points
  std::vector<float> scales;  // [n][blocks]
  std::vector<uint8_t> bytes, zero_bytes;

  int code(int64_t column, int64_t i) const { return q[static_cast<size_t>(column * k + i)]; }
  int zero(int64_t column, int64_t b) const { return z.empty() ? 8 : z[static_cast<size_t>(column * blocks + b)]; }
  float scale(int64_t column, int64_t b) const { return scales[static_cast<size_t>(column * blocks + b)]; }

  // Makes `bytes` and `zero_bytes`; nibbles past K and past the last block get `garbage`.
  void encode(uint8_t garbage = 0) {
    bytes.assign(static_cast<size_t>(n * blocks * 16), 0);
    for (int64_t c = 0; c < n; c++) {
      for (int64_t i = 0; i < blocks * 32; i++) {
        const int code_or_garbage = i < k ? code(c, i) : garbage;
        bytes[static_cast<size_t>((c * blocks * 32 + i) / 2)] |= static_cast<uint8_t>(code_or_garbage << (i % 2 * 4));
      }
    }
    const int64_t zero_columns = (blocks + 1) / 2;
    zero_bytes.assign(z.empty() ? 0 : static_cast<size_t>(n * zero_columns), 0);
    for (int64_t c = 0; c < n && !z.empty(); c++) {
      for (int64_t b = 0; b < zero_columns * 2; b++) {
        const int zero_or_garbage = b < blocks ? zero(c, b) : garbage;
        zero_bytes[static_cast<size_t>(c * zero_columns + b / 2)] |=
            static_cast<uint8_t>(zero_or_garbage << (b % 2 * 4));
      }
    }
  }

  PackMatMulNBitsArgs args() const {
    PackMatMulNBitsArgs a;
    a.k = k;
    a.n = n;
    a.codes = std::as_bytes(std::span(bytes));
    a.scales = std::as_bytes(std::span(scales));
    a.zero_points = std::as_bytes(std::span(zero_bytes));
    return a;
  }
};

Weights random_weights(Random& random, int64_t k, int64_t n, bool zero_points) {
  Weights w{k, n, ceil_div<int64_t>(k, 32), {}, {}, {}, {}, {}};
  w.q.resize(static_cast<size_t>(k * n));
  for (auto& q : w.q) q = static_cast<uint8_t>(random.below(16));
  if (zero_points) {
    w.z.resize(static_cast<size_t>(n * w.blocks));
    for (auto& z : w.z) z = static_cast<uint8_t>(random.below(16));
  }
  w.scales.resize(static_cast<size_t>(n * w.blocks));
  random.fill_uniform(w.scales, -0.02f, 0.02f);
  w.encode(static_cast<uint8_t>(random.below(16)));
  return w;
}

PackedWeights pack(const Weights& w, int threads = 1) {
  cpu::Pool pool(threads);
  auto packed = pack_matmul_nbits(pool, w.args());
  QUERN_CHECK(packed.ok(), "test weights are well formed");
  return std::move(packed).value();
}

// A context with its own pool, arena and counters.
struct Bench {
  cpu::Pool pool;
  cpu::Arena arena;
  Counters counters;
  Context ctx;
  explicit Bench(int threads = 1, cpu::Features f = features())
      : pool(threads), arena(), counters(), ctx{&pool, &arena, f, &counters} {}

  std::vector<float> product(const PackedWeights& w, const std::vector<float>& x) {
    const int64_t rows = static_cast<int64_t>(x.size()) / w.k();
    std::vector<float> y(static_cast<size_t>(rows * w.n()), -1.0f);
    const auto done = matmul_nbits(ctx, {.rows = rows}, {x, &w, y});
    EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
    return y;
  }
};

std::vector<float> random_rows(Random& random, int64_t rows, int64_t k) {
  std::vector<float> x(static_cast<size_t>(rows * k));
  random.fill_normal(x);
  return x;
}

template <class A, class B>
bool same_bits(const A& a, const B& b) {
  return a.size() == b.size() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

// The formula from the file's layout in double, with the float32 steps of the quantization that the contract names.
double independent(const Weights& w, const float* x, int64_t column) {
  double y = 0;
  for (int64_t b = 0; b < w.blocks; b++) {
    const int64_t begin = b * 32;
    const int64_t end = std::min(w.k, begin + 32);
    float amax = 0;
    for (int64_t i = begin; i < end; i++) amax = std::fmax(amax, std::fabs(x[i]));
    const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
    int64_t sum = 0;
    for (int64_t i = begin; i < end; i++) {
      const float product = x[i] * inverse;
      const double lower = std::floor(static_cast<double>(product));
      const double part = product - lower;
      const bool up = part > 0.5 || (part == 0.5 && std::fmod(lower, 2.0) != 0.0);
      sum += static_cast<int64_t>(lower + (up ? 1 : 0)) * (w.code(column, i) - w.zero(column, b));
    }
    y += static_cast<double>(amax / 127.0f) * static_cast<double>(w.scale(column, b)) * static_cast<double>(sum);
  }
  return y;
}

// ---- the reference ----

// K = 40, N = 3, two rows; expected values are ONNX Runtime 1.30.0's.
Weights golden_weights(bool zero_points) {
  Weights w{40, 3, 2, {}, {}, {}, {}, {}};
  for (int n = 0; n < 3; n++) {
    for (int k = 0; k < 40; k++) w.q.push_back(static_cast<uint8_t>((3 * k + 5 * n + 1) % 16));
    w.scales.push_back(0.0625f * static_cast<float>(n + 1));
    w.scales.push_back(-0.03125f * static_cast<float>(n + 1));
    for (int b = 0; b < 2 && zero_points; b++) w.z.push_back(static_cast<uint8_t>((4 + 3 * n + 5 * b) % 16));
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
  const std::vector<uint8_t> row0(w.bytes.begin(), w.bytes.begin() + 8);
  const std::vector<uint8_t> row1(w.bytes.begin() + 32, w.bytes.begin() + 36);
  EXPECT_EQ(row0, (std::vector<uint8_t>{65, 167, 13, 99, 201, 47, 133, 235}));
  EXPECT_EQ(row1, (std::vector<uint8_t>{150, 252, 82, 184}));
  EXPECT_EQ(w.zero_bytes, (std::vector<uint8_t>{148, 199, 250}));
}

TEST(MatMulNBitsGolden, SymmetricAndAsymmetricRowsMatch) {
  const float expected[2][6] = {{2.321912f, -2.496924f, 3.15668f, 0.6577264f, -1.580094f, -1.832554f},
                                {2.391425f, -2.40219f, 3.232345f, 0.6342889f, -1.767594f, -2.324741f}};
  for (const cpu::Isa isa : {cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avxvnni, cpu::Isa::avx512vnni}) {
    if (!features().has(isa)) continue;
    for (const bool zero_points : {false, true}) {
      const auto y = Bench(1, only(isa)).product(pack(golden_weights(zero_points)), golden_rows());
      for (size_t i = 0; i < 6; i++) {
        EXPECT_NEAR(y[i], expected[zero_points][i], 1e-6f * 4) << cpu::isa_name(isa) << " " << zero_points << " " << i;
      }
    }
  }
}

TEST(MatMulNBitsReference, QuantizesTheGoldenRow) {
  const auto x = golden_rows();
  std::vector<uint8_t> out(2 * 40);
  quantize_rows_f32_s8_reference({x.data(), 1, 40, out.data()});
  const int expected[12] = {-127, 51, -51, 127, 25, -76, 102, 0, -102, 76, -25, -127};
  for (size_t i = 0; i < 12; i++) EXPECT_EQ(static_cast<int8_t>(out[i]), expected[i]) << i;
  for (size_t i = 8; i < 32; i++) EXPECT_EQ(out[40 + i], 0) << "past the end of the row, " << i;
  float scale;
  std::memcpy(&scale, out.data() + 36, 4);
  EXPECT_EQ(scale, 1.25f / 127.0f);
}

TEST(MatMulNBitsReference, RoundsTiesToEven) {
  // The largest element is 127, so inv is 1 and the elements are their own products.
  const float x[32] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, 125.5f, 0.49999997f, 2.4999998f, -127};
  const int expected[12] = {127, 0, 2, 2, 0, -2, -2, 126, 126, 0, 2, -127};
  for (const TestVariant& v : variants(false)) {
    if (!features().has(v.isa)) continue;
    std::vector<uint8_t> out(40);
    v.quantize({x, 1, 32, out.data()});
    int32_t sum = 0;
    for (size_t i = 0; i < 12; i++) {
      EXPECT_EQ(static_cast<int8_t>(out[i]), expected[i]) << v.symbol << " " << i;
      sum += expected[i];
    }
    int32_t correction;
    std::memcpy(&correction, out.data() + 32, 4);
    EXPECT_EQ(correction, -8 * sum) << v.symbol;
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
    for (const TestVariant& v : variants(false)) {
      if (!features().has(v.isa)) continue;
      std::vector<uint8_t> out(40);
      v.quantize({x, 1, 32, out.data()});
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
  for (const bool zero_points : {false, true}) {
    for (const int64_t k : {1, 31, 32, 33, 64, 255, 1024}) {
      for (const int64_t n : {1, 16, 17}) {
        const Weights w = random_weights(random, k, n, zero_points);
        const auto x = random_rows(random, 3, k);
        const auto y = Bench(1, only(cpu::Isa::scalar)).product(pack(w), x);
        for (int64_t m = 0; m < 3; m++) {
          for (int64_t c = 0; c < n; c++) {
            const double expected = independent(w, x.data() + m * k, c);
            // One rounding of the scales' product and one of the fma a block; terms are below 32 * 15 * 0.02 * 6.
            const double bound = 0x1p-23 * static_cast<double>(w.blocks) * 32 * 15 * 0.02 * 6;
            EXPECT_NEAR(y[static_cast<size_t>(m * n + c)], expected, bound) << k << " " << n << " " << m << " " << c;
          }
        }
      }
    }
  }
}

TEST(MatMulNBitsReference, EveryCodeAndZeroPointDecodes) {
  // One element of 127 in a row makes code 127 and scale 1: y is 127 * (q - z) * scale, exact for these scales.
  const int64_t k = 64, n = 20;
  Weights w{k, n, 2, {}, {}, {}, {}, {}};
  for (int64_t i = 0; i < k * n; i++) w.q.push_back(static_cast<uint8_t>((i * 7 + i / k) % 16));
  for (int64_t i = 0; i < n * 2; i++) w.z.push_back(static_cast<uint8_t>(i % 16));
  for (int64_t i = 0; i < n * 2; i++) w.scales.push_back(i % 2 == 0 ? 0.25f : -0.5f);
  std::vector<float> x(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; i++) x[static_cast<size_t>(i * k + i)] = 127;
  const std::vector<uint8_t> zero_points = w.z;
  for (const bool asymmetric : {false, true}) {
    w.z = asymmetric ? zero_points : std::vector<uint8_t>{};
    w.encode(9);
    const auto y = Bench().product(pack(w), x);
    for (int64_t i = 0; i < k; i++) {
      for (int64_t c = 0; c < n; c++) {
        const float expected = 127.0f * static_cast<float>(w.code(c, i) - w.zero(c, i / 32)) * w.scale(c, i / 32);
        EXPECT_EQ(y[static_cast<size_t>(i * n + c)], expected) << i << " " << c;
      }
    }
  }
}

// ---- every variant ----

class QuantizeVariant : public ::testing::TestWithParam<TestVariant> {};
class ProductVariant : public ::testing::TestWithParam<TestVariant> {};

std::string test_name(const ::testing::TestParamInfo<TestVariant>& info) { return info.param.symbol; }
INSTANTIATE_TEST_SUITE_P(MatMulNBits, QuantizeVariant, ::testing::ValuesIn(variants(false)), test_name);
INSTANTIATE_TEST_SUITE_P(MatMulNBits, ProductVariant, ::testing::ValuesIn(variants(true)), test_name);

// Rows with ordinary numbers, and now and then a block that is zero, tiny, huge, not finite, or of one large element.
void fill_awkward(Random& random, std::span<float> x, int64_t k) {
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
    for (int64_t begin = 0; begin < k; begin += 32) {
      const auto block =
          x.subspan(static_cast<size_t>(m * k + begin), static_cast<size_t>(std::min<int64_t>(32, k - begin)));
      switch (random.below(8)) {
        case 0: std::ranges::fill(block, 0.0f); break;
        case 1:
          for (float& v : block) v *= 1e-38f;
          break;
        case 2:
          for (float& v : block) v *= 1e37f;
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

TEST_P(QuantizeVariant, WritesTheBytesOfTheReference) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(3);
  for (const int64_t k : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 511, 512, 513, 543, 1024, 1055}) {
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 9}) {
      GuardedArray<float> x(static_cast<size_t>(rows * k));
      fill_awkward(random, x.span(), k);
      const size_t bytes = *quantized_rows_bytes(rows, k);
      GuardedArray<uint8_t> seen(bytes), expected(bytes);
      std::ranges::fill(seen, uint8_t{0xaa});
      v.quantize({x.data(), rows, k, seen.data()});
      quantize_rows_f32_s8_reference({x.data(), rows, k, expected.data()});
      ASSERT_TRUE(same_bits(seen, expected)) << "k " << k << " rows " << rows;
    }
  }
}

void check_product(const TestVariant& v, Random& random, int64_t rows, int64_t n, int64_t k, bool zero_points) {
  SCOPED_TRACE(::testing::Message() << "M " << rows << " N " << n << " K " << k << " zero points " << zero_points);
  const PackedWeights packed = pack(random_weights(random, k, n, zero_points));
  GuardedArray<uint8_t> weights(packed.bytes());
  std::memcpy(weights.data(), packed.panel(0), packed.bytes());
  const auto x = random_rows(random, rows, k);
  GuardedArray<uint8_t> quantized(*quantized_rows_bytes(rows, k));
  quantize_rows_f32_s8_reference({x.data(), rows, k, quantized.data()});
  // Between the rows of y lie 3 floats that are nobody's.
  const int64_t stride = n + 3;
  const size_t floats = static_cast<size_t>(rows * stride - 3);
  GuardedArray<float> seen(floats), expected(floats);
  std::ranges::fill(seen, 77.0f);
  std::ranges::fill(expected, 77.0f);
  NBitsProductArgs args{weights.data(),
                        quantized.data(),
                        seen.data(),
                        stride,
                        rows,
                        packed.panels(),
                        static_cast<int64_t>(packed.panel_bytes()),
                        packed.blocks(),
                        n,
                        zero_points};
  v.product(args);
  args.y = expected.data();
  matmul_nbits_s8_u4_reference(args);
  ASSERT_TRUE(same_bits(seen, expected));
}

TEST_P(ProductVariant, GivesTheBitsOfTheReference) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(5);
  for (const bool zero_points : {false, true}) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 16, 31}) {
      for (const int64_t n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 64, 65, 81, 127}) {
        for (const int64_t k : {1, 31, 32, 33, 63, 65, 160}) {
          check_product(v, random, rows, n, k, zero_points);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ProductVariant, GivesTheBitsOfTheReferenceAtModelSizes) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(6);
  for (const int64_t k : {1024, 2048, 3072}) {
    for (const int64_t rows : {1, 4, 6}) check_product(v, random, rows, 272, k, false);
    check_product(v, random, 128, 48, k, false);
    check_product(v, random, 1, 1024, k, true);
  }
  check_product(v, random, 1, 151936, 32, false);
}

TEST_P(ProductVariant, ExtremeCodesDoNotOverflow) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  for (const int q : {0, 15}) {
    for (const float value : {1.0f, -1.0f}) {
      for (const int zero : {0, 8, 15}) {
        Weights w{64, 16, 2, std::vector<uint8_t>(64 * 16, static_cast<uint8_t>(q)), {}, std::vector<float>(32, 1),
                  {}, {}};
        if (zero != 8) w.z.assign(32, static_cast<uint8_t>(zero));
        w.encode();
        const auto y = Bench(1, only(v.isa)).product(pack(w), std::vector<float>(64 * 4, value));
        const float block = static_cast<float>(32 * 127 * (q - zero)) * value;
        for (const float seen : y) EXPECT_EQ(seen, std::fma(block, 1 / 127.0f, block * (1 / 127.0f)));
      }
    }
  }
}

TEST_P(ProductVariant, SpecialScalesGiveTheBitsOfTheReference) {
  const TestVariant& v = GetParam();
  SKIP_IF_CPU_LACKS(v.isa);
  Random random(8);
  const float scales[] = {0.0f, -0.0f, 1e-40f, -1e-44f, 1e-30f, 3e38f, std::numeric_limits<float>::infinity()};
  for (const int64_t rows : {1, 4}) {
    Weights w = random_weights(random, 96, 40, false);
    for (float& s : w.scales) s = scales[random.below(static_cast<int64_t>(std::size(scales)))];
    const auto x = random_rows(random, rows, 96);
    const PackedWeights packed = pack(w);
    const auto seen = Bench(1, only(v.isa)).product(packed, x);
    const auto expected = Bench(1, only(cpu::Isa::scalar)).product(packed, x);
    for (size_t i = 0; i < seen.size(); i++) {
      // The sign of a NaN that infinities make is not defined.
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(seen[i])) << i;
      } else {
        EXPECT_EQ(std::signbit(seen[i]), std::signbit(expected[i])) << i;
        EXPECT_EQ(seen[i], expected[i]) << i;
      }
    }
  }
}

// ---- the entries ----

TEST(MatMulNBits, RowsDoNotDependOnHowManyThereAre) {
  Random random(21);
  for (const int64_t k : {33, 1024}) {
    const PackedWeights packed = pack(random_weights(random, k, 127, false));
    for (const int64_t rows : {0, 1, 2, 3, 7, 8, 16, 31, 128, 129, 300}) {
      const auto x = random_rows(random, rows, k);
      Bench bench;
      const auto all = bench.product(packed, x);
      std::vector<float> single;
      for (int64_t m = 0; m < rows; m++) {
        const auto row = bench.product(packed, {x.begin() + m * k, x.begin() + (m + 1) * k});
        single.insert(single.end(), row.begin(), row.end());
      }
      EXPECT_TRUE(same_bits(all, single)) << k << " " << rows;
    }
  }
}

TEST(MatMulNBits, ThreadCountDoesNotChangeBits) {
  Random random(22);
  for (const int64_t n : {1, 16, 50, 640}) {
    const Weights w = random_weights(random, 513, n, false);
    for (const int64_t rows : {1, 2, 5, 64, 260}) {
      const auto x = random_rows(random, rows, 513);
      const auto one = Bench(1).product(pack(w, 1), x);
      for (const int threads : {2, 3, 7}) EXPECT_TRUE(same_bits(one, Bench(threads).product(pack(w, threads), x)));
    }
  }
}

TEST(MatMulNBits, TwoHalvesEqualTheWhole) {
  Random random(23);
  for (const int64_t k : {100, 8000}) {
    const PackedWeights packed = pack(random_weights(random, k, 33, true));
    for (const int64_t rows : {0, 1, 6, 131, 260}) {
      const auto x = random_rows(random, rows, k);
      Bench bench(2);
      std::vector<uint32_t> storage(*quantized_rows_bytes(rows, k) / 4);
      const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(storage.data()), storage.size() * 4);
      auto quantized = quantize_rows(bench.ctx, {.rows = rows, .k = k}, {x, bytes});
      ASSERT_TRUE(quantized.ok());
      std::vector<float> y(static_cast<size_t>(rows * 33));
      ASSERT_TRUE(matmul_prequantized(bench.ctx, {*quantized, &packed, y}).ok());
      EXPECT_TRUE(same_bits(y, bench.product(packed, x))) << k << " " << rows;
    }
  }
}

TEST(MatMulNBits, NotFiniteBlockSpoilsItsRowOnly) {
  Random random(24);
  Weights w = random_weights(random, 96, 37, false);
  std::ranges::fill(w.q, uint8_t{8});  // weights of zero do not hide it
  w.encode();
  const PackedWeights packed = pack(w);
  for (const cpu::Isa isa : {cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avxvnni, cpu::Isa::avx512vnni}) {
    if (!features().has(isa)) continue;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      for (const size_t rows : {1u, 3u}) {
        std::vector<float> x(rows * 96, 1.0f);
        x[(rows - 1) * 96 + 40] = bad;
        const auto y = Bench(1, only(isa)).product(packed, x);
        for (size_t i = 0; i < y.size(); i++) EXPECT_EQ(std::isnan(y[i]), i / 37 == rows - 1) << cpu::isa_name(isa);
      }
    }
  }
}

TEST(MatMulNBits, ZeroAndTinyBlocksCountAsZero) {
  Random random(25);
  const Weights w = random_weights(random, 64, 17, true);
  std::vector<float> x(64, 0.0f);
  Bench bench;
  for (const float y : bench.product(pack(w), x)) EXPECT_EQ(y, 0.0f);
  x[3] = 1e-38f;
  x[40] = -std::numeric_limits<float>::denorm_min();
  for (const float y : bench.product(pack(w), x)) EXPECT_EQ(y, 0.0f);
}

TEST(MatMulNBits, PaddingNibblesHaveNoInfluence) {
  Random random(26);
  Weights w = random_weights(random, 70, 19, true);  // 3 blocks: the last zero-point nibble of a column is padding
  const auto x = random_rows(random, 2, 70);
  w.encode(0);
  const auto clean = Bench().product(pack(w), x);
  w.encode(15);
  EXPECT_TRUE(same_bits(clean, Bench().product(pack(w), x)));
}

TEST(MatMulNBits, WritesNothingPastTheOutput) {
  Random random(27);
  for (const int64_t n : {1, 15, 17, 127}) {
    for (const int64_t rows : {1, 5}) {
      const PackedWeights packed = pack(random_weights(random, 64, n, false));
      GuardedArray<float> x(static_cast<size_t>(rows * 64)), y(static_cast<size_t>(rows * n));
      random.fill_normal(x.span());
      Bench bench(2);
      EXPECT_TRUE(matmul_nbits(bench.ctx, {.rows = rows}, {x.span(), &packed, y.span()}).ok());
    }
  }
}

TEST(MatMulNBits, SizesThatDoNotFitAreRefused) {
  Random random(28);
  const PackedWeights packed = pack(random_weights(random, 64, 5, false));
  std::vector<float> x(64), y(5);
  std::vector<uint32_t> storage(20);
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(storage.data()), 80);
  Bench bench;
  const auto code = [](const auto& result) { return result.error().code; };
  EXPECT_EQ(code(matmul_nbits(bench.ctx, {.rows = 2, .where = "here"}, {x, &packed, y})), Errc::bad_request);
  EXPECT_EQ(matmul_nbits(bench.ctx, {.rows = 2, .where = "here"}, {x, &packed, y}).error().where, "here");
  EXPECT_EQ(code(matmul_nbits(bench.ctx, {.rows = -1}, {x, &packed, y})), Errc::bad_request);
  EXPECT_EQ(code(matmul_nbits(bench.ctx, {.rows = 1}, {x, &packed, std::span(y).first(4)})), Errc::bad_request);
  EXPECT_EQ(code(quantize_rows(bench.ctx, {.rows = 1, .k = 64}, {x, bytes.first(79)})), Errc::bad_request);
  EXPECT_EQ(code(matmul_prequantized(bench.ctx, {{bytes.data(), 1, 32}, &packed, y})), Errc::bad_request);
  EXPECT_TRUE(quantize_rows(bench.ctx, {.rows = 1, .k = 64}, {x, bytes}).ok());
}

TEST(MatMulNBits, MemoryAndTrafficStayWithinTheirBounds) {
  Random random(29);
  const int64_t k = 1024, n = 4096;
  const Weights w = random_weights(random, k, n, false);
  largest_heap_allocation = 0;
  const PackedWeights packed = pack(w, 2);
  const size_t serialized = w.bytes.size() + w.scales.size() * 4;
  EXPECT_EQ(packed.bytes(), serialized);
  EXPECT_LT(largest_heap_allocation.load(), static_cast<size_t>(1 << 20));

  Bench bench(2);
  const auto x = random_rows(random, 128, k);
  std::vector<float> y(static_cast<size_t>(128 * n));
  const cpu::MemoryUsage before = cpu::memory_usage();
  for (const int64_t rows : {1, 2, 16, 128}) {
    const auto view = [&](const std::vector<float>& v, int64_t count) {
      return std::span<float>(const_cast<float*>(v.data()), static_cast<size_t>(count));
    };
    ASSERT_TRUE(matmul_nbits(bench.ctx, {.rows = rows}, {view(x, rows * k), &packed, view(y, rows * n)}).ok());
    const uint64_t heap = heap_allocations;
    bench.counters = {};
    ASSERT_TRUE(matmul_nbits(bench.ctx, {.rows = rows}, {view(x, rows * k), &packed, view(y, rows * n)}).ok());
    EXPECT_EQ(heap_allocations, heap) << rows << " rows";
    EXPECT_EQ(bench.counters.weight_bytes_read, packed.bytes()) << rows << " rows";
    EXPECT_LE(bench.arena.peak_bytes(), static_cast<size_t>(rows * (k / 32) * 40) + 63) << rows << " rows";
  }
  const cpu::MemoryUsage after = cpu::memory_usage();
  EXPECT_EQ(after.allocations[static_cast<size_t>(cpu::MemoryTag::weights)],
            before.allocations[static_cast<size_t>(cpu::MemoryTag::weights)]);
}

TEST(MatMulNBits, PackingGivesSourceBackInSteps) {
  Random random(30);
  const Weights w = random_weights(random, 1024, 40000, true);  // 20 MB of codes
  cpu::Pool pool(2);
  size_t dropped = 0, largest = 0;
  PackMatMulNBitsArgs args = w.args();
  args.drop_source = [&](std::span<const std::byte> bytes) {
    dropped += bytes.size();
    largest = std::max(largest, bytes.size());
  };
  const auto packed = pack_matmul_nbits(pool, args);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(dropped, w.bytes.size() + w.scales.size() * 4 + w.zero_bytes.size());
  EXPECT_LE(largest, static_cast<size_t>(8 << 20));
}

TEST(MatMulNBits, UnalignedSourcePacksTheSame) {
  Random random(31);
  const Weights w = random_weights(random, 96, 18, true);
  std::vector<std::byte> copy(1 + w.args().codes.size() + w.args().scales.size());
  std::ranges::copy(w.args().codes, copy.begin() + 1);
  std::ranges::copy(w.args().scales, copy.begin() + 1 + static_cast<int64_t>(w.args().codes.size()));
  PackMatMulNBitsArgs args = w.args();
  args.codes = std::span<const std::byte>(copy).subspan(1, args.codes.size());
  args.scales = std::span<const std::byte>(copy).subspan(1 + args.codes.size());
  cpu::Pool pool(1);
  const auto packed = pack_matmul_nbits(pool, args);
  ASSERT_TRUE(packed.ok());
  const PackedWeights expected = pack(w);
  EXPECT_EQ(std::memcmp(packed->panel(0), expected.panel(0), expected.bytes()), 0);
}

// ---- the ONNX adapter ----

struct Node {
  std::vector<Attribute> attributes;
  std::vector<NodeInput> inputs;
  bool outputs[1] = {true};
  Weights weights;
  std::map<std::pair<const void*, const void*>, std::shared_ptr<const void>> shared;
  cpu::Pool pool{1};
  uint64_t preparations = 0;

  explicit Node(int64_t k = 70, int64_t n = 19, bool zero_points = false) : weights{} {
    Random random(41);
    weights = random_weights(random, k, n, zero_points);
    set("K", k);
    set("N", n);
    set("block_size", 32);
    set("bits", 4);
    set("accuracy_level", 4);
    inputs.resize(3);
    inputs[0].present = true;
    constant(1, DType::u8, {n, weights.blocks, 16}, weights.bytes.data());
    constant(2, DType::f32, {n, weights.blocks}, weights.scales.data());
    if (zero_points) constant(3, DType::u8, {n, (weights.blocks + 1) / 2}, weights.zero_bytes.data());
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
  Result<std::unique_ptr<Operator>> make() {
    NodeView view;
    view.name = "/lm_head/MatMul_Q4";
    view.op = "MatMulNBits";
    view.domain = "com.microsoft";
    view.opset = 1;
    view.attributes = attributes;
    view.inputs = inputs;
    view.outputs = outputs;
    PrepareContext ctx;
    ctx.features = features();
    ctx.pool = &pool;
    ctx.shared = &shared;
    ctx.preparations = &preparations;
    return make_matmul_nbits(view, ctx);
  }
};

Result<Shape> resolve(const Operator& op, const Shape& a) {
  Tensor in;
  in.shape = a;
  IntValues in_values, out_values;
  Shape out;
  View view;
  const auto done = op.resolve({{&in, 1}, {&in_values, 1}, {&out, 1}, {&out_values, 1}, {&view, 1}});
  if (!done.ok()) return done.error();
  return out;
}

Result<std::vector<float>> run(const Operator& op, Bench& bench, const std::vector<float>& x, const Shape& a) {
  auto shape = resolve(op, a);
  if (!shape.ok()) return shape.error();
  std::vector<float> y(static_cast<size_t>(shape->elements()));
  Tensor in, out;
  in.data = const_cast<float*>(x.data());
  in.shape = a;
  out.data = y.data();
  out.shape = *shape;
  const auto done = op.run(bench.ctx, {&in, 1}, {&out, 1});
  if (!done.ok()) return done.error();
  return y;
}

TEST(MatMulNBitsNode, RunsAnyRankFromOneUp) {
  Node node;
  auto op = node.make();
  ASSERT_TRUE(op.ok()) << op.error().message();
  Random random(42);
  const auto x = random_rows(random, 6, 70);
  const auto expected = Bench().product(pack(node.weights), x);
  Bench bench;
  for (const Shape& shape : {Shape{6, 70}, Shape{2, 3, 70}, Shape{1, 2, 1, 3, 70}}) {
    auto y = run(**op, bench, x, shape);
    ASSERT_TRUE(y.ok()) << y.error().message();
    EXPECT_TRUE(same_bits(*y, expected)) << shape.to_string();
  }
  EXPECT_EQ(*resolve(**op, {2, 3, 70}), (Shape{2, 3, 19}));
  auto one = run(**op, bench, {x.begin(), x.begin() + 70}, {70});
  ASSERT_TRUE(one.ok());
  EXPECT_TRUE(same_bits(*one, std::vector<float>(expected.begin(), expected.begin() + 19)));
  auto none = run(**op, bench, {}, {2, 0, 70});
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  EXPECT_TRUE((*op)->row_wise());
  EXPECT_EQ((*op)->output_dtype(0), DType::f32);
}

TEST(MatMulNBitsNode, NamesTheVariantOfTheCpu) {
  Node node;
  auto op = node.make();
  ASSERT_TRUE(op.ok());
  const auto& all = matmul_nbits_variants();
  EXPECT_EQ((*op)->variant(), matmul_nbits_variant(features()));
  EXPECT_TRUE(std::ranges::any_of(all, [&](const VariantInfo& v) { return v.symbol == (*op)->variant(); }));
  EXPECT_EQ(all.back().isa, cpu::Isa::scalar);
}

TEST(MatMulNBitsNode, FlatScalesAndZeroPointsGiveTheSamePlan) {
  Random random(43);
  const auto x = random_rows(random, 2, 70);
  for (const bool zero_points : {false, true}) {
    Node a(70, 19, zero_points), b(70, 19, zero_points);
    b.constant(2, DType::f32, {19 * 3}, b.weights.scales.data());
    if (zero_points) b.constant(3, DType::u8, {19 * 2}, b.weights.zero_bytes.data());
    auto first = a.make(), second = b.make();
    ASSERT_TRUE(first.ok() && second.ok());
    Bench bench;
    EXPECT_TRUE(same_bits(*run(**first, bench, x, {2, 70}), *run(**second, bench, x, {2, 70})));
  }
}

TEST(MatMulNBitsNode, PreparesOnceForAllCallsAndNodes) {
  Node node(64, 33);
  auto first = node.make(), second = node.make();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(node.preparations, 1u);
  EXPECT_GT((*first)->prepared_bytes(), 0u);
  EXPECT_EQ((*first)->serialized_bytes(), node.weights.bytes.size() + node.weights.scales.size() * 4);
  EXPECT_EQ((*second)->prepared_bytes(), 0u);
  Random random(44);
  const auto x = random_rows(random, 5, 64);
  Bench bench;
  for (int i = 0; i < 1000; i++) {
    const int64_t rows = i % 5 + 1;
    ASSERT_TRUE(run(**second, bench, {x.begin(), x.begin() + rows * 64}, {rows, 64}).ok());
  }
  EXPECT_EQ(node.preparations, 1u);
  node.set("K", 63);  // the same number of blocks, but another operator
  ASSERT_TRUE(node.make().ok());
  EXPECT_EQ(node.preparations, 2u);
}

TEST(MatMulNBitsNode, WrongLastDimensionIsRefusedAtRunTime) {
  Node node;
  auto op = node.make();
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
  const std::vector<Refusal> refusals = {
      {"bits = 8", kUnsupported, attribute("bits", 8)},
      {"bits = 2", kUnsupported, attribute("bits", 2)},
      {"bits = 3", kBad, attribute("bits", 3)},
      {"block_size = 64", kUnsupported, attribute("block_size", 64)},
      {"block_size = 16", kUnsupported, attribute("block_size", 16)},
      {"block_size = 48", kBad, attribute("block_size", 48)},
      {"block_size = 512", kBad, attribute("block_size", 512)},
      {"accuracy_level = 0", kUnsupported, attribute("accuracy_level", 0)},
      {"accuracy_level = 0", kUnsupported, no_attribute("accuracy_level")},
      {"accuracy_level = 3", kUnsupported, attribute("accuracy_level", 3)},
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
      {"input 1 (B)", kBad, attribute("K", 97)},
      {"input 1 (B)", kBad, attribute("N", 18)},
      {"input 1 (B)", kBad, attribute("K", kHuge)},
      {"input 1 (B)", kBad, attribute("N", kHuge)},
      {"input 1 (B)", kBad, other_constant(1, DType::u8, {19, 48})},
      {"input 1 (B)", kUnsupported, not_constant(1)},
      {"input 1", kUnsupported, other_type(1, DType::i8)},
      {"input 1", kBad, no_input(1)},
      {"input 2 (scales)", kBad, other_constant(2, DType::f32, {19 * 3 - 1})},
      {"input 2 (scales)", kBad, other_constant(2, DType::f32, {3, 19})},
      {"input 2 (scales)", kUnsupported, not_constant(2)},
      {"input 2", kUnsupported, other_type(2, DType::f16)},
      {"input 2", kBad, no_input(2)},
      {"input 0", kUnsupported, other_type(0, DType::f16)},
      {"input 3", kUnsupported, other_constant(3, DType::f32, {19, 3})},
      {"input 3 (zero_points)", kBad, other_constant(3, DType::u8, {19 * 3 / 2})},
      {"input 3 (zero_points)", kUnsupported, both(other_constant(3, DType::u8, {19, 2}), not_constant(3))},
      {"g_idx", kUnsupported, other_constant(4, DType::i32, {70})},
      {"bias", kUnsupported, other_constant(5, DType::f32, {19})},
      {"input 6", kUnsupported, other_constant(6, DType::f32, {19})},
  };
  for (const Refusal& refusal : refusals) {
    Node node;
    refusal.change(node);
    const auto op = node.make();
    ASSERT_FALSE(op.ok()) << refusal.name;
    EXPECT_EQ(op.error().code, refusal.code) << op.error().message();
    EXPECT_NE(op.error().what.find(refusal.name), std::string::npos) << op.error().message();
    EXPECT_NE(op.error().where.find("/lm_head/MatMul_Q4"), std::string::npos) << op.error().message();
    EXPECT_EQ(node.preparations, 0u);
  }
}

}  // namespace
}  // namespace quern::ops
