// SPDX-License-Identifier: Apache-2.0
// Owns what can be asked of a generation and what it gives. Does not own how it is carried out (generator.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/log_probs.h"
#include "engine/repetition_guard.h"
#include "engine/sampler.h"

namespace quern::engine {

// Raised by another thread or a signal handler; looked at between chunks and between tokens. May be null.
using CancelFlag = const std::atomic<bool>*;

struct GenerateOptions {
  int32_t max_tokens = 256;
  SamplingOptions sampling;
  std::optional<std::vector<int32_t>> stop_ids;  // instead of the model's own
  // Generated text ends in front of the first of these, across the borders of tokens; what may be the start of one is
  // held back from on_token until it is certain. Without any, those of the model's settings, if it has some.
  std::vector<std::string> stop_strings;
  std::optional<int32_t> log_probs;  // >= 0: fills Generation::log_probs, each with so many top ids
  // At least 2: a cycle of tokens that comes so often in a row ends the generation, see RepetitionGuard. 0: none does.
  int32_t repeat_guard = RepetitionGuard::kDefaultTimes;
  // Called for every token with the text that became complete by it (maybe none); false ends the generation.
  std::function<bool(std::string_view text, int32_t id)> on_token;
  // Called where tokens are computed before the first one can be chosen, as after going back; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
  CancelFlag cancel = nullptr;
};

enum class FinishReason : uint8_t { stop, length, cancelled, repetition };
std::string_view finish_reason_name(FinishReason reason);

struct GenerateTimings {
  double first_token_ms = 0;  // from the call to the first token
  double decode_ms = 0;       // computing and choosing all later tokens
  int64_t decode_tokens = 0;  // how many those are
  double sample_ms = 0;       // the part of both that choosing took

  double decode_ms_per_token() const { return decode_tokens > 0 ? decode_ms / static_cast<double>(decode_tokens) : 0; }
};

struct Generation {
  std::vector<int32_t> token_ids;  // with the stop id at the end, when one ended it
  // Of the ids without the stop id and other special tokens, up to the stop string; well-formed UTF-8.
  std::string text;
  FinishReason finish_reason = FinishReason::length;
  int32_t cycle_tokens = 0;  // of the cycle that went round, where that ended it
  GenerateTimings timings;
  std::vector<TokenLogProbs> log_probs;  // one a token, where asked for
};

}  // namespace quern::engine
