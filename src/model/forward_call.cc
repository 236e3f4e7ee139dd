// SPDX-License-Identifier: Apache-2.0
// The checks of forward_call.h.
#include "model/forward_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"

namespace quern::model {

std::string what_context_holds(const ModelInfo& info) {
  if (info.context_tokens == info.model_context_tokens) {
    return fmt::format("the model's context holds {}", info.context_tokens);
  }
  return fmt::format("the context was opened for {} of the model's {}", info.context_tokens, info.model_context_tokens);
}

Result<void> check_ids(const ModelInfo& info, std::span<const int32_t> ids, std::string_view where) {
  for (size_t i = 0; i < ids.size(); i++) {
    if (ids[i] >= 0 && ids[i] < info.vocab) continue;
    return bad_request(fmt::format("{}[{}]", where, i),
                       fmt::format("token id {} is outside [0, {})", ids[i], info.vocab));
  }
  return {};
}

Result<int64_t> check_call(const ModelInfo& info, int64_t length, std::span<const int32_t> ids, Rows wanted,
                           std::span<const float> logits) {
  const auto count = static_cast<int64_t>(ids.size());
  if (count == 0) return bad_request("ids", "are empty, at least one token id is needed");
  QUERN_TRY_VOID(check_ids(info, ids, "ids"));
  const int64_t total = length + count;
  if (total > info.context_tokens) {
    return Error{Errc::too_long,
                 fmt::format("with those before them are {} tokens, {}", total, what_context_holds(info)), "ids"};
  }
  const int64_t first = wanted.first == Rows::kLast ? count - wanted.count : wanted.first;
  if (wanted.count < 0 || first < 0 || first > count - wanted.count) {
    return bad_request("rows",
                       fmt::format("{} rows from {} asked of a call of {} tokens", wanted.count, wanted.first, count));
  }
  if (logits.size() != static_cast<size_t>(wanted.count) * static_cast<size_t>(info.vocab)) {
    return bad_request("logits", fmt::format("has {} elements, {} rows of {} need {}", logits.size(), wanted.count,
                                             info.vocab, wanted.count * info.vocab));
  }
  return first;
}

Result<int64_t> rows_to_prepare(int64_t tokens, int64_t context) {
  constexpr int64_t kStep = 64;  // memory is counted for as many at once
  if (tokens > context) {
    return Error{Errc::too_long, fmt::format("{} tokens do not fit the model's context of {}", tokens, context),
                 "prompt"};
  }
  return std::min(round_up(tokens, kStep), context);
}

}  // namespace quern::model
