// SPDX-License-Identifier: Apache-2.0
// Checks shapes, broadcasts the leading dimensions, cuts products into blocks and splits those across threads.
#include "ops/matmul/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "ops/kernel_list.h"
#include "ops/matmul/kernels.h"

namespace quern::ops {

using MatMulKernel = void(const MatMulKernelArgs&) noexcept;

#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa(void symbol(const MatMulKernelArgs& k) noexcept;)
#include "ops/matmul/kernels.inc"
#undef QUERN_KERNEL

namespace {

constexpr Variant<MatMulKernel> kVariants[] = {
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa({cpu::Isa::isa, &symbol, #symbol}, )
#include "ops/matmul/kernels.inc"
#undef QUERN_KERNEL
};

constexpr VariantInfo kVariantInfos[] = {
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, ""}, )
#include "ops/matmul/kernels.inc"
#undef QUERN_KERNEL
};

// A block of b is laid out once for this many rows of a, which makes that cost 1 part in 256 of the products.
constexpr int64_t kRowBlock = 256;
// Columns of a block: two cache lines of every row of b at the least, a multiple of every variant's tile.
constexpr int64_t kColumnBlock = 64;
// Few rows stream b; longer pieces of its rows keep the memory pages few.
constexpr int64_t kStreamedColumnBlock = 256;
// Multiply-adds below this number cost less than waking a worker.
constexpr int64_t kInlineProducts = 256 * 1024;

const Variant<MatMulKernel>& choose(const cpu::Features& features) {
  return select(std::span<const Variant<MatMulKernel>>(kVariants), features);
}

// One matrix product per batch element, vectors already seen as matrices.
struct Plan {
  int64_t m = 1, n = 1, k = 1;
  Shape batch;  // the broadcast leading dimensions, [] when b is one matrix
  Shape a_batch, b_batch;
};

Shape leading(const Shape& shape) {
  Shape out;
  for (int i = 0; i + 2 < shape.rank(); i++) out.push_back(shape[i]);
  return out;
}

// For shapes that matmul_shape() accepted.
Plan make_plan(const Shape& a, const Shape& b) {
  Plan plan;
  plan.k = a.back();
  plan.n = b.rank() == 1 ? 1 : b.back();
  if (b.rank() <= 2) {
    plan.m = a.rows();
    return plan;
  }
  plan.m = a.rank() == 1 ? 1 : a[a.rank() - 2];
  plan.a_batch = leading(a);
  plan.b_batch = leading(b);
  for (int i = std::max(plan.a_batch.rank(), plan.b_batch.rank()); i-- > 0;) {
    const int64_t ea = extent_from_back(plan.a_batch, i), eb = extent_from_back(plan.b_batch, i);
    plan.batch.push_back(ea == 1 ? eb : ea);
  }
  return plan;
}

// The matrix of an operand that meets product `index` of the broadcast batch.
int64_t operand_matrix(const Shape& operand, const Shape& batch, int64_t index) {
  int64_t at = 0, stride = 1;
  for (int i = 0; i < operand.rank(); i++) {
    const int64_t extent = extent_from_back(operand, i), whole = extent_from_back(batch, i);
    if (extent != 1) at += index % whole * stride;
    stride *= extent;
    index /= whole;
  }
  return at;
}

}  // namespace

std::span<const VariantInfo> matmul_variants() { return kVariantInfos; }

std::string_view matmul_variant(const cpu::Features& features) { return choose(features).symbol; }

Result<Shape> matmul_shape(const Shape& a, const Shape& b, std::string_view where) {
  const auto refuse = [&](std::string_view why) {
    return bad_request(std::string(where),
                       fmt::format("cannot multiply {} by {}: {}", a.to_string(), b.to_string(), why));
  };
  if (a.rank() == 0 || b.rank() == 0) return refuse("a scalar has no rows or columns");
  if (a.back() != (b.rank() == 1 ? b[0] : b[b.rank() - 2])) return refuse("the inner extents differ");
  const Shape a_batch = leading(a), b_batch = leading(b);
  Shape out;
  for (int i = std::max(a_batch.rank(), b_batch.rank()); i-- > 0;) {
    const int64_t ea = extent_from_back(a_batch, i), eb = extent_from_back(b_batch, i);
    if (ea != eb && ea != 1 && eb != 1) return refuse("the leading extents do not broadcast");
    out.push_back(ea == 1 ? eb : ea);
  }
  if (a.rank() > 1) out.push_back(a[a.rank() - 2]);
  if (b.rank() > 1) out.push_back(b.back());
  const auto elements = out.checked_elements();
  if (!elements || !storage_bytes(DType::f32, *elements)) return refuse("the result is too large");
  return out;
}

int64_t matmul_passes_over_b(const Shape& a, const Shape& b) {
  return b.rank() <= 2 ? ceil_div(a.rows(), kRowBlock) : 1;
}

Result<void> matmul(const Context& ctx, const MatMulParams& p, const MatMulArgs& a, std::string_view where) {
  QUERN_TRY(const Shape out, matmul_shape(p.a, p.b, where));
  const int64_t elements = out.checked_elements().value_or(0);
  if (elements == 0) return {};
  const Plan plan = make_plan(p.a, p.b);
  if (plan.k == 0) {
    std::fill_n(a.y, elements, 0.0f);
    return {};
  }

  const cpu::Arena::Scope scope(*ctx.scratch);
  const int workers = ctx.pool->threads();
  QUERN_TRY(float* panels, ctx.scratch->take<float>(static_cast<size_t>(workers * kMatMulPanelFloats)));
  const int64_t rows = kRowBlock;
  const int64_t columns = plan.m <= kMatMulStreamedRows ? kStreamedColumnBlock : kColumnBlock;
  const int64_t row_blocks = ceil_div(plan.m, rows), column_blocks = ceil_div(plan.n, columns);
  const int64_t blocks = plan.batch.elements() * row_blocks * column_blocks;
  const auto run = choose(ctx.features).run;
  auto multiply = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t product = i / (row_blocks * column_blocks);
      const int64_t row = i / column_blocks % row_blocks * rows, column = i % column_blocks * columns;
      const float* left = a.a + operand_matrix(plan.a_batch, plan.batch, product) * plan.m * plan.k;
      const float* right = a.b + operand_matrix(plan.b_batch, plan.batch, product) * plan.k * plan.n;
      run({left + row * plan.k, plan.k, right + column, plan.n, a.y + (product * plan.m + row) * plan.n + column,
           plan.n, std::min(rows, plan.m - row), std::min(columns, plan.n - column), plan.k,
           panels + worker * kMatMulPanelFloats});
    }
  };
  // In double, where the product of three extents cannot overflow.
  const double products = static_cast<double>(elements) * static_cast<double>(plan.k);
  if (blocks == 1 || products <= static_cast<double>(kInlineProducts)) {
    multiply(0, blocks, 0);
  } else {
    ctx.pool->parallel_for(blocks, 1, multiply);
  }
  return {};
}

}  // namespace quern::ops
