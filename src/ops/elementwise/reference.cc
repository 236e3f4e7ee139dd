// SPDX-License-Identifier: Apache-2.0
// The elementwise operators straight from their formulas. Never optimised.
#include <cmath>
#include <type_traits>

#include "ops/elementwise/kernels.h"

namespace quern::ops {
namespace {

template <class T, class Op>
void binary_loop(const ElementwiseKernelArgs& k, Op op) noexcept {
  const T* a = static_cast<const T*>(k.a);
  const T* b = static_cast<const T*>(k.b);
  T* y = static_cast<T*>(k.y);
  for (int64_t i = 0; i < k.n; i++) y[i] = op(a[i * k.a_step], b[i * k.b_step]);
}

// Integers wrap, which only unsigned arithmetic does by definition.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

template <class T>
void add(const ElementwiseKernelArgs& k) noexcept {
  using W = Wrapping<T>;
  binary_loop<T>(k, [](T a, T b) { return static_cast<T>(static_cast<W>(a) + static_cast<W>(b)); });
}

template <class T>
void sub(const ElementwiseKernelArgs& k) noexcept {
  using W = Wrapping<T>;
  binary_loop<T>(k, [](T a, T b) { return static_cast<T>(static_cast<W>(a) - static_cast<W>(b)); });
}

template <class T>
void mul(const ElementwiseKernelArgs& k) noexcept {
  using W = Wrapping<T>;
  binary_loop<T>(k, [](T a, T b) { return static_cast<T>(static_cast<W>(a) * static_cast<W>(b)); });
}

}  // namespace

void add_f32_reference(const ElementwiseKernelArgs& k) noexcept { add<float>(k); }
void sub_f32_reference(const ElementwiseKernelArgs& k) noexcept { sub<float>(k); }
void mul_f32_reference(const ElementwiseKernelArgs& k) noexcept { mul<float>(k); }
void add_i64_reference(const ElementwiseKernelArgs& k) noexcept { add<int64_t>(k); }
void sub_i64_reference(const ElementwiseKernelArgs& k) noexcept { sub<int64_t>(k); }
void mul_i64_reference(const ElementwiseKernelArgs& k) noexcept { mul<int64_t>(k); }
void add_i32_reference(const ElementwiseKernelArgs& k) noexcept { add<int32_t>(k); }
void sub_i32_reference(const ElementwiseKernelArgs& k) noexcept { sub<int32_t>(k); }
void mul_i32_reference(const ElementwiseKernelArgs& k) noexcept { mul<int32_t>(k); }

void sigmoid_f32_reference(const ElementwiseKernelArgs& k) noexcept {
  const float* x = static_cast<const float*>(k.a);
  float* y = static_cast<float*>(k.y);
  for (int64_t i = 0; i < k.n; i++) y[i] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(x[i]))));
}

void silu_mul_f32_reference(const ElementwiseKernelArgs& k) noexcept {
  const float* a = static_cast<const float*>(k.a);
  const float* b = static_cast<const float*>(k.b);
  float* y = static_cast<float*>(k.y);
  for (int64_t i = 0; i < k.n; i++) {
    const auto s = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(a[i]))));
    y[i] = a[i] * s * b[i];
  }
}

}  // namespace quern::ops
