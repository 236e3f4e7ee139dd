// SPDX-License-Identifier: Apache-2.0
// The end is known with the last token wherever it can be, so that held-back text does not wait for another call.
#include "engine/generator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "engine/no_memory.h"

namespace quern::engine {
namespace {

// How far ahead of a generation memory is taken: enough to be rare, little beside the past of a long prompt.
constexpr int64_t kReserveTokens = 1024;

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::repetition: return "repetition";
  }
  return "?";
}

Result<Generator> Generator::start(Session& session, const GenerateOptions& options) {
  return or_no_memory("generation", [&]() -> Result<Generator> {
    const Engine& engine = *session.engine_;
    if (session.tokens_.empty()) return bad_request("prompt", "has no tokens, at least one is needed");
    if (options.log_probs && *options.log_probs < 0) {
      return bad_request("log_probs", fmt::format("is {}, allowed are numbers from 0", *options.log_probs));
    }
    if (options.repeat_guard < 0 || options.repeat_guard == 1) {
      return bad_request("repeat_guard",
                         fmt::format("is {}, allowed are 0 for none and numbers from 2", options.repeat_guard));
    }
    QUERN_TRY_VOID(check_sampling(options.sampling, engine.info().vocab));
    const bool own = !options.stop_strings.empty();
    const std::vector<std::string>& stops = own ? options.stop_strings : engine.info().sampling.stop_strings;
    if (!engine.tokenizer() && !stops.empty()) {
      return bad_request("stop strings", "need text, and the engine was opened without a tokenizer");
    }
    QUERN_TRY(auto matcher, text::StopMatcher::make(stops));
    const int64_t context = engine.info().context_tokens;
    const auto length = static_cast<int64_t>(session.tokens_.size());
    const int64_t most = std::max(options.max_tokens, 0);
    QUERN_TRY_VOID(session.state_->reserve(std::min(context, length + std::min(most, kReserveTokens))));
    Generator generator(session, options, std::move(matcher));
    generator.sampler_.see_prompt(session.tokens_);
    generator.result_.token_ids.reserve(static_cast<size_t>(std::min(most, context)));
    constexpr size_t kTextBytes = 4;  // of a token, as they mostly are; longer texts grow
    generator.result_.text.reserve(kTextBytes * generator.result_.token_ids.capacity());
    return generator;
  });
}

Generator::Generator(Session& session, const GenerateOptions& options, text::StopMatcher matcher)
    : session_(&session),
      options_(options),
      sampler_(options.sampling, session.engine_->unsampled_ids()),
      guard_(options.repeat_guard),
      matcher_(std::move(matcher)) {
  if (session.engine_->tokenizer()) detokenizer_.emplace(*session.engine_->tokenizer(), true);
}

Result<std::string> Generator::next() {
  auto text = or_no_memory("generation", [&] { return advance(); });
  ended_ = ended_ || !text.ok();
  return text;
}

std::string Generator::cancel() { return ended_ ? std::string() : end(FinishReason::cancelled, {}); }

bool Generator::is_stop(int32_t id) const {
  const std::vector<int32_t>& stops = options_.stop_ids ? *options_.stop_ids : session_->engine_->info().eos_ids;
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

// A token that has no position left can be chosen but not be followed.
Result<std::string> Generator::advance() {
  if (ended_) return std::string();
  const auto room_left = [&] {
    return static_cast<int64_t>(result_.token_ids.size()) < options_.max_tokens &&
           static_cast<int64_t>(session_->tokens_.size()) <= session_->engine_->info().context_tokens;
  };
  if (!room_left()) return end(FinishReason::length, {});
  if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) return cancel();
  const int64_t start = now_ns();
  AppendOptions prompt;
  prompt.progress = options_.progress;
  prompt.cancel = options_.cancel;
  const Result<void> fresh = session_->refresh_row(prompt);
  if (!fresh.ok() && fresh.error().code == Errc::cancelled) return cancel();
  QUERN_TRY_VOID(fresh);
  QUERN_TRY(const int32_t id, session_->choose(sampler_, result_.timings));
  if (result_.token_ids.empty()) {
    result_.timings.first_token_ms = ms_since(start);
  } else {
    result_.timings.decode_ms += ms_since(start);
    result_.timings.decode_tokens++;
  }
  session_->tokens_.push_back(id);
  result_.token_ids.push_back(id);
  if (options_.log_probs) {
    result_.log_probs.push_back(token_log_probs(session_->row(), id, *options_.log_probs));
  }
  if (is_stop(id)) return end(FinishReason::stop, {});
  std::string text = detokenizer_ ? matcher_.push(detokenizer_->push(id)) : std::string();
  if (matcher_.stopped()) return end(FinishReason::stop, std::move(text));
  result_.cycle_tokens = guard_.push(id);
  if (result_.cycle_tokens > 0) return end(FinishReason::repetition, std::move(text));
  if (!room_left()) return end(FinishReason::length, std::move(text));
  result_.text += text;
  return text;
}

// What was held back may complete a stop string, too.
std::string Generator::end(FinishReason reason, std::string text) {
  ended_ = true;
  if (detokenizer_ && !matcher_.stopped()) {
    text += matcher_.push(detokenizer_->finish());
    if (!matcher_.stopped()) {
      text += matcher_.finish();
    } else {
      reason = FinishReason::stop;
    }
  }
  result_.finish_reason = reason;
  result_.text += text;
  return text;
}

}  // namespace quern::engine
