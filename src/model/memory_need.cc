// SPDX-License-Identifier: Apache-2.0
// The arithmetic of memory_need.h.
#include "model/memory_need.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace quern::model {
namespace {

// A context that nobody asked for is not cut below this: a question and its answer should have room.
constexpr int64_t kLeastContext = 2048;
// Lengths that are chosen or suggested are multiples of this where there is room for one.
constexpr int64_t kContextStep = 256;

double megabytes(size_t bytes) { return static_cast<double>(bytes) / 1e6; }

int64_t room_for(size_t bytes, size_t token) {
  if (token == 0) return bytes == 0 ? 0 : std::numeric_limits<int32_t>::max();
  const auto tokens = static_cast<int64_t>(bytes / token);
  return tokens < kContextStep ? tokens : tokens / kContextStep * kContextStep;
}

// What would fit in `left` bytes besides the weights.
std::string advice(const MemoryNeed& need, size_t left, int64_t context) {
  std::string text;
  const auto suggest = [&](int64_t tokens, std::string_view kind) {
    if (tokens == 0) return;
    text += text.empty() ? "; what fits is " : ", or ";
    text += fmt::format("a context of {} tokens (ctx)", std::min(tokens, context));
    if (!kind.empty()) text += fmt::format(" with keys and values in {} (kv)", kind);
  };
  suggest(room_for(left, need.token), "");
  if (!need.least_kind.empty()) suggest(room_for(left, need.least_token), need.least_kind);
  return text.empty() ? "; no context fits beside the weights" : text;
}

}  // namespace

Result<int32_t> choose_context(const MemoryNeed& need, const MemoryBudget& budget, int32_t wanted, int32_t most) {
  if (wanted > most) {
    return Error{Errc::too_long, fmt::format("{} tokens are asked for, the model has positions for {}", wanted, most),
                 "context"};
  }
  const int32_t context = wanted > 0 ? wanted : most;
  if (need.total(context) <= budget.available) return context;
  const size_t fixed = need.total(0);
  const size_t left = budget.available > fixed ? budget.available - fixed : 0;
  const int64_t room = room_for(left, need.token);
  if (wanted == 0 && room >= std::min<int64_t>(kLeastContext, most)) return static_cast<int32_t>(room);
  return Error{Errc::no_memory,
               fmt::format("the model needs {:.0f} MB (weights {:.0f}, keys and values of {} tokens {:.0f}, states and "
                           "workspace {:.0f}), and {:.0f} MB are available: {}{}",
                           megabytes(need.total(context)), megabytes(need.weights), context,
                           megabytes(need.token * static_cast<size_t>(context)), megabytes(need.state + need.workspace),
                           megabytes(budget.available), budget.bound, advice(need, left, context)),
               "memory"};
}

}  // namespace quern::model
