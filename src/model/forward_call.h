// SPDX-License-Identifier: Apache-2.0
// Owns what every line checks about its states and about the arguments of Line::forward() before it computes, and what
// is said of its context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "model/line.h"

namespace quern::model {

// "the model's context holds 2048", or what it was opened for, for errors of too many tokens.
std::string what_context_holds(const ModelInfo& info);

// Errors: bad_request for an id outside [0, info.vocab), by position in `where`.
Result<void> check_ids(const ModelInfo& info, std::span<const int32_t> ids, std::string_view where);

// The first wanted row, counted from the first id of the call, for a timeline of `length` tokens. Errors: those that
// Line::forward() promises about its arguments.
Result<int64_t> check_call(const ModelInfo& info, int64_t length, std::span<const int32_t> ids, Rows wanted,
                           std::span<const float> logits);

// The rows of the past to have ready for `tokens` tokens: in steps, so that most tokens find theirs. Errors: too_long.
Result<int64_t> rows_to_prepare(int64_t tokens, int64_t context);

// The state as the line's own kind. Errors: bad_request for a state of another line.
template <class StateOfLine>
Result<StateOfLine*> own_state(State& state, const Line& line) {
  auto* own = dynamic_cast<StateOfLine*>(&state);
  if (own != nullptr && &own->line() == &line) return own;
  return bad_request("state", "belongs to another model; a state is for the one that made it");
}

// Takes the last token off `state`, a timeline of the line, and has forward() append it again. Where that breaks off,
// by an error or by an exception, state.put_back() makes up for it. Errors: bad_request for an empty timeline and for
// logits of another size; those of forward().
template <class StateOfLine, class Forward>
Result<void> compute_last_again(const ModelInfo& info, StateOfLine& state, std::span<const float> logits,
                                Forward&& forward) {
  if (state.length_tokens() == 0) return bad_request("ids", "are empty, at least one token id is needed");
  const int32_t last = state.ids().back();
  QUERN_TRY_VOID(check_call(info, state.length_tokens() - 1, {&last, 1}, {}, logits));
  QUERN_TRY_VOID(state.rewind(state.length_tokens() - 1));
  const auto put_back = [last](StateOfLine* broken) { broken->put_back(last); };
  std::unique_ptr<StateOfLine, decltype(put_back)> breaks_off(&state, put_back);
  QUERN_TRY_VOID(forward(std::span(&last, 1)));
  (void)breaks_off.release();
  return {};
}

}  // namespace quern::model
