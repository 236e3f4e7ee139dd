// SPDX-License-Identifier: Apache-2.0
// Owns one timeline of an engine: the tokens so far, prompts in chunks, generation until an end. With engine.h the
// whole surface for programs. Does not own what a prompt looks like, nor where text goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "cpu/memory.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "model/line.h"

namespace quern::engine {

struct AppendOptions {
  int32_t chunk_tokens = 512;                                 // at least 1; tokens computed at once
  std::function<void(int64_t done, int64_t total)> progress;  // after each chunk; may be empty
  CancelFlag cancel = nullptr;
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

  // Generates behind the tokens so far, of which there must be one; all of them count as prompt for the penalties of
  // sampling. A full context ends it as `length`, a stop id or a stop string as `stop`, tokens that go round in a
  // circle as `repetition`. Errors: bad_request, no_memory, bad_model (see Sampler); the tokens generated before it
  // stay in the session.
  Result<Generation> generate(const GenerateOptions& options);

  // A hint that the session will get this long (cut to the context): what is computed later then need not move the
  // past.
  Result<void> reserve(int64_t tokens);
  void reset();
  // Errors: bad_request when there are fewer tokens.
  Result<void> rewind(int64_t tokens);
  Result<std::unique_ptr<Session>> fork() const;
  // Writes the tokens and what the model remembers of them to a file, which appears whole or not at all; load() of an
  // engine with the same model and the same kind of cache goes on from there. Errors: io, and those of append().
  // A last token that was chosen when the context was full has no position and is not part of the file.
  Result<void> save(const std::filesystem::path& path);
  // Whether a file can be made at the path, for callers who want to know before they compute. Errors: io.
  static Result<void> check_save(const std::filesystem::path& path);
  // Errors: those of model::Line::load_state().
  static Result<std::unique_ptr<Session>> load(std::shared_ptr<const Engine> engine, const std::filesystem::path& path);

  // See model::State::mark().
  void mark(int64_t tokens) { state_->mark(tokens); }

  size_t bytes() const { return state_->bytes() + row_.size(); }
  size_t workspace_bytes() const { return state_->workspace_bytes(); }
  model::StateCounters counters() const { return state_->counters(); }
  std::vector<model::NodeReport> graph_report() const { return engine_->line().graph_report(state_.get()); }

 private:
  friend class Generator;
  Session() = default;
  Result<void> check(std::span<const int32_t> ids) const;
  Result<void> extend(std::span<const int32_t> ids, std::span<float> all_rows, const AppendOptions& options);
  Result<void> compute(int64_t last, std::span<float> all_rows, const AppendOptions& options);
  Result<void> refresh_row(const AppendOptions& options);
  Result<int32_t> choose(Sampler& sampler, GenerateTimings& timings);
  std::span<float> row() const { return {row_.as<float>(), static_cast<size_t>(engine_->info().vocab)}; }

  std::shared_ptr<const Engine> engine_;
  std::unique_ptr<model::State> state_;
  std::vector<int32_t> tokens_;  // the state holds a prefix of them
  cpu::Buffer row_;              // logits after the last token, where row_valid_
  bool row_valid_ = false;
};

}  // namespace quern::engine
