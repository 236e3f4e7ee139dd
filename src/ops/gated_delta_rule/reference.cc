// SPDX-License-Identifier: Apache-2.0
// gated_delta_rule straight from the formulas of both forms. Never optimised.
#include <cmath>

#include "ops/gated_delta_rule/kernels.h"

namespace quern::ops {
namespace {

double dot(const float* x, const float* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

// Column j of x^T S.
double read(const float* x, const float* state, int64_t j, const DeltaKernelArgs& a) {
  double sum = 0;
  for (int64_t i = 0; i < a.key_size; i++) {
    sum += static_cast<double>(x[i]) * static_cast<double>(state[i * a.value_size + j]);
  }
  return sum;
}

}  // namespace

void delta_rule_recurrent_reference(const DeltaKernelArgs& a) noexcept {
  for (int64_t t = 0; t < a.tokens; t++) {
    const float* q = a.q + t * a.key_size;
    const float* k = a.k + t * a.key_size;
    const float* v = a.v + t * a.value_size;
    for (int64_t i = 0; i < a.key_size * a.value_size; i++) a.state[i] *= a.kept[t];
    for (int64_t j = 0; j < a.value_size; j++) {
      const float change = a.beta[t] * (v[j] - static_cast<float>(read(k, a.state, j, a)));
      for (int64_t i = 0; i < a.key_size; i++) a.state[i * a.value_size + j] += k[i] * change;
      a.o[t * a.value_size + j] = static_cast<float>(read(q, a.state, j, a));
    }
  }
}

void delta_rule_chunked_reference(const DeltaKernelArgs& a) noexcept {
  float* changes = a.scratch;                                  // N
  float* among_keys = changes + kDeltaChunk * a.value_size;    // (k[i] . k[j]) D[i,j]
  float* with_query = among_keys + kDeltaChunk * kDeltaChunk;  // (q[i] . k[j]) D[i,j]
  float* sums = with_query + kDeltaChunk * kDeltaChunk;        // G
  for (int64_t i = 0; i < a.tokens; i++) {
    sums[i] = (i == 0 ? 0 : sums[i - 1]) + a.decay[i];
    for (int64_t j = 0; j <= i; j++) {
      const auto between = static_cast<double>(std::exp(sums[i] - sums[j]));
      const float* k = a.k + j * a.key_size;
      among_keys[i * kDeltaChunk + j] = static_cast<float>(dot(a.k + i * a.key_size, k, a.key_size) * between);
      with_query[i * kDeltaChunk + j] = static_cast<float>(dot(a.q + i * a.key_size, k, a.key_size) * between);
    }
  }
  for (int64_t i = 0; i < a.tokens; i++) {
    const auto kept = static_cast<double>(std::exp(sums[i]));
    for (int64_t c = 0; c < a.value_size; c++) {
      double known = kept * read(a.k + i * a.key_size, a.state, c, a);
      double seen = kept * read(a.q + i * a.key_size, a.state, c, a);
      const auto change_of = [&](int64_t j) -> float& { return changes[j * a.value_size + c]; };
      for (int64_t j = 0; j < i; j++) {
        known += static_cast<double>(among_keys[i * kDeltaChunk + j]) * static_cast<double>(change_of(j));
      }
      change_of(i) = a.beta[i] * static_cast<float>(static_cast<double>(a.v[i * a.value_size + c]) - known);
      for (int64_t j = 0; j <= i; j++) {
        seen += static_cast<double>(with_query[i * kDeltaChunk + j]) * static_cast<double>(change_of(j));
      }
      a.o[i * a.value_size + c] = static_cast<float>(seen);
    }
  }
  const float last = sums[a.tokens - 1];
  for (int64_t i = 0; i < a.key_size; i++) {
    for (int64_t c = 0; c < a.value_size; c++) {
      auto sum = static_cast<double>(std::exp(last)) * static_cast<double>(a.state[i * a.value_size + c]);
      for (int64_t j = 0; j < a.tokens; j++) {
        sum += static_cast<double>(std::exp(last - sums[j])) * static_cast<double>(a.k[j * a.key_size + i]) *
               static_cast<double>(changes[j * a.value_size + c]);
      }
      a.state[i * a.value_size + c] = static_cast<float>(sum);
    }
  }
}

}  // namespace quern::ops
