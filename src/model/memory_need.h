// SPDX-License-Identifier: Apache-2.0
// Owns the question whether the memory for a model is there, asked before any of it is taken: what it will need, what
// is left for it, and how long a context has room in that. Does not own where the figures come from (the lines, cpu/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quern::model {

// Bytes, from headers and configuration alone.
struct MemoryNeed {
  size_t mapped = 0;     // of files that stay mapped, at most; they do not count: their pages give way
  size_t weights = 0;    // prepared or widened weights
  size_t state = 0;      // of a timeline, whatever its length
  size_t workspace = 0;  // intermediates of one chunk of a prompt, and logits
  size_t token = 0;      // what each token of the context adds
  // The same with the kind of cache that takes least, and its name; `token` and empty where there is no choice.
  size_t least_token = 0;
  std::string_view least_kind;

  size_t total(int64_t context_tokens) const {
    return weights + state + workspace + token * static_cast<size_t>(context_tokens);
  }
};

struct MemoryBudget {
  size_t available = SIZE_MAX;  // bytes
  std::string bound;            // what decides them, for people
};

// Positions for a timeline: `wanted`, or for 0 as many as the model has (`most`) and memory has room for; then what is
// no useful length any more is refused like a wanted one that does not fit.
// Errors: too_long (more wanted than the model has), no_memory, both with figures and with what would fit.
Result<int32_t> choose_context(const MemoryNeed& need, const MemoryBudget& budget, int32_t wanted, int32_t most);

}  // namespace quern::model
