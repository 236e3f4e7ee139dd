// SPDX-License-Identifier: Apache-2.0
// The checks of forward_call.h.
#include "model/forward_call.h"

#include <fmt/format.h>

namespace quern::model {

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
                 fmt::format("{} tokens do not fit the model's context of {}", total, info.context_tokens), "ids"};
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

}  // namespace quern::model
