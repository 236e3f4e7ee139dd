// SPDX-License-Identifier: Apache-2.0
// Checks the arguments, selects the variants and cuts the work for the threads.
#include "ops/matmul_nbits/matmul_nbits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/checked.h"
#include "cpu/topology.h"
#include "ops/matmul_nbits/layout.h"

namespace quern::ops {

using NBitsPrepare = void(const NBitsRowsArgs&) noexcept;
using NBitsMultiply = void(const NBitsProductArgs&) noexcept;

#define QUERN_ROLE_quantize NBitsPrepare
#define QUERN_ROLE_arrange NBitsPrepare
#define QUERN_ROLE_product NBitsMultiply
#define QUERN_ROLE_float_product NBitsMultiply
#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa(QUERN_ROLE_##role symbol;)
#include "ops/matmul_nbits/kernels.inc"
#undef QUERN_KERNEL
#undef QUERN_ROLE_quantize
#undef QUERN_ROLE_arrange
#undef QUERN_ROLE_product
#undef QUERN_ROLE_float_product

namespace {

enum class Role : uint8_t { quantize, arrange, product, float_product };

// A line of kernels.inc; one of the two functions is null.
struct Kernel {
  cpu::Isa isa;
  Role role;
  std::string_view symbol;
  NBitsPrepare* prepare;
  NBitsMultiply* multiply;

