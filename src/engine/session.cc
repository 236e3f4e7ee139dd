// SPDX-License-Identifier: Apache-2.0
// The state may lag behind the tokens: a token that was just chosen is computed only when something follows it. Every
// computation starts with what is missing, so a generated token is never left out of the past.
#include "engine/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "engine/no_memory.h"
#include "text/detokenizer.h"

namespace quern::engine {
namespace {

// How far ahead of a generation memory is taken: enough to be rare, little beside the past of a long prompt.
constexpr int64_t kReserveTokens = 1024;

bool raised(CancelFlag flag) { return flag != nullptr && flag->load(std::memory_order_relaxed); }

Error was_cancelled(const char* where) { return Error{Errc::cancelled, "was cancelled", where}; }

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
  }
  return "?";
}

Result<std::unique_ptr<Session>> Session::make(std::shared_ptr<const Engine> engine) {
  std::unique_ptr<Session> session(new Session());
  session->engine_ = std::move(engine);
  QUERN_TRY(session->state_, session->engine_->line().new_state());
  const auto row_bytes = static_cast<size_t>(session->engine_->info().vocab) * sizeof(float);
  QUERN_TRY(session->row_, cpu::Buffer::allocate(row_bytes, cpu::MemoryTag::logits));
  return session;
}

Result<void> Session::check(std::span<const int32_t> ids) const {
  const model::ModelInfo& info = engine_->info();
  const size_t total = tokens_.size() + ids.size();
  if (total > static_cast<size_t>(info.context_tokens)) {
    return Error{Errc::too_long, fmt::format("has {} tokens, the model's context holds {}", total, info.context_tokens),
                 tokens_.empty() ? "prompt" : "prompt and tokens before it"};
  }
  for (size_t i = 0; i < ids.size(); i++) {
    if (ids[i] >= 0 && ids[i] < info.vocab) continue;
    return bad_request(fmt::format("prompt token {}", i),
                       fmt::format("has id {}, allowed are 0 to {}", ids[i], info.vocab - 1));
  }
  return {};
}

// Computes what the state lacks of the first `last` tokens. `all_rows` may be empty, or takes the rows of the tokens
// from last - (its rows) on.
Result<void> Session::compute(int64_t last, std::span<float> all_rows, const AppendOptions& options) {
  const int64_t vocab = engine_->info().vocab;
  const int64_t first_row = last - static_cast<int64_t>(all_rows.size()) / vocab;
  const int64_t start = state_->length_tokens();
  row_valid_ = false;
  QUERN_TRY_VOID(state_->reserve(last));
  for (int64_t at = start; at < last;) {
    if (raised(options.cancel)) return was_cancelled("prompt");
    int64_t count = std::min<int64_t>(last - at, std::max(options.chunk_tokens, 1));
    // Tokens whose rows are wanted and those before them are never in one call.
    if (at < first_row) count = std::min(count, first_row - at);
    const std::span<const int32_t> ids(tokens_.data() + at, static_cast<size_t>(count));
    if (!all_rows.empty() && at >= first_row) {
      const auto rows =
          all_rows.subspan(static_cast<size_t>((at - first_row) * vocab), static_cast<size_t>(count * vocab));
      QUERN_TRY_VOID(engine_->line().forward(*state_, ids, {0, count}, rows));
      if (at + count == last)
        std::memcpy(row().data(), rows.last(static_cast<size_t>(vocab)).data(), row().size_bytes());
    } else if (at + count == last) {
      QUERN_TRY_VOID(engine_->line().forward(*state_, ids, {}, row()));
    } else {
      QUERN_TRY_VOID(engine_->line().forward(*state_, ids, model::Rows::none(), {}));
    }
    at += count;
    if (options.progress) options.progress(at - start, last - start);
  }
  row_valid_ = true;
  return {};
}

Result<void> Session::extend(std::span<const int32_t> ids, std::span<float> all_rows, const AppendOptions& options) {
  return or_no_memory("prompt", [&]() -> Result<void> {
    QUERN_TRY_VOID(check(ids));
    if (ids.empty()) return {};
    const size_t tokens_before = tokens_.size();
    const int64_t computed_before = state_->length_tokens();
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    auto done =
        or_no_memory("prompt", [&] { return compute(static_cast<int64_t>(tokens_.size()), all_rows, options); });
    if (done.ok()) return done;
    tokens_.resize(tokens_before);
    QUERN_TRY_VOID(state_->rewind(std::min(computed_before, state_->length_tokens())));
    return done;
  });
}

Result<void> Session::append(std::span<const int32_t> ids, const AppendOptions& options) {
  return extend(ids, {}, options);
}

