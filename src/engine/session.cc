// SPDX-License-Identifier: Apache-2.0
// The state may lag behind the tokens: a token that was just chosen is computed only when something follows it. Every
// computation starts with what is missing, so a generated token is never left out of the past.
#include "engine/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "engine/generator.h"
#include "engine/no_memory.h"
#include "model/forward_call.h"
#include "model/state_file.h"

namespace quern::engine {
namespace {

bool raised(CancelFlag flag) { return flag != nullptr && flag->load(std::memory_order_relaxed); }

Error was_cancelled(const char* where) { return Error{Errc::cancelled, "was cancelled", where}; }

}  // namespace

Result<std::unique_ptr<Session>> Session::make(std::shared_ptr<const Engine> engine) {
  QUERN_TRY_VOID(engine->process().check());
  std::unique_ptr<Session> session(new Session());
  session->engine_ = std::move(engine);
  QUERN_TRY(session->state_, session->engine_->line().new_state());
  // Once for the whole context, and a token behind it that is chosen and not followed: nothing moves while decoding.
  session->tokens_.reserve(static_cast<size_t>(session->engine_->info().context_tokens) + 1);
  const auto row_bytes = static_cast<size_t>(session->engine_->info().vocab) * sizeof(float);
  QUERN_TRY(session->row_, cpu::Buffer::allocate(row_bytes, cpu::MemoryTag::logits));
  return session;
}

Result<void> Session::check(std::span<const int32_t> ids) const {
  const model::ModelInfo& info = engine_->info();
  const size_t total = tokens_.size() + ids.size();
  if (total > static_cast<size_t>(info.context_tokens)) {
    return Error{Errc::too_long, fmt::format("has {} tokens, {}", total, model::what_context_holds(info)),
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
  QUERN_TRY_VOID(engine_->process().check());
  row_valid_ = false;
  // What the model forgot by going back is computed like all else: in chunks, with progress and an end on request.
  QUERN_TRY_VOID(state_->rewind(state_->computed_tokens()));
  const int64_t start = state_->length_tokens();
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
Result<void> Session::refresh_row(const AppendOptions& options) {
  const auto length = static_cast<int64_t>(tokens_.size());
  if (state_->length_tokens() == length) {
    if (row_valid_) return {};
    if (const auto kept = state_->kept_row(); !kept.empty()) {
      std::ranges::copy(kept, row().begin());
      row_valid_ = true;
      return {};
    }
    QUERN_TRY_VOID(state_->rewind(length - 1));
  }
  return compute(length, {}, options);
}

Result<int32_t> Session::choose(Sampler& sampler, GenerateTimings& timings) {
  const int64_t start = now_ns();
  auto id = sampler.sample(row().first(static_cast<size_t>(engine_->sampled_ids())));
  timings.sample_ms += ms_since(start);
  if (!id.ok() && id.error().code == Errc::bad_model) return engine_->explain_not_finite(std::move(id).error());
  return id;
}

Result<Generation> Session::generate(const GenerateOptions& options) {
  QUERN_TRY(Generator generator, Generator::start(*this, options));
  for (bool wanted = true; wanted && !generator.ended();) {
    const size_t before = generator.result().token_ids.size();
    QUERN_TRY(const std::string text, generator.next());
    const std::vector<int32_t>& ids = generator.result().token_ids;
    // Held-back text of a generation that was cancelled comes without a token.
    const bool news = ids.size() > before || (!text.empty() && !ids.empty());
    if (options.on_token && news) wanted = options.on_token(text, ids.back());
  }
  generator.cancel();
  return generator.take_result();
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

Result<void> Session::save(const std::filesystem::path& path) {
  return or_no_memory("saved session", [&]() -> Result<void> {
    const auto length = std::min(static_cast<int64_t>(tokens_.size()), int64_t{engine_->info().context_tokens});
    // A token that was chosen last and not computed yet belongs to the past, too.
    if (state_->length_tokens() < length) QUERN_TRY_VOID(compute(length, {}, {}));
    return state_->save(path);
  });
}

Result<void> Session::check_save(const std::filesystem::path& path) {
  auto writer = model::StateFileWriter::create(path, {});
  return writer.ok() ? Result<void>() : std::move(writer).error();
}

Result<std::unique_ptr<Session>> Session::load(std::shared_ptr<const Engine> engine,
                                               const std::filesystem::path& path) {
  return or_no_memory("loaded session", [&]() -> Result<std::unique_ptr<Session>> {
    QUERN_TRY(std::unique_ptr<Session> session, make(std::move(engine)));
    QUERN_TRY(session->state_, session->engine_->line().load_state(path));
    session->tokens_.assign(session->state_->ids().begin(), session->state_->ids().end());
    return session;
  });
}

}  // namespace quern::engine
