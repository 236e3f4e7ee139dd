// SPDX-License-Identifier: Apache-2.0
// The C interface on engine/: handles, the error of a thread, structs of known size. No exception leaves it.
#include "c/quern.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/quote_name.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/session.h"

using quern::bad_request;
using quern::Errc;
using quern::Error;
using quern::Result;

struct quern_model {
  std::shared_ptr<const quern::engine::Engine> engine;
};

struct quern_session {
  std::shared_ptr<const quern::engine::Engine> engine;
  std::unique_ptr<quern::engine::Session> session;
  std::atomic<bool> cancelled{false};
};

namespace {

constexpr const char* kNoMemory = "quern: the memory needed is not available";

thread_local std::string error_text;
thread_local const char* last_error = "";  // into error_text, or a literal

// Where there is no memory for the text of an error, that is the error.
quern_status report_no_memory() noexcept {
  last_error = kNoMemory;
  return static_cast<quern_status>(quern::exit_code(Errc::no_memory));
}

quern_status report(Errc code, std::string_view text) noexcept {
  try {
    error_text = text;
  } catch (const std::bad_alloc&) {
    return report_no_memory();
  }
  last_error = error_text.c_str();
  return static_cast<quern_status>(quern::exit_code(code));
}

quern_status report(const Error& error) noexcept {
  try {
    return report(error.code, quern::one_line(error.message()));
  } catch (...) {
    return report_no_memory();
  }
}

template <class Work>
quern_status guarded(Work&& work) noexcept {
  try {
    const Result<void> done = work();
    return done.ok() ? QUERN_OK : report(done.error());
  } catch (const std::bad_alloc&) {
    return report_no_memory();
  } catch (const std::exception& e) {
    return report(Errc::internal, e.what());
  } catch (...) {
    return report(Errc::internal, "an exception of unknown type was thrown");
  }
}

Result<void> expect(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return bad_request(name, "is NULL");
}

// There is one layout of each struct so far.
template <class Struct>
Result<void> expect_size(const Struct* s, const char* name) {
  QUERN_TRY_VOID(expect(s, name));
  if (s->size == sizeof(Struct)) return {};
  return bad_request(name, fmt::format("has size {}, this version of quern knows {}; set it to sizeof({})", s->size,
                                       sizeof(Struct), name));
}

Result<quern::engine::GenerateOptions> options_in(const quern::engine::Engine& engine,
                                                  const quern_generate_options* o) {
  quern::engine::GenerateOptions options;
  if (o == nullptr) {
    QUERN_TRY(options.sampling, engine.default_sampling());
    return options;
  }
  QUERN_TRY_VOID(expect_size(o, "quern_generate_options"));
  if (o->max_tokens < 0)
    return bad_request("max_tokens", fmt::format("is {}, allowed are numbers from 0", o->max_tokens));
  options.max_tokens = o->max_tokens;
  quern::engine::SamplingChoice choice;
  choice.greedy = o->greedy != 0;
  if (!choice.greedy) {
    choice.temperature = o->temperature;
    choice.top_k = o->top_k;
    choice.top_p = o->top_p;
    choice.min_p = o->min_p;
  }
  choice.repetition_penalty = o->repetition_penalty;
  choice.presence_penalty = o->presence_penalty;
  choice.frequency_penalty = o->frequency_penalty;
  choice.seed = o->seed;
  QUERN_TRY(options.sampling, engine.choose_sampling(choice));
  if (o->stop_count > 0) QUERN_TRY_VOID(expect(o->stop, "stop"));
  for (size_t i = 0; i < o->stop_count; i++) {
    QUERN_TRY_VOID(expect(o->stop[i], "a text of stop"));
    options.stop_strings.emplace_back(o->stop[i]);
  }
  return options;
}

struct Prompt {
  int64_t before;    // tokens of the session in front of it
  int64_t computed;  // tokens
};

// append() computes a prompt; its text is continued.
template <class Append>
Result<void> continue_text(quern_session& session, const Append& append, const quern_generate_options* options,
                           quern_text_callback callback, void* user, quern_generation* generation) {
  if (generation != nullptr) QUERN_TRY_VOID(expect_size(generation, "quern_generation"));
  QUERN_TRY(auto generate, options_in(*session.engine, options));
  generate.cancel = &session.cancelled;
  if (callback != nullptr) {
    generate.on_token = [&](std::string_view text, int32_t) { return callback(text.data(), text.size(), user) == 0; };
  }
  const int64_t start = quern::now_ns();
  quern::engine::AppendOptions append_options;
  append_options.cancel = generate.cancel;
  const Result<Prompt> prompt = append(append_options);
  const double prompt_ms = quern::ms_since(start);
  quern::engine::Generation result;
  if (prompt.ok()) {
    auto generated = session.session->generate(generate);
    session.cancelled = false;
    // Before the first token nothing has happened that the caller knows of.
    const int64_t held = prompt->before + prompt->computed;
    if (!generated.ok() && static_cast<int64_t>(session.session->tokens().size()) == held) {
      QUERN_TRY_VOID(session.session->rewind(prompt->before));
    }
    QUERN_TRY(result, std::move(generated));
  } else {
    session.cancelled = false;
    if (prompt.error().code != Errc::cancelled) return prompt.error();
    result.finish_reason = quern::engine::FinishReason::cancelled;
  }
  if (generation == nullptr) return {};
  generation->prompt_tokens = prompt.ok() ? prompt->computed : 0;
  generation->generated_tokens = static_cast<int64_t>(result.token_ids.size());
  generation->prompt_ms = prompt_ms;
  generation->first_token_ms = result.timings.first_token_ms;
  generation->ms_per_token = result.timings.decode_ms_per_token();
  // Names are literals, so they end with NUL.
  generation->finish_reason = quern::engine::finish_reason_name(result.finish_reason).data();
  return {};
}

}  // namespace

