// SPDX-License-Identifier: Apache-2.0
// The scalar variants, straight from the formula in kernels.h; the truth for all others and never optimised.
#include "ops/block_index/kernels.h"
#include "ops/element.h"

namespace quern::ops {
namespace {

template <class E>
void score(const BlockScoreArgs& a) {
  for (int64_t b = 0; b < a.blocks; b++) {
    float sum = 0;
    for (int64_t h = 0; h < a.heads; h++) {
      double dot = 0;
      for (int64_t i = 0; i < a.d; i++) {
        dot += static_cast<double>(a.q[h * a.d + i]) * static_cast<double>(E::load(a.keys, b * a.d + i));
      }
      if (dot > 0) sum += static_cast<float>(dot);
    }
    a.scores[b] = sum / a.root;
  }
}

}  // namespace

void block_score_f32_reference(const BlockScoreArgs& a) noexcept { score<FloatElement>(a); }
void block_score_bf16_reference(const BlockScoreArgs& a) noexcept { score<BrainElement>(a); }

}  // namespace quern::ops
