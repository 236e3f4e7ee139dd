// SPDX-License-Identifier: Apache-2.0
// Owns how well a model predicts a text: which tokens of it are scored in which context, and the sum of their negative
// log-likelihoods. Does not own the text's tokens (Engine::encode) nor how the figures are shown.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace quern::engine {

inline constexpr int32_t kDefaultWindowTokens = 512;

struct PerplexityOptions {
  int32_t window_tokens = 0;  // at least 2, at most the model's context; 0: kDefaultWindowTokens, or the context
  int32_t stride_tokens = 0;  // 1 to window_tokens; 0: window_tokens
  std::function<void(int64_t done, int64_t total)> progress;  // in tokens of the text; may be empty
  CancelFlag cancel = nullptr;
};

struct Perplexity {
  int32_t window_tokens = 0;  // as used
  int32_t stride_tokens = 0;
  int64_t tokens = 0;                  // of the text
  int64_t scored_tokens = 0;           // at least 1
  int64_t windows = 0;                 // in which tokens were scored
  double negative_log_likelihood = 0;  // nats, the sum over the scored tokens

  double mean() const { return negative_log_likelihood / static_cast<double>(scored_tokens); }
  double perplexity() const { return std::exp(mean()); }
};

// -log softmax(logits)[id], in nats, computed in double precision. Not finite where a logit is NaN or +infinity, or
// where logits[id] is -infinity. Precondition: id is an index of `logits`.
double negative_log_likelihood(std::span<const float> logits, int32_t id);

// Reads `ids` in windows: window w holds the tokens from w * stride on, at most window_tokens of them, and the window
// that holds the last token is the last one. Each starts from nothing: no token is put in front of it, a BOS token
// neither. It scores those of its tokens that no window before it held, but never its own first token, which has
// nothing before it. So every token but the very first is scored once where windows overlap, each behind at least
// window_tokens - stride_tokens others once the first window is over; where they do not overlap, all but the first of
// each window are. All columns of the logits count in the softmax, those of ids without text too.
// Rows of logits are taken in pieces of at most 64 MiB, so the memory needed does not grow with the text. The same ids
// and options give the same bits on any number of threads.
// Errors: bad_request (fewer than two ids, an id outside the vocabulary, options outside their ranges), too_long (a
// window above the context, with both numbers), cancelled, no_memory, bad_model (a likelihood that is not finite, with
// the token's position), and what the model reports.
Result<Perplexity> measure_perplexity(const Engine& engine, std::span<const int32_t> ids,
                                      const PerplexityOptions& options);

}  // namespace quern::engine
