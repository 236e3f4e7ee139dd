// SPDX-License-Identifier: Apache-2.0
// Checks the contract, selects the variant and splits rows across threads.
#include "ops/centred_rms_norm/centred_rms_norm.h"

#include <fmt/format.h>

#include "ops/centred_rms_norm/kernels.h"
#include "ops/element.h"
#include "ops/rows.h"

namespace quern::ops {

using CentredRmsNormKernel = void(const CentredRmsNormKernelArgs&) noexcept;

#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa(CentredRmsNormKernel symbol;)
#include "ops/centred_rms_norm/kernels.inc"
#undef QUERN_KERNEL

namespace {

constexpr TypedVariant<CentredRmsNormKernel> kVariants[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, &symbol, #symbol}, )
#include "ops/centred_rms_norm/kernels.inc"
#undef QUERN_KERNEL
};

constexpr VariantInfo kVariantInfos[] = {
#define QUERN_KERNEL(isa, symbol, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #type}, )
#include "ops/centred_rms_norm/kernels.inc"
#undef QUERN_KERNEL
};

Result<void> check(const CentredRmsNormParams& p, std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.n < 1 || p.group < 1 || p.n % p.group != 0) {
    return bad_request(std::string(where),
                       fmt::format("rows of {} elements cannot be normalised in groups of {}", p.n, p.group));
  }
  if (!(p.epsilon >= 0)) {
    return bad_request(std::string(where), fmt::format("epsilon {} is not allowed (0 or more)", p.epsilon));
  }
  return {};
}

const TypedVariant<CentredRmsNormKernel>& choose(DType type, const cpu::Features& features) {
  return select_typed(std::span<const TypedVariant<CentredRmsNormKernel>>(kVariants), type, features);
}

}  // namespace

std::span<const VariantInfo> centred_rms_norm_variants() { return kVariantInfos; }

std::string_view centred_rms_norm_variant(DType type, const cpu::Features& features) {
  return choose(type, features).symbol;
}

Result<void> centred_rms_norm(const Context& ctx, const CentredRmsNormParams& p, const CentredRmsNormArgs& a,
                              std::string_view where) {
  QUERN_TRY_VOID(check(p, where));
  if (p.rows <= 0) return {};
  QUERN_CHECK(a.x != nullptr && a.weight != nullptr && a.y != nullptr, "centred_rms_norm arguments");
  const auto run = choose(p.type, ctx.features).run;
  for_rows(ctx, p.rows, p.n, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      run({element_at(p.type, a.x, a.x_layout.offset(i)), a.weight, element_at(p.type, a.y, a.y_layout.offset(i)), p.n,
           p.group, p.epsilon});
    }
  });
  return {};
}

}  // namespace quern::ops