Result<void> Session::logits(std::span<const int32_t> ids, std::span<float> logits, const AppendOptions& options) {
  const size_t needed = ids.size() * static_cast<size_t>(engine_->info().vocab);
  if (logits.size() != needed) {
    return bad_request("logits", fmt::format("has {} elements, {} rows of {} need {}", logits.size(), ids.size(),
                                             engine_->info().vocab, needed));
  }
  return extend(ids, logits, options);
}

// Makes row_ the logits after the last token.
Result<void> Session::refresh_row() {
  const auto length = static_cast<int64_t>(tokens_.size());
  if (row_valid_ && state_->length_tokens() == length) return {};
  if (state_->length_tokens() == length) QUERN_TRY_VOID(state_->rewind(length - 1));
  return compute(length, {}, {});
}

Result<int32_t> Session::choose(Sampler& sampler, GenerateTimings& timings) {
  const int64_t start = now_ns();
  for (const int32_t id : engine_->unsampled_ids())
    row()[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  auto id = sampler.sample(row().first(static_cast<size_t>(engine_->sampled_ids())));
  timings.sample_ms += ms_since(start);
  return id;
}

Result<Generation> Session::generate(const GenerateOptions& options) {
  return or_no_memory("generation", [&] { return generate_tokens(options); });
}

Result<Generation> Session::generate_tokens(const GenerateOptions& options) {
  if (tokens_.empty()) return bad_request("prompt", "has no tokens, at least one is needed");
  QUERN_TRY_VOID(check_sampling(options.sampling));
  const int64_t context = engine_->info().context_tokens;
  const std::vector<int32_t>& stop_ids = options.stop_ids ? *options.stop_ids : engine_->info().eos_ids;
  const auto length = static_cast<int64_t>(tokens_.size());
  QUERN_TRY_VOID(state_->reserve(std::min(context, length + std::min<int64_t>(options.max_tokens, kReserveTokens))));

  Generation result;
  Sampler sampler(options.sampling);
  std::optional<text::StreamDetokenizer> detokenizer;
  if (engine_->tokenizer()) detokenizer.emplace(*engine_->tokenizer(), true);
  if (options.max_tokens > 0)
    result.token_ids.reserve(static_cast<size_t>(std::min<int64_t>(options.max_tokens, context)));
  bool wanted = true;
  for (int32_t n = 0; n < options.max_tokens; n++) {
    // A token that has no position left can be chosen but not be followed.
    if (static_cast<int64_t>(tokens_.size()) > context) break;
    if (raised(options.cancel) || !wanted) {
      result.finish_reason = FinishReason::cancelled;
      break;
    }
    const int64_t start = now_ns();
    QUERN_TRY_VOID(refresh_row());
    QUERN_TRY(const int32_t id, choose(sampler, result.timings));
    if (n == 0) {
      result.timings.first_token_ms = ms_since(start);
    } else {
      result.timings.decode_ms += ms_since(start);
      result.timings.decode_tokens++;
    }
    tokens_.push_back(id);
    result.token_ids.push_back(id);
    const bool stops = std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
    if (stops) result.finish_reason = FinishReason::stop;
    const std::string text = stops || !detokenizer ? "" : detokenizer->push(id);
    result.text += text;
    if (options.on_token) wanted = options.on_token(text, id);
    if (stops) break;
  }
  if (detokenizer) {
    const std::string rest = detokenizer->finish();
    result.text += rest;
    if (options.on_token && wanted && !rest.empty() && !result.token_ids.empty()) {
      options.on_token(rest, result.token_ids.back());
    }
  }
  return result;
}

Result<void> Session::reserve(int64_t tokens) {
  return or_no_memory("session",
                      [&] { return state_->reserve(std::min<int64_t>(tokens, engine_->info().context_tokens)); });
}

void Session::reset() {
  state_->reset();
  tokens_.clear();
  row_valid_ = false;
}

Result<void> Session::rewind(int64_t tokens) {
  if (tokens < 0 || tokens > static_cast<int64_t>(tokens_.size())) {
    return bad_request("rewind", fmt::format("to {} tokens asked of a session of {}", tokens, tokens_.size()));
  }
  if (tokens == static_cast<int64_t>(tokens_.size())) return {};
  QUERN_TRY_VOID(state_->rewind(std::min(tokens, state_->length_tokens())));
  tokens_.resize(static_cast<size_t>(tokens));
  row_valid_ = false;
  return {};
}

Result<std::unique_ptr<Session>> Session::fork() const {
  return or_no_memory("forked session", [&]() -> Result<std::unique_ptr<Session>> {
    QUERN_TRY(std::unique_ptr<Session> copy, make(engine_));
    QUERN_TRY(copy->state_, state_->fork());
    copy->tokens_ = tokens_;
    copy->row_valid_ = row_valid_;
    if (row_valid_) std::memcpy(copy->row().data(), row().data(), row().size_bytes());
    return copy;
  });
}

}  // namespace quern::engine