const char* quern_version(void) { return QUERN_VERSION; }

const char* quern_last_error(void) { return last_error; }

quern_status quern_open(const char* folder, int32_t threads, quern_model** model) {
  return guarded([&]() -> Result<void> {
    QUERN_TRY_VOID(expect(folder, "folder"));
    QUERN_TRY_VOID(expect(model, "model"));
    quern::engine::EngineOptions options;
    options.threads = threads;
    QUERN_TRY(auto engine, quern::engine::Engine::open(folder, options));
    *model = new quern_model{std::move(engine)};
    return {};
  });
}

void quern_model_free(quern_model* model) { delete model; }

quern_status quern_session_new(const quern_model* model, quern_session** session) {
  return guarded([&]() -> Result<void> {
    QUERN_TRY_VOID(expect(model, "model"));
    QUERN_TRY_VOID(expect(session, "session"));
    QUERN_TRY(auto timeline, model->engine->new_session());
    *session = new quern_session{model->engine, std::move(timeline)};
    return {};
  });
}

void quern_session_free(quern_session* session) { delete session; }

void quern_session_reset(quern_session* session) {
  if (session != nullptr) session->session->reset();
}

quern_status quern_generate_defaults(const quern_model* model, quern_generate_options* options) {
  return guarded([&]() -> Result<void> {
    QUERN_TRY_VOID(expect(model, "model"));
    QUERN_TRY_VOID(expect_size(options, "quern_generate_options"));
    QUERN_TRY(const auto sampling, model->engine->default_sampling());
    *options = {};
    options->size = sizeof(*options);
    options->max_tokens = quern::engine::GenerateOptions().max_tokens;
    options->greedy = sampling.greedy ? 1 : 0;
    options->temperature = sampling.temperature;
    options->top_k = sampling.top_k;
    options->top_p = sampling.top_p;
    options->min_p = sampling.min_p;
    options->repetition_penalty = sampling.repetition_penalty;
    options->presence_penalty = sampling.presence_penalty;
    options->frequency_penalty = sampling.frequency_penalty;
    return {};
  });
}

quern_status quern_generate(quern_session* session, const char* prompt, size_t bytes,
                            const quern_generate_options* options, quern_text_callback callback, void* user,
                            quern_generation* generation) {
  return guarded([&]() -> Result<void> {
    QUERN_TRY_VOID(expect(session, "session"));
    if (bytes > 0) QUERN_TRY_VOID(expect(prompt, "prompt"));
    QUERN_TRY(const auto ids, session->engine->encode({prompt, bytes}));
    const auto append = [&](const quern::engine::AppendOptions& how) -> Result<Prompt> {
      const size_t before = session->session->tokens().size();
      QUERN_TRY_VOID(session->session->append(ids, how));
      return Prompt{static_cast<int64_t>(before), static_cast<int64_t>(ids.size())};
    };
    return continue_text(*session, append, options, callback, user, generation);
  });
}

quern_status quern_chat(quern_session* session, const quern_message* messages, size_t count,
                        const quern_generate_options* options, quern_text_callback callback, void* user,
                        quern_generation* generation) {
  return guarded([&]() -> Result<void> {
    QUERN_TRY_VOID(expect(session, "session"));
    QUERN_TRY_VOID(expect(messages, "messages"));
    if (count == 0) return bad_request("count", "is 0, a conversation has at least one message");
    auto list = quern::engine::Messages::array();
    for (size_t i = 0; i < count; i++) {
      QUERN_TRY_VOID(expect(messages[i].role, "the role of a message"));
      QUERN_TRY_VOID(expect(messages[i].content, "the content of a message"));
      list.push_back({{"role", messages[i].role}, {"content", messages[i].content}});
    }
    std::optional<bool> thinking;
    if (options != nullptr) {
      QUERN_TRY_VOID(expect_size(options, "quern_generate_options"));
      if (options->thinking != 0) thinking = options->thinking > 0;
    }
    QUERN_TRY(const auto format, quern::engine::ChatFormat::load(session->engine));
    QUERN_TRY(const auto prompt, format.prompt(list, thinking));
    const auto append = [&](const quern::engine::AppendOptions& how) -> Result<Prompt> {
      QUERN_TRY(const int64_t kept, quern::engine::hold_prompt(*session->session, prompt, how));
      return Prompt{kept, static_cast<int64_t>(prompt.ids.size()) - kept};
    };
    return continue_text(*session, append, options, callback, user, generation);
  });
}

void quern_cancel(quern_session* session) {
  if (session != nullptr) session->cancelled.store(true, std::memory_order_relaxed);
}
