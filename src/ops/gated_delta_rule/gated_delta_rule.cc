// SPDX-License-Identifier: Apache-2.0
// Checks the contract, prepares the vectors and gates of a chunk, selects the variant, and splits heads across threads.
#include "ops/gated_delta_rule/gated_delta_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "ops/activation.h"
#include "ops/element.h"
#include "ops/gated_delta_rule/kernels.h"

namespace quern::ops {

using DeltaKernel = void(const DeltaKernelArgs&) noexcept;

#define QUERN_KERNEL(isa, symbol, form) QUERN_ISA_LINE_##isa(DeltaKernel symbol;)
#include "ops/gated_delta_rule/kernels.inc"
#undef QUERN_KERNEL

namespace {

struct Line {
  cpu::Isa isa;
  DeltaForm form;
  DeltaKernel* run;
  std::string_view symbol;
};

constexpr Line kLines[] = {
#define QUERN_KERNEL(isa, symbol, form) QUERN_ISA_LINE_##isa({cpu::Isa::isa, DeltaForm::form, &symbol, #symbol}, )
#include "ops/gated_delta_rule/kernels.inc"
#undef QUERN_KERNEL
};

constexpr VariantInfo kVariantInfos[] = {
#define QUERN_KERNEL(isa, symbol, form) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #form}, )
#include "ops/gated_delta_rule/kernels.inc"
#undef QUERN_KERNEL
};

const Line& choose(DeltaForm form, const cpu::Features& features) {
  const auto* line = std::find_if(std::begin(kLines), std::end(kLines),
                                  [&](const Line& l) { return l.form == form && features.has(l.isa); });
  QUERN_CHECK(line != std::end(kLines), "a scalar kernel of every form");
  return *line;
}

constexpr float kNormEpsilon = 1e-6f;
constexpr int32_t kMaxHeadSize = 4096;  // bounds the scratch of a worker

// Scratch of a worker, all pieces multiples of 64 bytes.
struct Scratch {
  float* q;
  float* k;
  float* v;
  float* o;
  float* decay;
  float* kept;
  float* beta;
  float* kernel;
};

constexpr int64_t kFloatsPerLine = 16;

int64_t padded(int64_t floats) { return round_up(floats, kFloatsPerLine); }

int64_t scratch_floats(const GatedDeltaRuleParams& p) {
  return kDeltaChunk * (2 * padded(p.key_size) + 3 * padded(p.value_size) + 2 * kDeltaChunk + 4);
}

Scratch cut(const GatedDeltaRuleParams& p, float* from) {
  const int64_t key_floats = kDeltaChunk * padded(p.key_size), value_floats = kDeltaChunk * padded(p.value_size);
  Scratch s{};
  s.q = from;
  s.k = s.q + key_floats;
  s.v = s.k + key_floats;
  s.o = s.v + value_floats;
  s.decay = s.o + value_floats;
  s.kept = s.decay + kDeltaChunk;
  s.beta = s.kept + kDeltaChunk;
  s.kernel = s.beta + kDeltaChunk;
  return s;
}

Result<void> check(const GatedDeltaRuleParams& p, std::string_view where) {
  const auto refuse = [&](std::string what) { return bad_request(std::string(where), std::move(what)); };
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.key_heads < 1 || p.value_heads < 1 || p.value_heads % p.key_heads != 0) {
    return refuse(fmt::format("{} value heads over {} key heads are not allowed (a multiple of at least one)",
                              p.value_heads, p.key_heads));
  }
  if (p.key_size < 1 || p.value_size < 1 || p.key_size > kMaxHeadSize || p.value_size > kMaxHeadSize) {
    return refuse(fmt::format("keys of {} and values of {} elements are not allowed (1 to {})", p.key_size,
                              p.value_size, kMaxHeadSize));
  }
  return {};
}

// to = x / sqrt(sum x^2 + epsilon) * factor
template <class E>
void normalise(const void* x, int64_t n, float factor, float* to) {
  float squares = 0;
  for (int64_t i = 0; i < n; i++) {
    to[i] = E::load(x, i);
    squares += to[i] * to[i];
  }
  const float scale = 1 / std::sqrt(squares + kNormEpsilon);
  for (int64_t i = 0; i < n; i++) to[i] = to[i] * scale * factor;
}

// Tokens [begin, end) of value head `head` as the kernels want them.
template <class E>
void prepare(const GatedDeltaRuleParams& p, const GatedDeltaRuleArgs& a, int64_t head, int64_t begin, int64_t end,
             const Scratch& s) {
  const int64_t key_head = head / (p.value_heads / p.key_heads);
  const int64_t keys = int64_t{p.key_heads} * p.key_size;
  const float query_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(p.key_size)));
  const float rate = std::exp(E::load(a.a_log, head)), bias = E::load(a.dt_bias, head);
  for (int64_t t = begin; t < end; t++) {
    const int64_t i = t - begin;
    const void* row = element_at(p.type, a.qkv.data, t * a.qkv.stride);
    normalise<E>(element_at(p.type, row, key_head * p.key_size), p.key_size, query_factor, s.q + i * p.key_size);
    normalise<E>(element_at(p.type, row, keys + key_head * p.key_size), p.key_size, 1, s.k + i * p.key_size);
    for (int64_t j = 0; j < p.value_size; j++) {
      s.v[i * p.value_size + j] = E::load(row, 2 * keys + head * p.value_size + j);
    }
    s.beta[i] = E::round(sigmoid(E::load(a.b.data, t * a.b.stride + head)));
    s.decay[i] = -rate * softplus(E::load(a.a.data, t * a.a.stride + head) + bias);
    s.kept[i] = std::exp(s.decay[i]);
  }
}

}  // namespace

std::span<const VariantInfo> gated_delta_rule_variants() { return kVariantInfos; }

std::string_view gated_delta_rule_variant(DeltaForm form, const cpu::Features& features) {
  return choose(form, features).symbol;
}

Result<void> gated_delta_rule(const Context& ctx, const GatedDeltaRuleParams& p, const GatedDeltaRuleArgs& a,
                              std::string_view where) {
  QUERN_TRY_VOID(check(p, where));
  if (p.tokens <= 0) return {};
  const cpu::Arena::Scope scope(*ctx.scratch);
  const int64_t floats = scratch_floats(p);
  QUERN_TRY(float* scratch,
            ctx.scratch->take<float>(static_cast<size_t>(ctx.pool->threads()) * static_cast<size_t>(floats)));
  const auto run = choose(p.form, ctx.features).run;
  const int64_t state_size = int64_t{p.key_size} * p.value_size;
  ctx.pool->parallel_for(p.value_heads, 1, [&](int64_t head_begin, int64_t head_end, int worker) {
    const Scratch s = cut(p, scratch + worker * floats);
    for (int64_t head = head_begin; head < head_end; head++) {
      with_element(p.type, [&](auto e) {
        for (int64_t begin = 0; begin < p.tokens; begin += kDeltaChunk) {
          const int64_t end = std::min(p.tokens, begin + kDeltaChunk);
          prepare<decltype(e)>(p, a, head, begin, end, s);
          run({s.q, s.k, s.v, s.decay, s.kept, s.beta, a.state + head * state_size, s.o, s.kernel, end - begin,
               p.key_size, p.value_size});
          for (int64_t t = begin; t < end; t++) {
            for (int64_t j = 0; j < p.value_size; j++) {
              e.store(a.out.data, t * a.out.stride + head * p.value_size + j, s.o[(t - begin) * p.value_size + j]);
            }
          }
        }
      });
    }
  });
  return {};
}

}  // namespace quern::ops
