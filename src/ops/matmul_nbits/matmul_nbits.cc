// SPDX-License-Identifier: Apache-2.0
// Checks the arguments, selects the variants and cuts the work for the threads.
#include "ops/matmul_nbits/matmul_nbits.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/checked.h"
#include "ops/matmul_nbits/kernels.h"

namespace quern::ops {

using NBitsQuantize = void(const NBitsQuantizeArgs&) noexcept;
using NBitsProduct = void(const NBitsProductArgs&) noexcept;

#define QUERN_ROLE_quantize NBitsQuantize
#define QUERN_ROLE_product NBitsProduct
#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa(QUERN_ROLE_##role symbol;)
#include "ops/matmul_nbits/kernels.inc"
#undef QUERN_KERNEL
#undef QUERN_ROLE_quantize
#undef QUERN_ROLE_product

namespace {

#define QUERN_VARIANT(isa, symbol) {cpu::Isa::isa, &symbol, #symbol},

#define QUERN_ROLE_quantize(isa, symbol) QUERN_VARIANT(isa, symbol)
#define QUERN_ROLE_product(isa, symbol)
#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa(QUERN_ROLE_##role(isa, symbol))
constexpr Variant<NBitsQuantize> kQuantize[] = {
#include "ops/matmul_nbits/kernels.inc"
};
#undef QUERN_ROLE_quantize
#undef QUERN_ROLE_product

#define QUERN_ROLE_quantize(isa, symbol)
#define QUERN_ROLE_product(isa, symbol) QUERN_VARIANT(isa, symbol)
constexpr Variant<NBitsProduct> kProduct[] = {
#include "ops/matmul_nbits/kernels.inc"
};
#undef QUERN_ROLE_quantize
#undef QUERN_ROLE_product
#undef QUERN_KERNEL
#undef QUERN_VARIANT

#define QUERN_KERNEL(isa, symbol, role) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol}, )
constexpr VariantInfo kVariants[] = {
#include "ops/matmul_nbits/kernels.inc"
};
#undef QUERN_KERNEL

// Rows of a pass and the cache they should fit: half of a core's typical 1 MiB of second-level cache, the rest being
// for weights on their way and for results.
constexpr int64_t kPassRows = 128;
constexpr int64_t kMinPassRows = 64;
constexpr int64_t kPassBytes = 512 << 10;

// Waking the threads costs about as much as quantizing this many blocks (1 to 2 us).
constexpr int64_t kSerialBlocks = 512;

// Chunks a thread: enough that a thread which was late leaves its work to others.
constexpr int64_t kChunksPerThread = 6;

// Kernels walk several panels at once, 4 at most; smaller chunks would leave streams unused.
constexpr int64_t kPanelsAtOnce = 4;

int64_t panels_per_chunk(int64_t panels, int64_t threads) {
  if (threads == 1) return panels;
  const int64_t even = panels / (threads * kChunksPerThread);
  if (even >= kPanelsAtOnce) return round_up(even, kPanelsAtOnce);
  return std::min(kPanelsAtOnce, ceil_div(panels, threads));
}

void quantize(const Context& ctx, const float* x, int64_t rows, int64_t k, uint8_t* out) {
  const auto& variant = select<NBitsQuantize>(kQuantize, ctx.features);
  const int64_t blocks = ceil_div<int64_t>(k, kNBitsBlock);
  if (rows * blocks < kSerialBlocks) {
    variant.run({x, rows, k, out});
    return;
  }
  const int64_t tiles = ceil_div<int64_t>(rows, kNBitsTileRows);
  const int64_t chunk = ceil_div(tiles, ctx.pool->threads() * kChunksPerThread);
  ctx.pool->parallel_for(tiles, chunk, [&](int64_t begin, int64_t end, int /*worker*/) {
    const int64_t first = begin * kNBitsTileRows;
    const int64_t count = std::min(rows, end * kNBitsTileRows) - first;
    variant.run({x + first * k, count, k, out + first * blocks * kNBitsRowBlockBytes});
  });
}

// `rows` <= matmul_nbits_pass_rows(k), starting at a tile.
void multiply(const Context& ctx, const PackedWeights& weights, const uint8_t* rows, int64_t row_count, float* y) {
  const auto& variant = select<NBitsProduct>(kProduct, ctx.features);
  const int64_t n = weights.n();
  const int64_t chunk = panels_per_chunk(weights.panels(), ctx.pool->threads());
  ctx.pool->parallel_for(weights.panels(), chunk, [&](int64_t begin, int64_t end, int /*worker*/) {
    const int64_t first = begin * kNBitsPanel;
    NBitsProductArgs args;
    args.weights = weights.panel(begin);
    args.rows = rows;
    args.y = y + first;
    args.y_stride = n;
    args.row_count = row_count;
    args.panels = end - begin;
    args.panel_bytes = static_cast<int64_t>(weights.panel_bytes());
    args.blocks = weights.blocks();
    args.columns = std::min(n, end * kNBitsPanel) - first;
    args.has_zero_points = weights.has_zero_points();
    variant.run(args);
  });
  if (ctx.counters != nullptr) ctx.counters->weight_bytes_read += weights.bytes();
}

Result<void> check_elements(std::string_view where, std::string_view what, size_t seen, int64_t rows, int64_t columns) {
  const auto need = rows < 0 ? std::nullopt : checked_mul(rows, columns);
  if (need && static_cast<size_t>(*need) == seen) return {};
  return bad_request(std::string(where),
                     fmt::format("{} has {} elements, which is not {} rows of {}", what, seen, rows, columns));
}

}  // namespace

std::span<const VariantInfo> matmul_nbits_variants() { return kVariants; }

std::string_view matmul_nbits_variant(const cpu::Features& features) {
  return select<NBitsProduct>(kProduct, features).symbol;
}

int64_t matmul_nbits_pass_rows(int64_t k) {
  const int64_t row_bytes = ceil_div<int64_t>(k, kNBitsBlock) * kNBitsRowBlockBytes;
  const int64_t fitting = kPassBytes / std::max<int64_t>(row_bytes, 1) / kNBitsTileRows * kNBitsTileRows;
  return std::clamp(fitting, kMinPassRows, kPassRows);
}

std::optional<size_t> quantized_rows_bytes(int64_t rows, int64_t k) {
  if (rows < 0 || k < 0) return std::nullopt;
  const auto row = checked_mul<int64_t>(ceil_div<int64_t>(k, kNBitsBlock), kNBitsRowBlockBytes);
  const auto all = row ? checked_mul(rows, *row) : std::nullopt;
  if (!all) return std::nullopt;
  return static_cast<size_t>(*all);
}

Result<QuantizedRows> quantize_rows(const Context& ctx, const QuantizeRowsParams& params,
                                    const QuantizeRowsArgs& args) {
  QUERN_TRY_VOID(check_elements(params.where, "x", args.x.size(), params.rows, params.k));
  const auto bytes = quantized_rows_bytes(params.rows, params.k);
  if (!bytes || args.storage.size() < *bytes) {
    return bad_request(std::string(params.where), fmt::format("{} bytes are too few for {} quantized rows of {}",
                                                              args.storage.size(), params.rows, params.k));
  }
  QUERN_CHECK(reinterpret_cast<uintptr_t>(args.storage.data()) % alignof(float) == 0, "storage of rows is aligned");
  if (params.rows > 0) quantize(ctx, args.x.data(), params.rows, params.k, args.storage.data());
  return QuantizedRows{args.storage.data(), params.rows, params.k};
}

Result<void> matmul_prequantized(const Context& ctx, const MatMulPrequantizedArgs& args) {
  QUERN_CHECK(args.weights != nullptr, "weights are given");
  const PackedWeights& weights = *args.weights;
  if (args.x.k != weights.k()) {
    return bad_request(std::string(args.where),
                       fmt::format("rows of {} elements do not fit weights of K = {}", args.x.k, weights.k()));
  }
  QUERN_TRY_VOID(check_elements(args.where, "y", args.y.size(), args.x.rows, weights.n()));
  const int64_t pass = matmul_nbits_pass_rows(args.x.k);
  for (int64_t first = 0; first < args.x.rows; first += pass) {
    multiply(ctx, weights, args.x.data + first * weights.blocks() * kNBitsRowBlockBytes,
             std::min(pass, args.x.rows - first), args.y.data() + first * weights.n());
  }
  return {};
}

Result<void> matmul_nbits(const Context& ctx, const MatMulNBitsParams& params, const MatMulNBitsArgs& args) {
  QUERN_CHECK(args.weights != nullptr, "weights are given");
  const PackedWeights& weights = *args.weights;
  QUERN_TRY_VOID(check_elements(params.where, "x", args.x.size(), params.rows, weights.k()));
  QUERN_TRY_VOID(check_elements(params.where, "y", args.y.size(), params.rows, weights.n()));
  if (params.rows == 0) return {};
  const int64_t pass = std::min(params.rows, matmul_nbits_pass_rows(weights.k()));
  const auto bytes = quantized_rows_bytes(pass, weights.k());
  QUERN_CHECK(bytes.has_value(), "a pass of checked rows has a size");
  cpu::Arena::Scope scope(*ctx.scratch);
  QUERN_TRY(uint8_t * rows, ctx.scratch->take<uint8_t>(*bytes));
  // Pass by pass, so that the quantized rows are still in cache when the product reads them.
  for (int64_t first = 0; first < params.rows; first += pass) {
    const int64_t count = std::min(pass, params.rows - first);
    quantize(ctx, args.x.data() + first * weights.k(), count, weights.k(), rows);
    multiply(ctx, weights, rows, count, args.y.data() + first * weights.n());
  }
  return {};
}

}  // namespace quern::ops
