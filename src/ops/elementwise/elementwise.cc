// SPDX-License-Identifier: Apache-2.0
// Broadcasting: folds two shapes into runs, selects the variant, and splits the elements across threads.
#include "ops/elementwise/elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ops/kernel_list.h"

namespace quern::ops {

using ElementwiseKernel = void(const ElementwiseKernelArgs&) noexcept;

#define QUERN_KERNEL(isa, symbol, op, type) QUERN_ISA_LINE_##isa(void symbol(const ElementwiseKernelArgs& k) noexcept;)
#include "ops/elementwise/kernels.inc"
#undef QUERN_KERNEL

namespace {

struct ElementwiseVariant {
  ElementwiseOp op;
  DType dtype;
  Variant<ElementwiseKernel> kernel;
};

constexpr ElementwiseVariant kVariants[] = {
#define QUERN_KERNEL(isa, symbol, op, type) \
  QUERN_ISA_LINE_##isa({ElementwiseOp::op, DType::type, {cpu::Isa::isa, &symbol, #symbol}}, )
#include "ops/elementwise/kernels.inc"
#undef QUERN_KERNEL
};

constexpr VariantInfo kVariantInfos[] = {
#define QUERN_KERNEL(isa, symbol, op, type) QUERN_ISA_LINE_##isa({cpu::Isa::isa, #symbol, #op " " #type}, )
#include "ops/elementwise/kernels.inc"
#undef QUERN_KERNEL
};

// Work below this many elements costs less than waking a worker.
constexpr int64_t kElementsPerChunk = 16 * 1024;

const Variant<ElementwiseKernel>* choose(ElementwiseOp op, DType dtype, const cpu::Features& features) {
  for (const ElementwiseVariant& v : kVariants) {
    if (v.op == op && v.dtype == dtype && features.has(v.kernel.isa)) return &v.kernel;
  }
  return nullptr;
}

void in_chunks(const Context& ctx, int64_t count, cpu::RangeFunction elements) {
  if (count <= kElementsPerChunk) {
    elements(0, count, 0);
  } else {
    ctx.pool->parallel_for(count, kElementsPerChunk, elements);
  }
}

// The output's dimensions, innermost first, neighbours merged where both operands step evenly through them.
struct Runs {
  struct Dim {
    int64_t extent, a_stride, b_stride;
  };
  std::array<Dim, kMaxRank> dims{};
  int rank = 0;
};

Runs find_runs(const Shape& a, const Shape& b) {
  Runs runs;
  int64_t a_elements = 1, b_elements = 1;
  for (int i = 0; i < std::max(a.rank(), b.rank()); i++) {
    const int64_t ea = extent_from_back(a, i), eb = extent_from_back(b, i);
    const Runs::Dim dim{std::max(ea, eb), ea == 1 ? 0 : a_elements, eb == 1 ? 0 : b_elements};
    a_elements *= ea;
    b_elements *= eb;
    if (dim.extent == 1) continue;
    if (runs.rank > 0) {
      Runs::Dim& last = runs.dims[static_cast<size_t>(runs.rank) - 1];
      if (dim.a_stride == last.a_stride * last.extent && dim.b_stride == last.b_stride * last.extent) {
        last.extent *= dim.extent;
        continue;
      }
    }
    runs.dims[static_cast<size_t>(runs.rank++)] = dim;
  }
  if (runs.rank == 0) runs.dims[static_cast<size_t>(runs.rank++)] = {1, 1, 1};
  return runs;
}

}  // namespace

std::span<const VariantInfo> elementwise_variants() { return kVariantInfos; }

std::string_view elementwise_variant(ElementwiseOp op, DType dtype, const cpu::Features& features) {
  const auto* kernel = choose(op, dtype, features);
  return kernel == nullptr ? std::string_view() : kernel->symbol;
}

bool binary_supported(DType dtype) { return dtype == DType::f32 || dtype == DType::i64 || dtype == DType::i32; }

Result<Shape> broadcast_shape(const Shape& a, const Shape& b, std::string_view where) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out;
  for (int i = rank; i-- > 0;) {
    const int64_t ea = extent_from_back(a, i), eb = extent_from_back(b, i);
    if (ea != eb && ea != 1 && eb != 1) {
      return bad_request(std::string(where),
                         fmt::format("shapes {} and {} do not broadcast", a.to_string(), b.to_string()));
    }
    out.push_back(ea == 1 ? eb : ea);
  }
  const auto elements = out.checked_elements();
  if (!elements || !storage_bytes(DType::i64, *elements)) {
    return bad_request(std::string(where), fmt::format("result shape {} is too large", out.to_string()));
  }
  return out;
}

Result<void> binary(const Context& ctx, const BinaryParams& p, const BinaryArgs& a, std::string_view where) {
  QUERN_TRY(const Shape shape, broadcast_shape(p.a, p.b, where));
  const auto* kernel = p.op > ElementwiseOp::mul ? nullptr : choose(p.op, p.dtype, ctx.features);
  if (kernel == nullptr) {
    return unsupported(std::string(where), fmt::format("arithmetic on {} is not supported (float32, int64 and int32)",
                                                       dtype_name(p.dtype)));
  }
  const int64_t count = shape.checked_elements().value_or(0);
  if (count == 0) return {};
  const Runs runs = find_runs(p.a, p.b);
  const Runs::Dim inner = runs.dims[0];
  const auto element_bytes = static_cast<int64_t>(bits_of(p.dtype) / 8);
  auto elements = [&](int64_t begin, int64_t end, int) {
    while (begin < end) {
      const int64_t within = begin % inner.extent;
      int64_t rest = begin / inner.extent;
      int64_t at_a = within * inner.a_stride, at_b = within * inner.b_stride;
      for (int d = 1; d < runs.rank; d++) {
        const Runs::Dim& dim = runs.dims[static_cast<size_t>(d)];
        at_a += rest % dim.extent * dim.a_stride;
        at_b += rest % dim.extent * dim.b_stride;
        rest /= dim.extent;
      }
      const int64_t n = std::min(end - begin, inner.extent - within);
      kernel->run({static_cast<const std::byte*>(a.a) + at_a * element_bytes,
                   static_cast<const std::byte*>(a.b) + at_b * element_bytes,
                   static_cast<std::byte*>(a.y) + begin * element_bytes, n, static_cast<int32_t>(inner.a_stride),
                   static_cast<int32_t>(inner.b_stride)});
      begin += n;
    }
  };
  in_chunks(ctx, count, elements);
  return {};
}

void sigmoid(const Context& ctx, std::span<const float> x, float* y) {
  const auto* kernel = choose(ElementwiseOp::sigmoid, DType::f32, ctx.features);
  in_chunks(ctx, static_cast<int64_t>(x.size()), [&](int64_t begin, int64_t end, int) {
    kernel->run({x.data() + begin, nullptr, y + begin, end - begin, 1, 0});
  });
}

void silu_mul(const Context& ctx, std::span<const float> a, const float* b, float* y) {
  const auto* kernel = choose(ElementwiseOp::silu_mul, DType::f32, ctx.features);
  in_chunks(ctx, static_cast<int64_t>(a.size()), [&](int64_t begin, int64_t end, int) {
    kernel->run({a.data() + begin, b + begin, y + begin, end - begin, 1, 1});
  });
}

}  // namespace quern::ops
