// SPDX-License-Identifier: Apache-2.0
// Checks the contract, widens the rows of x, selects the variant and splits the outputs across threads.
#include "ops/linear/linear.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "ops/element.h"

namespace quern::ops {

#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(LinearTile symbol;)
#include "ops/linear/kernels.inc"
#undef QUERN_KERNEL

namespace {

constexpr TypedVariant<LinearTile> kVariants[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/linear/kernels.inc"
#undef QUERN_KERNEL
};

constexpr VariantInfo kVariantInfos[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #type}, )
#include "ops/linear/kernels.inc"
#undef QUERN_KERNEL
};

// Rows of x whose sums wait in scratch at once: their share of it stays in the second-level cache with the weights.
constexpr int64_t kRowBlock = 64;
// Outputs handed out at once. More rows: weights of a common depth that stay in the second-level cache meanwhile. Few
// rows: less, so that threads end together.
constexpr int64_t kColumnBlock = 64;
constexpr int64_t kFewRows = 8;
constexpr int64_t kFewRowsColumnBlock = 16;
// Multiply-adds below this number cost less than waking a worker.
constexpr int64_t kInlineProducts = 64 * 1024;

Result<void> check(const LinearParams& p, std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  QUERN_TRY_VOID(check_float_or_brain(p.weight_type, where));
  if (p.n < 1 || p.k < 1) {
    return bad_request(std::string(where),
                       fmt::format("weights of {} rows of {} elements are not allowed (1 or more)", p.n, p.k));
  }
  return {};
}

const TypedVariant<LinearTile>& choose(DType weight_type, const cpu::Features& features) {
  return select_typed(std::span<const TypedVariant<LinearTile>>(kVariants), weight_type, features);
}

}  // namespace

std::span<const VariantInfo> linear_variants() { return kVariantInfos; }

std::string_view linear_variant(DType weight_type, const cpu::Features& features) {
  return choose(weight_type, features).symbol;
}

LinearTile* linear_tile(DType weight_type, const cpu::Features& features) { return choose(weight_type, features).run; }

int64_t linear_row_floats(int64_t k) { return round_up(k, kLinearStep); }

void prepare_linear_row(DType type, DType weight_type, const void* x, int64_t k, float* row) {
  with_element(type, [&](auto e) {
    for (int64_t i = 0; i < k; i++) row[linear_place(weight_type, i)] = e.load(x, i);
  });
  for (int64_t i = k; i < linear_row_floats(k); i++) row[linear_place(weight_type, i)] = 0;
}

Result<void> linear(const Context& ctx, const LinearParams& p, const LinearArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check(p, where));
  if (p.m <= 0) return {};
  QUERN_CHECK(a.x.data != nullptr && a.weight != nullptr && a.y.data != nullptr, "linear arguments");
  const cpu::Arena::Scope scope(*ctx.scratch);
  const int64_t ld = linear_row_floats(p.k);
  QUERN_TRY(float* rows, ctx.scratch->take<float>(static_cast<size_t>(p.m) * static_cast<size_t>(ld)));
  const size_t sums = static_cast<size_t>(std::min(p.m, kRowBlock) * kColumnBlock);
  QUERN_TRY(float* all_sums, ctx.scratch->take<float>(static_cast<size_t>(ctx.pool->threads()) * sums));

  for_rows(ctx, p.m, p.k, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      prepare_linear_row(p.type, p.weight_type, element_at(p.type, a.x.data, i * a.x.stride), p.k, rows + i * ld);
    }
  });
  const auto run = linear_tile(p.weight_type, ctx.features);
  const int64_t block = p.m <= kFewRows ? kFewRowsColumnBlock : kColumnBlock;
  const auto columns = [&](int64_t begin, int64_t end, int worker) {
    float* sum = all_sums + static_cast<size_t>(worker) * sums;
    for (int64_t column = begin; column < end; column += block) {
      const int64_t width = std::min(block, end - column);
      const void* weight = element_at(p.weight_type, a.weight, column * p.k);
      for (int64_t row = 0; row < p.m; row += kRowBlock) {
        const int64_t height = std::min(kRowBlock, p.m - row);
        run({rows + row * ld, ld, weight, sum, kColumnBlock, height, width, p.k});
        with_element(p.type, [&](auto e) {
          for (int64_t i = 0; i < height; i++) {
            void* y = element_at(p.type, a.y.data, (row + i) * a.y.stride + column);
            for (int64_t j = 0; j < width; j++) e.store(y, j, sum[i * kColumnBlock + j]);
          }
        });
      }
    }
  };
  if (static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) <= kInlineProducts) {
    columns(0, p.n, 0);
  } else {
    ctx.pool->parallel_for(p.n, block, columns);
  }
  if (ctx.counters == nullptr) return {};
  ctx.counters->weight_bytes_read +=
      static_cast<uint64_t>(p.n) * static_cast<uint64_t>(p.k) * static_cast<uint64_t>(bits_of(p.weight_type) / 8);
  return {};
}

}  // namespace quern::ops
