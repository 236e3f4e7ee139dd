// SPDX-License-Identifier: Apache-2.0
// Owns one timeline of an engine: the tokens so far, prompts in chunks, generation until an end. With engine.h the
// whole surface for programs. Does not own what a prompt looks like, nor where text goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cpu/memory.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "model/line.h"

namespace quern::engine {

// Raised by another thread or a signal handler; looked at between chunks and between tokens. May be null.
using CancelFlag = const std::atomic<bool>*;

struct AppendOptions {
  int32_t chunk_tokens = 512;                                 // at least 1; tokens computed at once
  std::function<void(int64_t done, int64_t total)> progress;  // after each chunk; may be empty
  CancelFlag cancel = nullptr;
};

struct GenerateOptions {
  int32_t max_tokens = 256;
  SamplingOptions sampling;
  std::optional<std::vector<int32_t>> stop_ids;  // instead of the model's own
  // Called for every token with the text that became complete by it (maybe none); false ends the generation.
  std::function<bool(std::string_view text, int32_t id)> on_token;
  CancelFlag cancel = nullptr;
};

enum class FinishReason : uint8_t { stop, length, cancelled };
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
  std::string text;                // of the ids without the stop id and other special tokens; well-formed UTF-8
  FinishReason finish_reason = FinishReason::length;
  GenerateTimings timings;
};

// For one thread at once. Sessions of one engine may be used at once.
class Session {
 public:
  static Result<std::unique_ptr<Session>> make(std::shared_ptr<const Engine> engine);

  // All tokens: appended and generated. A generated token may still have to be computed; nobody sees that from outside.
  std::span<const int32_t> tokens() const { return tokens_; }

  // Computes `ids` behind the tokens so far. Errors, before anything is computed: bad_request (an id outside the
  // model's vocabulary, by position), too_long (with both numbers); later: cancelled, no_memory, what the model
  // reports. After an error the session is as before.
  Result<void> append(std::span<const int32_t> ids, const AppendOptions& options = {});

  // append(), and the logits after every one of `ids`: row-major [ids, vocab] into `logits`, which has that many
  // elements.
  Result<void> logits(std::span<const int32_t> ids, std::span<float> logits, const AppendOptions& options = {});

  // Generates behind the tokens so far, of which there must be one. A full context ends it as `length`. Errors:
  // bad_request, no_memory, bad_model (see Sampler); the tokens generated before it stay in the session.
  Result<Generation> generate(const GenerateOptions& options);

  // A hint that the session will get this long (cut to the context): what is computed later then need not move the
  // past.
  Result<void> reserve(int64_t tokens);
  void reset();
  // Errors: bad_request when there are fewer tokens.
  Result<void> rewind(int64_t tokens);
  Result<std::unique_ptr<Session>> fork() const;

  size_t bytes() const { return state_->bytes() + row_.size(); }
  size_t workspace_bytes() const { return state_->workspace_bytes(); }
  model::StateCounters counters() const { return state_->counters(); }
  std::vector<model::NodeReport> graph_report() const { return engine_->line().graph_report(state_.get()); }

 private:
  Session() = default;
  Result<void> check(std::span<const int32_t> ids) const;
  Result<void> extend(std::span<const int32_t> ids, std::span<float> all_rows, const AppendOptions& options);
  Result<void> compute(int64_t last, std::span<float> all_rows, const AppendOptions& options);
  Result<void> refresh_row();
  Result<Generation> generate_tokens(const GenerateOptions& options);
  Result<int32_t> choose(Sampler& sampler, GenerateTimings& timings);
  std::span<float> row() const { return {row_.as<float>(), static_cast<size_t>(engine_->info().vocab)}; }

  std::shared_ptr<const Engine> engine_;
  std::unique_ptr<model::State> state_;
  std::vector<int32_t> tokens_;  // the state holds a prefix of them
  cpu::Buffer row_;              // logits after the last token, where row_valid_
  bool row_valid_ = false;
};

}  // namespace quern::engine
