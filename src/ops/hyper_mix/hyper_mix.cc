// SPDX-License-Identifier: Apache-2.0
// Checks the contract, selects the variants and splits rows across threads.
#include "ops/hyper_mix/hyper_mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ops/element.h"
#include "ops/hyper_mix/kernels.h"

namespace quern::ops {

#define QUERN_KIND_gate HyperGateKernel
#define QUERN_KIND_mix HyperMixKernel
#define QUERN_KIND_scatter HyperScatterKernel
#define QUERN_KERNEL(isa, symbol, kind, type) QUERN_ISA_LINE_##isa(QUERN_KIND_##kind symbol;)
#include "ops/hyper_mix/kernels.inc"
#undef QUERN_KERNEL
#undef QUERN_KIND_gate
#undef QUERN_KIND_mix
#undef QUERN_KIND_scatter

namespace {

// A line of kernels.inc; the pointer of its kind is set.
struct Line {
  constexpr Line(cpu::Isa i, DType t, std::string_view s, HyperGateKernel* f) : isa(i), type(t), symbol(s), gate(f) {}
  constexpr Line(cpu::Isa i, DType t, std::string_view s, HyperMixKernel* f) : isa(i), type(t), symbol(s), mix(f) {}
  constexpr Line(cpu::Isa i, DType t, std::string_view s, HyperScatterKernel* f)
      : isa(i), type(t), symbol(s), scatter(f) {}
  cpu::Isa isa;
  DType type;
  std::string_view symbol;
  HyperGateKernel* gate = nullptr;
  HyperMixKernel* mix = nullptr;
  HyperScatterKernel* scatter = nullptr;
};

constexpr Line kLines[] = {
#define QUERN_KERNEL(isa, symbol, kind, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DType::type, #symbol, &symbol}, )
#include "ops/hyper_mix/kernels.inc"
#undef QUERN_KERNEL
};

constexpr VariantInfo kVariantInfos[] = {
#define QUERN_KERNEL(isa, symbol, kind, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #kind " " #type}, )
#include "ops/hyper_mix/kernels.inc"
#undef QUERN_KERNEL
};

// The first line of a kind (a member of Line) and type whose instruction set may be used.
template <class Kernel>
const Line& choose(Kernel* Line::*kind, DType type, const cpu::Features& features) {
  const auto* line = std::find_if(std::begin(kLines), std::end(kLines), [&](const Line& l) {
    return l.*kind != nullptr && l.type == type && features.has(l.isa);
  });
  QUERN_CHECK(line != std::end(kLines), "a scalar kernel of every kind and type");
  return *line;
}

Result<void> check(DType type, int64_t width, int32_t streams, std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(type, where));
  if (width < 1 || streams < 2) {
    return bad_request(
        std::string(where),
        fmt::format("{} streams of {} elements are not allowed (2 or more, of 1 or more)", streams, width));
  }
  return {};
}

}  // namespace

std::span<const VariantInfo> hyper_mix_variants() { return kVariantInfos; }

std::string_view hyper_gate_variant(DType type, const cpu::Features& features) {
  return choose(&Line::gate, type, features).symbol;
}
std::string_view hyper_mix_variant(DType type, const cpu::Features& features) {
  return choose(&Line::mix, type, features).symbol;
}
std::string_view hyper_scatter_variant(DType type, const cpu::Features& features) {
  return choose(&Line::scatter, type, features).symbol;
}

Result<void> hyper_gate(const Context& ctx, const HyperGateParams& p, RowsOut a, std::string_view where) {
  QUERN_TRY_VOID(check(p.type, p.rank, p.streams, where));
  const auto run = choose(&Line::gate, p.type, ctx.features).gate;
  for_rows(ctx, p.rows, p.rank, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) run({element_at(p.type, a.data, i * a.stride), p.rank, p.streams});
  });
  return {};
}

Result<void> hyper_mix(const Context& ctx, const HyperMixParams& p, const HyperMixArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check(p.type, p.hidden, p.streams, where));
  const auto run = choose(&Line::mix, p.type, ctx.features).mix;
  for_rows(ctx, p.rows, p.hidden * p.streams, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      run({element_at(p.type, a.normed.data, i * a.normed.stride),
           element_at(p.type, a.gate_logits.data, i * a.gate_logits.stride),
           element_at(p.type, a.out.data, i * a.out.stride), p.hidden, p.streams});
    }
  });
  return {};
}

Result<void> hyper_scatter(const Context& ctx, const HyperMixParams& p, const HyperScatterArgs& a,
                           std::string_view where) {
  QUERN_TRY_VOID(check(p.type, p.hidden, p.streams, where));
  const auto run = choose(&Line::scatter, p.type, ctx.features).scatter;
  for_rows(ctx, p.rows, p.hidden * p.streams, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      run({element_at(p.type, a.x.data, i * a.x.stride), element_at(p.type, a.y.data, i * a.y.stride),
           element_at(p.type, a.inject_logits.data, i * a.inject_logits.stride), p.hidden, p.streams});
    }
  });
  return {};
}

}  // namespace quern::ops