  constexpr Kernel(cpu::Isa i, Role r, std::string_view s, NBitsPrepare* f)
      : isa(i), role(r), symbol(s), prepare(f), multiply(nullptr) {}
  constexpr Kernel(cpu::Isa i, Role r, std::string_view s, NBitsMultiply* f)
      : isa(i), role(r), symbol(s), prepare(nullptr), multiply(f) {}
};

#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa({cpu::Isa::isa, Role::role, #symbol, &symbol}, )
constexpr Kernel kKernels[] = {
#include "ops/matmul_nbits/kernels.inc"
};
#undef QUERN_KERNEL

#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #role}, )
constexpr VariantInfo kVariants[] = {
#include "ops/matmul_nbits/kernels.inc"
};
#undef QUERN_KERNEL

// The first of the role whose instruction set may be used; the scalar one always may.
const Kernel& select_kernel(Role role, const cpu::Features& features) {
  const Kernel* found = nullptr;
  for (const Kernel& k : kKernels) {
    if (k.role != role || !features.has(k.isa)) continue;
    found = &k;
    break;
  }
  QUERN_CHECK(found != nullptr, "every role has a scalar kernel");
  return *found;
}

const Kernel& select_prepare(NBitsActivations activations, const cpu::Features& features) {
  return select_kernel(activations == NBitsActivations::s8 ? Role::quantize : Role::arrange, features);
}

const Kernel& select_multiply(NBitsActivations activations, const cpu::Features& features) {
  return select_kernel(activations == NBitsActivations::s8 ? Role::product : Role::float_product, features);
}

// Rows of a pass. 256 instead of 128 gain 1 to 3 % at 512 rows, since weights are unpacked half as often; fewer than 64
// would read the weights too often to matter whether the rows stay in the cache.
constexpr int64_t kPassRows = 256;
constexpr int64_t kMinPassRows = 64;

int64_t second_level_bytes() {
  static const int64_t bytes = [] {
    constexpr size_t kUsual = size_t{1} << 20;
    const size_t l2 = cpu::read_topology().l2_bytes;
    return static_cast<int64_t>(l2 == 0 ? kUsual : l2);
  }();
  return bytes;
}

// The part of a core's second-level cache that is for prepared rows; the other half is for weights on their way and for
// results.
int64_t pass_bytes() { return second_level_bytes() / 2; }

// The part of it that is for weights asked for ahead, between products of few rows. A token on two threads takes 0.992,
// 0.987, 0.983 and 0.977 of the time with 128, 256, 512 and 1024 KiB of a cache of 1024 (medians of 557 tokens in
// turns).
int64_t ahead_bytes() { return second_level_bytes() / 4 * 3; }

// Waking the threads costs about as much as preparing this many elements (1 to 2 us).
constexpr int64_t kSerialElements = 16 << 10;

// Tiles of rows are cheap enough for this many chunks a thread.
constexpr int64_t kChunksPerThread = 6;

// Kernels walk several panels at once, 4 at most; smaller pieces would leave streams unused.
constexpr int64_t kPanelsAtOnce = 4;

int64_t row_block_bytes(const NBitsRowsForm& form) {
  return form.activations == NBitsActivations::s8 ? nbits_s8_block_bytes(form.block)
                                                  : nbits_f32_block_bytes(form.block);
}

// Bytes of one prepared row of a form whose weights exist.
int64_t row_bytes(const NBitsRowsForm& form) { return ceil_div(form.k, form.block) * row_block_bytes(form); }

void prepare(const Context& ctx, const NBitsRowsForm& form, const float* x, int64_t rows, uint8_t* out) {
  const Kernel& kernel = select_prepare(form.activations, ctx.features);
  if (rows * form.k < kSerialElements) {
    kernel.prepare({x, rows, form.k, form.block, form.bits, out});
    return;
  }
  const int64_t tiles = ceil_div<int64_t>(rows, kNBitsTileRows);
  const int64_t chunk = ceil_div(tiles, ctx.pool->threads() * kChunksPerThread);
  ctx.pool->parallel_for(tiles, chunk, [&](int64_t begin, int64_t end, int /*worker*/) {
    const int64_t first = begin * kNBitsTileRows;
    const int64_t count = std::min(rows, end * kNBitsTileRows) - first;
    kernel.prepare({x + first * form.k, count, form.k, form.block, form.bits, out + first * row_bytes(form)});
  });
}

// Cuts `count` panels into pieces: each round hands every thread an equal share of a part of what is left, so that the
// pieces are long at first and the threads still finish together. A product of few rows walks a piece as streams from
// memory, which take time to get going, so its part is 7/8; where both threads read at full speed a token on two takes
// 0.97 of the time that halves take (3/4: 0.98, 15/16: 0.96 to 0.99). More rows compute, and take halves.
class Pieces {
 public:
  Pieces(int64_t count, int64_t threads, bool few_rows) : count_(count), threads_(threads) {
    if (threads == 1) {
      pieces_ = 1;
      return;
    }
    int64_t left = count;
    while (rounds_ < kMaxRounds) {
      const int64_t part = few_rows ? left - left / 8 : left / 2;
      const int64_t piece = part / threads / kPanelsAtOnce * kPanelsAtOnce;
      if (piece <= kPanelsAtOnce) break;
      rounds_end_[static_cast<size_t>(rounds_)] = {count - left, piece};
      rounds_++;
      left -= piece * threads;
    }
    rest_ = count - left;
    rest_piece_ = std::max<int64_t>(1, std::min(kPanelsAtOnce, ceil_div(left, threads)));
    pieces_ = rounds_ * threads + ceil_div(left, rest_piece_);
  }

  int64_t count() const { return pieces_; }
  int64_t begin(int64_t i) const {
    if (i >= pieces_) return count_;
    if (threads_ == 1) return 0;
    const int64_t round = i / threads_;
    if (round >= rounds_) return rest_ + (i - rounds_ * threads_) * rest_piece_;
    const Round& r = rounds_end_[static_cast<size_t>(round)];
    return r.begin + (i - round * threads_) * r.piece;
  }

