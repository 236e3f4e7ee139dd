// SPDX-License-Identifier: Apache-2.0
// Owns the seam every model stands behind: what a loaded model can be asked (Line) and one timeline of it (State).
// Does not own text, sampling or prompts (engine/), nor how a model computes: no tensor and no cache layout shows here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu/features.h"
#include "cpu/pool.h"

namespace quern::model {

// How the model's authors want text to be sampled where a caller asks for nothing else. Zero top_k and a top_p of 0 or
// 1 mean no limit.
struct SamplingDefaults {
  bool do_sample = false;
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 0.0f;
  // Settings of the file that quern does not carry out, as "name value"; using these defaults is then refused.
  std::vector<std::string> unsupported;
};

struct ModelInfo {
  std::string model_type;
  std::filesystem::path folder;
  int32_t context_tokens = 0;  // positions a timeline can hold
  int32_t vocab = 0;           // logits of one row
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t heads = 0;  // query heads
  int32_t kv_heads = 0;
  int32_t head_size = 0;
  std::vector<int32_t> eos_ids;  // at least one
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  SamplingDefaults sampling;
  // Further facts about the files for people, in the order to show them.
  std::vector<std::pair<std::string, std::string>> facts;
};

// Who executes one node of the model, and what it did in the last forward of a State.
struct NodeReport {
  std::string node;  // names are the file's bytes and need not be UTF-8
  std::string op;
  std::string domain;
  std::string owner;    // "kernel", "prepared", "view" or "fused": there is no fifth
  std::string variant;  // kernel symbol, empty for nodes without one
  std::string reason;
  int64_t ns = 0;  // with OpenOptions::profile
  uint64_t bytes_copied = 0;
};

struct MemoryReport {
  size_t weight_bytes = 0;             // prepared weights
  size_t serialized_weight_bytes = 0;  // the same weights in the file
  size_t constant_bytes = 0;           // small constants copied for alignment
  uint64_t preparations = 0;           // weight matrices packed
};

// Totals of one State since it was made.
struct StateCounters {
  uint64_t forwards = 0;
  uint64_t bytes_copied = 0;          // payload moved without computing on it, growth of the cache included
  uint64_t cache_bytes_copied = 0;    // the part of it that is rows of earlier tokens
  uint64_t cache_bytes_appended = 0;  // rows written for the tokens of the calls
  uint64_t weight_bytes_read = 0;
};

// One timeline: what the model remembers of the tokens so far. Not for two threads at once; different States of one
// Line may be used at once. Must not outlive its Line.
class State {
 public:
  virtual ~State() = default;

  virtual int64_t length_tokens() const = 0;
  // Forgets everything, keeps the memory.
  virtual void reset() = 0;
  // Forgets all but the first `tokens` tokens. Errors: bad_request when there are fewer.
  virtual Result<void> rewind(int64_t tokens) = 0;
  // An independent timeline with the same past. Errors: no_memory.
  virtual Result<std::unique_ptr<State>> fork() const = 0;
  // Makes room for a length of `tokens`, so that forward() up to there takes no memory for the past. A hint: never
  // needed for correctness. Errors: too_long, no_memory; the state is as before.
  virtual Result<void> reserve(int64_t tokens) = 0;
  // Memory of this timeline: its past, and the intermediates it keeps between forwards.
  virtual size_t bytes() const = 0;
  virtual size_t workspace_bytes() const = 0;  // the second part of it
  virtual StateCounters counters() const = 0;
};

// Which of the ids of a forward() get logits: `count` rows from `first` on, counted from the first id of the call.
struct Rows {
  static constexpr int64_t kLast = -1;  // as `first`: the last `count` rows
  int64_t first = kLast;
  int64_t count = 1;

  static Rows none() { return {0, 0}; }
};

// A loaded model. Const calls may run on any number of threads at once, with one State each.
class Line {
 public:
  virtual ~Line() = default;

  virtual const ModelInfo& info() const = 0;
  virtual Result<std::unique_ptr<State>> new_state() const = 0;

  // Appends `ids` (at least one) to the timeline and computes the logits after the `wanted` ones: row-major
  // [wanted.count, info().vocab] float32 into the caller's `logits`, which has exactly that many elements. Row r holds
  // the scores of the token that follows ids[wanted.first + r]. Calls of several ids equal calls of one id each within
  // the models' numeric class; the same call gives the same bits on any number of threads.
  // Allocates nothing once a call of the same number of ids has been made and the past has room (State::reserve).
  // Errors, all of them before anything is computed where they concern the arguments: bad_request (a state of
  // another line, no ids, an id outside [0, vocab), rows outside the call, logits of another size), too_long (more
  // positions than context_tokens), no_memory. After an error the timeline has its old length and `logits` is
  // undefined.
  virtual Result<void> forward(State& state, std::span<const int32_t> ids, Rows wanted,
                               std::span<float> logits) const = 0;

  // One row a node in execution order; with the figures of the last forward of `state` unless that is null.
  virtual std::vector<NodeReport> graph_report(const State* state) const = 0;
  virtual MemoryReport memory() const = 0;
};

struct OpenOptions {
  cpu::Pool* pool = nullptr;  // must outlive the Line
  cpu::Features features;
  bool profile = false;                   // measure the time of every node
  std::vector<std::string> no_fuse = {};  // passes over the graph that are left out, by name
};

// What a folder holds, read from its files and never guessed from its name.
struct Identity {
  std::string model_type;
  std::filesystem::path config;  // the file that says so
};

// Errors: unsupported (a model type or a file format that this program does not run, or was built without, by name),
// bad_model (the folder or a part of the model is missing, by name; a damaged configuration), io.
Result<Identity> identify(const std::filesystem::path& folder);

// Opens the model in `folder` with the line that its type names. Errors: those of identify(), and what the line finds
// in the files: bad_model, unsupported, no_memory, io; bad_request for a pass that the line does not have.
Result<std::unique_ptr<Line>> open_line(const std::filesystem::path& folder, const OpenOptions& options);

}  // namespace quern::model
