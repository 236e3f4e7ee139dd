// SPDX-License-Identifier: Apache-2.0
// Owns one generation under way, a token at a time; Session::generate() is all of it. Does not own the tokens, which go
// into the session.
#pragma once

#include <string>

#include "base/error.h"
#include "engine/generation.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace quern::engine {

// The session must outlive it and is not to be used otherwise in between. For one thread at once.
class Generator {
 public:
  // Errors: those of Session::generate(), before anything is computed.
  static Result<Generator> start(Session& session, const GenerateOptions& options);

  // Whether everything was generated; next() is then over.
  bool ended() const { return ended_; }
  // One more token, or the end where there is none, and the text that became complete by it: whole characters of
  // well-formed UTF-8. on_token is not called. Errors: no_memory, bad_model, bad_request (see Sampler); the tokens
  // before it stay in the session, and the generation has ended.
  Result<std::string> next();
  // Ends it before its time, as cancelled. The text that was held back.
  std::string cancel();

  // So far; complete once it has ended.
  const Generation& result() const { return result_; }
  Generation take_result() { return std::move(result_); }

 private:
  Generator(Session& session, const GenerateOptions& options, text::StopMatcher matcher);
  Result<std::string> advance();
  std::string end(FinishReason reason, std::string text);
  bool is_stop(int32_t id) const;

  Session* session_;
  GenerateOptions options_;
  Sampler sampler_;
  RepetitionGuard guard_;
  std::optional<text::StreamDetokenizer> detokenizer_;  // nothing: there is no text
  text::StopMatcher matcher_;
  Generation result_;
  bool ended_ = false;
};

}  // namespace quern::engine