 private:
  static constexpr int64_t kMaxRounds = 24;
  struct Round {
    int64_t begin, piece;
  };
  int64_t count_, threads_;
  int64_t pieces_ = 0, rounds_ = 0, rest_ = 0, rest_piece_ = 1;
  std::array<Round, kMaxRounds> rounds_end_{};
};

int64_t panels_of(std::span<const NBitsProduct> products) {
  int64_t panels = 0;
  for (const NBitsProduct& p : products) panels += p.weights->panels();
  return panels;
}

// One matrix's panels [begin, end) with `rows` rows.
void multiply_panels(const Kernel& kernel, const NBitsProduct& product, int64_t begin, int64_t end, const uint8_t* rows,
                     int64_t first_row, int64_t row_count) {
  const int64_t n = product.weights->n();
  NBitsProductArgs args;
  args.weights = product.weights->view(begin, end);
  args.rows = rows;
  args.y = product.y.data() + first_row * n + begin * kNBitsPanel;
  args.y_stride = n;
  args.row_count = row_count;
  kernel.multiply(args);
  if (product.bias.empty()) return;
  const float* bias = product.bias.data() + begin * kNBitsPanel;
  for (int64_t row = 0; row < row_count; row++) {
    float* y = args.y + row * n;
    for (int64_t i = 0; i < args.weights.columns; i++) y[i] += bias[i];
  }
}

// `row_count` <= matmul_nbits_pass_rows, starting at a tile and at row `first_row` of the results.
void multiply(const Context& ctx, const NBitsRowsForm& form, std::span<const NBitsProduct> products,
              const uint8_t* rows, int64_t first_row, int64_t row_count) {
  const Kernel& kernel = select_multiply(form.activations, ctx.features);
  const bool few_rows = row_count <= kNBitsTileRows;
  const Pieces pieces(panels_of(products), ctx.pool->threads(), few_rows);
  if (few_rows) ctx.pool->read_ahead(ctx.ahead);
  ctx.pool->parallel_for(pieces.count(), 1, [&](int64_t first, int64_t last, int /*worker*/) {
    int64_t begin = pieces.begin(first);
    const int64_t end = pieces.begin(last);
    int64_t start = 0;
    for (const NBitsProduct& p : products) {
      const int64_t stop = start + p.weights->panels();
      if (begin < std::min(end, stop)) {
        multiply_panels(kernel, p, begin - start, std::min(end, stop) - start, rows, first_row, row_count);
        begin = std::min(end, stop);
      }
      start = stop;
    }
  });
  if (ctx.counters == nullptr) return;
  for (const NBitsProduct& p : products) ctx.counters->weight_bytes_read += p.weights->bytes();
}

Result<void> check_elements(std::string_view where, std::string_view what, size_t seen, int64_t rows, int64_t columns) {
  const auto need = rows < 0 ? std::nullopt : checked_mul(rows, columns);
  if (need && static_cast<size_t>(*need) == seen) return {};
  return bad_request(std::string(where),
                     fmt::format("{} has {} elements, which is not {} rows of {}", what, seen, rows, columns));
}

Result<void> check_products(std::string_view where, const NBitsRowsForm& form, int64_t rows,
                            std::span<const NBitsProduct> products) {
  for (const NBitsProduct& p : products) {
    QUERN_CHECK(p.weights != nullptr, "weights are given");
    const NBitsForm& w = p.weights->form();
    if (form.activations == NBitsActivations::s8 && w.zeros == NBitsZeros::f32) {
      return bad_request(std::string(where), "int8 rows do not fit weights with floating-point zero points");
    }
    if (nbits_rows_form(w, form.activations) != form) {
      return bad_request(std::string(where), fmt::format("rows of {} elements in blocks of {} for {} bits do not fit "
                                                         "weights of K = {} in blocks of {} with {} bits",
                                                         form.k, form.block, form.bits, w.k, w.block, w.bits));
    }
    QUERN_TRY_VOID(check_elements(where, "y", p.y.size(), rows, w.n));
    if (!p.bias.empty()) QUERN_TRY_VOID(check_elements(where, "bias", p.bias.size(), 1, w.n));
  }
  return {};
}

}  // namespace

std::span<const VariantInfo> matmul_nbits_variants() { return kVariants; }

std::string_view matmul_nbits_variant(const cpu::Features& features, NBitsActivations activations) {
  return select_multiply(activations, features).symbol;
}

NBitsRowsForm nbits_rows_form(const NBitsForm& weights, NBitsActivations activations) {
  return {activations, weights.k, weights.block, activations == NBitsActivations::f32 ? weights.bits : 4};
}

int64_t matmul_nbits_pass_rows(const NBitsRowsForm& form) {
  const int64_t fitting = pass_bytes() / std::max<int64_t>(row_bytes(form), 1) / kNBitsTileRows * kNBitsTileRows;
  return std::clamp(fitting, kMinPassRows, kPassRows);
}

std::optional<size_t> nbits_rows_bytes(int64_t rows, const NBitsRowsForm& form) {
  if (rows < 0 || form.k < 0 || !nbits_known(form.bits, form.block)) return std::nullopt;
  const auto row = checked_mul<int64_t>(ceil_div(form.k, form.block), row_block_bytes(form));
  const auto all = row ? checked_mul(rows, *row) : std::nullopt;
  if (!all) return std::nullopt;
  return static_cast<size_t>(*all);
}

std::span<const std::byte> matmul_nbits_first_bytes(std::span<const NBitsProduct> products, int threads) {
  const Pieces pieces(panels_of(products), threads, true);
  // The calling thread takes the first piece.
  int64_t begin = pieces.begin(1);
  for (const NBitsProduct& p : products) {
    if (begin < p.weights->panels()) {
      const NBitsPanels rest = p.weights->view(begin, p.weights->panels());
      const int64_t bytes = std::min(ahead_bytes(), rest.panels * rest.panel_bytes);
      return std::as_bytes(std::span(rest.data, static_cast<size_t>(bytes)));
    }
    begin -= p.weights->panels();
  }
  return {};
}

Result<NBitsRows> prepare_nbits_rows(const Context& ctx, const PrepareNBitsRowsParams& params,
                                     const PrepareNBitsRowsArgs& args) {
  QUERN_TRY_VOID(check_elements(params.where, "x", args.x.size(), params.rows, params.form.k));
  const auto bytes = nbits_rows_bytes(params.rows, params.form);
  if (!bytes || args.storage.size() < *bytes) {
    return bad_request(std::string(params.where), fmt::format("{} bytes are too few for {} prepared rows of {}",
                                                              args.storage.size(), params.rows, params.form.k));
  }
  QUERN_CHECK(reinterpret_cast<uintptr_t>(args.storage.data()) % alignof(float) == 0, "storage of rows is aligned");
  if (params.rows > 0) prepare(ctx, params.form, args.x.data(), params.rows, args.storage.data());
  return NBitsRows{args.storage.data(), params.rows, params.form};
}

Result<void> matmul_prepared(const Context& ctx, const MatMulPreparedArgs& args) {
  QUERN_TRY_VOID(check_products(args.where, args.x.form, args.x.rows, args.products));
  const int64_t pass = matmul_nbits_pass_rows(args.x.form);
  for (int64_t first = 0; first < args.x.rows; first += pass) {
    multiply(ctx, args.x.form, args.products, args.x.data + first * row_bytes(args.x.form), first,
             std::min(pass, args.x.rows - first));
  }
  return {};
}

Result<void> matmul_nbits(const Context& ctx, const MatMulNBitsParams& params, const MatMulNBitsArgs& args) {
  QUERN_CHECK(!args.products.empty() && args.products[0].weights != nullptr, "weights are given");
  const NBitsRowsForm form = nbits_rows_form(args.products[0].weights->form(), params.activations);
  QUERN_TRY_VOID(check_elements(params.where, "x", args.x.size(), params.rows, form.k));
  QUERN_TRY_VOID(check_products(params.where, form, params.rows, args.products));
  if (params.rows == 0) return {};
  const int64_t pass = std::min(params.rows, matmul_nbits_pass_rows(form));
  const auto bytes = nbits_rows_bytes(pass, form);
  QUERN_CHECK(bytes.has_value(), "a pass of checked rows has a size");
  cpu::Arena::Scope scope(*ctx.scratch);
  QUERN_TRY(uint8_t * rows, ctx.scratch->take<uint8_t>(*bytes));
  // Pass by pass, so that the prepared rows are still in cache when the product reads them.
  for (int64_t first = 0; first < params.rows; first += pass) {
    const int64_t count = std::min(pass, params.rows - first);
    prepare(ctx, form, args.x.data() + first * form.k, count, rows);
    multiply(ctx, form, args.products, rows, first, count);
  }
  return {};
}

}  // namespace quern::ops
