// SPDX-License-Identifier: Apache-2.0
// A window computes only what its scored tokens need: logits from the row before the first of them on, and not the last
// token, behind which nothing is scored.
#include "engine/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "cpu/memory.h"
#include "cpu/pool.h"
#include "engine/log_probs.h"
#include "engine/no_memory.h"
#include "model/forward_call.h"

namespace quern::engine {
namespace {

// Few enough bytes beside every model, and still over a hundred rows of a vocabulary of 152k: a product of that many
// rows no longer waits for its weights.
constexpr size_t kLogitsBytes = size_t{64} << 20;

Result<void> choose_window(const PerplexityOptions& options, const model::ModelInfo& info, Perplexity& result) {
  const int32_t context = info.context_tokens;
  result.window_tokens = options.window_tokens != 0 ? options.window_tokens : std::min(kDefaultWindowTokens, context);
  if (result.window_tokens < 2) {
    return bad_request("ctx", fmt::format("is {}, a window needs at least 2 tokens", result.window_tokens));
  }
  if (result.window_tokens > context) {
    return Error{Errc::too_long,
                 fmt::format("has {} tokens, {}", result.window_tokens, model::what_context_holds(info)), "window"};
  }
  result.stride_tokens = options.stride_tokens != 0 ? options.stride_tokens : result.window_tokens;
  if (result.stride_tokens < 1 || result.stride_tokens > result.window_tokens) {
    return bad_request("stride", fmt::format("is {}, allowed are 1 to the {} tokens of a window", result.stride_tokens,
                                             result.window_tokens));
  }
  return {};
}

// Scores tokens of one text, each by the row of logits before it.
class Scorer {
 public:
  Scorer(const Engine& engine, std::span<const int32_t> ids, const PerplexityOptions& options)
      : engine_(engine), ids_(ids), options_(options) {}

  Result<void> prepare(int32_t window_tokens) {
    const auto row_bytes = static_cast<size_t>(engine_.info().vocab) * sizeof(float);
    rows_ = static_cast<int64_t>(std::clamp<size_t>(kLogitsBytes / row_bytes, 1, static_cast<size_t>(window_tokens)));
    QUERN_TRY(session_, engine_.new_session());
    QUERN_TRY_VOID(session_->reserve(std::min(int64_t{window_tokens}, static_cast<int64_t>(ids_.size()))));
    QUERN_TRY(logits_, cpu::Buffer::allocate(static_cast<size_t>(rows_) * row_bytes, cpu::MemoryTag::logits));
    losses_.resize(static_cast<size_t>(rows_));
    return {};
  }

  // Adds the tokens [first, end) in the window that begins at `begin`, which is before `first`.
  Result<void> add_window(int64_t begin, int64_t first, int64_t end, Perplexity& result) {
    session_->reset();
    AppendOptions append;
    append.cancel = options_.cancel;
    QUERN_TRY_VOID(session_->append(part(begin, first - 1), append));
    append.chunk_tokens = static_cast<int32_t>(rows_);
    for (int64_t at = first; at < end;) {
      const int64_t count = std::min(rows_, end - at);
      const std::span<float> logits(logits_.as<float>(), static_cast<size_t>(count * engine_.info().vocab));
      QUERN_TRY_VOID(session_->logits(part(at - 1, at - 1 + count), logits, append));
      QUERN_TRY_VOID(add(logits, at, count, result));
      at += count;
      if (options_.progress) options_.progress(at, static_cast<int64_t>(ids_.size()));
    }
    result.scored_tokens += end - first;
    result.windows++;
    return {};
  }

 private:
  std::span<const int32_t> part(int64_t begin, int64_t end) const {
    return ids_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  Result<void> add(std::span<const float> logits, int64_t first, int64_t count, Perplexity& result) {
    const auto vocab = static_cast<size_t>(engine_.info().vocab);
    engine_.pool().parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
      for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); r++) {
        losses_[r] = negative_log_likelihood(logits.subspan(r * vocab, vocab), ids_[static_cast<size_t>(first) + r]);
      }
    });
    // Added in the order of the text, so that threads do not show in the sum.
    for (int64_t r = 0; r < count; r++) {
      const double loss = losses_[static_cast<size_t>(r)];
      if (!std::isfinite(loss)) {
        return engine_.explain_not_finite(
            bad_model("logits", fmt::format("before text token {} (id {}) give the likelihood exp({})", first + r,
                                            ids_[static_cast<size_t>(first + r)], -loss)));
      }
      result.negative_log_likelihood += loss;
    }
    return {};
  }

  const Engine& engine_;
  std::span<const int32_t> ids_;
  const PerplexityOptions& options_;
  std::unique_ptr<Session> session_;
  cpu::Buffer logits_;
  int64_t rows_ = 0;            // that logits_ holds
  std::vector<double> losses_;  // of those rows
};

}  // namespace

double negative_log_likelihood(std::span<const float> logits, int32_t id) {
  return -softmax_norm(logits).log_prob(logits[static_cast<size_t>(id)]);
}

Result<Perplexity> measure_perplexity(const Engine& engine, std::span<const int32_t> ids,
                                      const PerplexityOptions& options) {
  return or_no_memory("perplexity", [&]() -> Result<Perplexity> {
    Perplexity result;
    result.tokens = static_cast<int64_t>(ids.size());
    if (result.tokens < 2) {
      return bad_request("text", fmt::format("has {} tokens, at least two are needed", result.tokens));
    }
    QUERN_TRY_VOID(choose_window(options, engine.info(), result));
    const int32_t vocab = engine.info().vocab;
    for (size_t i = 0; i < ids.size(); i++) {
      if (ids[i] >= 0 && ids[i] < vocab) continue;
      return bad_request(fmt::format("text token {}", i),
                         fmt::format("has id {}, allowed are 0 to {}", ids[i], vocab - 1));
    }
    Scorer scorer(engine, ids, options);
    QUERN_TRY_VOID(scorer.prepare(result.window_tokens));
    int64_t end = 0;  // of the window before
    for (int64_t begin = 0; end < result.tokens; begin += result.stride_tokens) {
      const int64_t first = std::max(end, begin + 1);
      end = std::min(begin + result.window_tokens, result.tokens);
      if (first < end) QUERN_TRY_VOID(scorer.add_window(begin, first, end, result));
    }
    return result;
  });
}

}  // namespace quern::engine
