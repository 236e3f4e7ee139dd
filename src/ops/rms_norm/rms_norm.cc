// SPDX-License-Identifier: Apache-2.0
// Checks the contract, selects the variant and splits rows across threads.
#include "ops/rms_norm/rms_norm.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/kernel_list.h"
#include "ops/rms_norm/kernels.h"

namespace quern::ops {

using RmsNormKernel = void(const RmsNormKernelArgs&) noexcept;

#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa(void symbol(const RmsNormKernelArgs& k) noexcept;)
#include "ops/rms_norm/kernels.inc"
#undef QUERN_KERNEL

namespace {

constexpr Variant<RmsNormKernel> kVariants[] = {
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa({cpu::Isa::isa, &symbol, #symbol}, )
#include "ops/rms_norm/kernels.inc"
#undef QUERN_KERNEL
};

constexpr VariantInfo kVariantInfos[] = {
#define QUERN_KERNEL(isa, symbol) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, ""}, )
#include "ops/rms_norm/kernels.inc"
#undef QUERN_KERNEL
};

// Rows below this many elements cost less than waking a worker.
constexpr int64_t kElementsPerChunk = 16 * 1024;

const Variant<RmsNormKernel>& choose(const cpu::Features& features) {
  return select(std::span<const Variant<RmsNormKernel>>(kVariants), features);
}

}  // namespace

std::span<const VariantInfo> rms_norm_variants() { return kVariantInfos; }

std::string_view rms_norm_variant(const cpu::Features& features) { return choose(features).symbol; }

Result<void> rms_norm(const Context& ctx, const RmsNormParams& p, const RmsNormArgs& a, std::string_view where) {
  if (p.n < 1) {
    return bad_request(std::string(where), fmt::format("rows of {} elements cannot be normalised (at least 1)", p.n));
  }
  if (!(p.epsilon >= 0)) {
    return bad_request(std::string(where), fmt::format("epsilon {} is not allowed (0 or more)", p.epsilon));
  }
  if (p.rows <= 0) return {};
  if (a.skip != nullptr && (p.skip_rows < 1 || p.rows % p.skip_rows != 0)) {
    return bad_request(std::string(where),
                       fmt::format("{} rows of skip do not repeat over {} rows", p.skip_rows, p.rows));
  }
  QUERN_CHECK(a.x != nullptr && a.gamma != nullptr && a.y != nullptr && a.y != a.residual, "rms_norm arguments");
  const auto run = choose(ctx.features).run;
  auto rows = [&](int64_t begin, int64_t end, int) {
    run({a.x, a.x_layout.inner, a.x_layout.inner_stride, a.x_layout.outer_stride, a.gamma, a.skip, p.skip_rows, a.bias,
         a.y, a.residual, begin, end, p.n, p.epsilon});
  };
  const int64_t chunk = std::max<int64_t>(1, kElementsPerChunk / p.n);
  if (p.rows <= chunk) {
    rows(0, p.rows, 0);
  } else {
    ctx.pool->parallel_for(p.rows, chunk, rows);
  }
  return {};
}

}  // namespace quern::ops
