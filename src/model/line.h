// SPDX-License-Identifier: Apache-2.0
// Owns the seam every model stands behind: what a loaded model can be asked (Line) and one timeline of it (State).
// Does not own text, sampling or prompts (engine/), nor how a model computes: no tensor and no cache layout shows here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/features.h"
#include "cpu/pool.h"
#include "model/memory_need.h"

namespace quern::model {

// How the model's authors want text to be sampled where a caller asks for nothing else.
struct SamplingDefaults {
  bool do_sample = false;
  float temperature = 1.0f;
  int32_t top_k = 0;   // 0: no limit
  float top_p = 1.0f;  // 0: the most likely token alone; 1: no limit
  float min_p = 0.0f;  // 0: no limit
  float repetition_penalty = 1.0f;
  std::vector<int32_t> suppressed_ids;    // below the vocabulary; never sampled, whatever a caller asks for
  std::vector<std::string> stop_strings;  // where a caller has none of their own
  // Settings of the file that quern does not carry out, as "name value"; using these defaults is then refused.
  std::vector<std::string> unsupported;
  std::filesystem::path file;  // that says so
};

struct ModelInfo {
  std::string model_type;
  std::filesystem::path folder;
  int32_t context_tokens = 0;  // positions a timeline can hold: those of the model, or fewer (OpenOptions)
  int32_t model_context_tokens = 0;
  int32_t vocab = 0;  // logits of one row
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t heads = 0;  // query heads
  int32_t kv_heads = 0;
  int32_t head_size = 0;
  std::vector<int32_t> eos_ids;  // at least one
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  std::vector<int32_t> refused_ids;  // those in [0, vocab) that forward() does not take
  SamplingDefaults sampling;
  // Weights are read from the files while tokens are computed, not prepared at opening: a forward pass only to learn
  // something about the model would read them.
  bool weights_stay_mapped = false;
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
  size_t weight_bytes = 0;  // prepared ones; of nodes that are computed together at the first of them
};

struct MemoryReport {
  size_t weight_bytes = 0;             // prepared weights
  size_t serialized_weight_bytes = 0;  // the same weights in the file
  size_t constant_bytes = 0;           // constants copied for alignment
  uint64_t preparations = 0;           // weight matrices packed
  std::string kv_type;                 // what keys and values are kept as
  size_t kv_token_bytes = 0;           // what one token of a timeline adds to its past
  MemoryNeed estimate;                 // of before anything was read
};

// Totals of one State since it was made.
struct StateCounters {
  uint64_t forwards = 0;
  uint64_t tokens = 0;                // computed, and computed again after going back
  uint64_t bytes_copied = 0;          // payload moved without computing on it, growth of the cache included
  uint64_t cache_bytes_copied = 0;    // the part of it that is rows of earlier tokens
  uint64_t cache_bytes_appended = 0;  // rows written for the tokens of the calls
  uint64_t weight_bytes_read = 0;
};

// What a step of a forward has just computed or left in the past: row-major without gaps.
struct StepResult {
  std::string_view node;  // NodeReport::node of the step
  std::string_view part;  // which result, of steps with several; may be empty
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t width = 0;
  const void* data = nullptr;  // valid until the observer returns
};
using Observer = std::function<Result<void>(const StepResult&)>;

// One timeline: what the model remembers of the tokens so far. Not for two threads at once; different States of one
// Line may be used at once. Must not outlive its Line.
class State {
 public:
  virtual ~State() = default;

  virtual int64_t length_tokens() const = 0;
  // How many of them the model remembers: all, or fewer after going back. forward() computes the others first, in one
  // piece; whoever wants to see that go on takes them off and appends them again.
  virtual int64_t computed_tokens() const { return length_tokens(); }
  // The logits after the last token, where the timeline keeps them, else nothing. Valid until the timeline changes.
  virtual std::span<const float> kept_row() const { return {}; }
  // Forgets everything, keeps the memory.
  virtual void reset() = 0;
  // Forgets all but the first `tokens` tokens. Errors: bad_request when there are fewer.
  virtual Result<void> rewind(int64_t tokens) = 0;
  // A hint that rewind() may come back to this length, which is not reached yet: then nothing before it needs to be
  // computed again. Of several hints the last one counts.
  virtual void mark(int64_t tokens) = 0;
  // An independent timeline with the same past. Errors: no_memory.
  virtual Result<std::unique_ptr<State>> fork() const = 0;
  // The ids of the timeline's tokens, length_tokens() of them. Valid until the timeline changes.
  virtual std::span<const int32_t> ids() const = 0;
  // Writes the timeline to a file that appears whole or not at all; Line::load_state() of the same model and the same
  // kind of cache reads it. Errors: io.
  virtual Result<void> save(const std::filesystem::path& path) const = 0;
  // Makes room for a length of `tokens`, so that forward() up to there takes no memory for the past. A hint: never
  // needed for correctness. Errors: too_long, no_memory; the state is as before.
  virtual Result<void> reserve(int64_t tokens) = 0;
  // Memory of this timeline: its past, and the intermediates it keeps between forwards.
  virtual size_t bytes() const = 0;
  virtual size_t workspace_bytes() const = 0;  // the second part of it
  virtual StateCounters counters() const = 0;
  // From now on every forward() of this timeline, but not of its forks, shows the results of its steps in the order of
  // execution, on the thread of the caller; a long call shows them chunk by chunk. An empty observer ends it. An error
  // that the observer returns breaks off the forward and is its error. Errors: unsupported (this kind of model has
  // nothing to show).
  virtual Result<void> observe(Observer observer) {
    (void)observer;
    return unsupported("observe", "the steps of this kind of model cannot be seen");
  }
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
  // The timeline that State::save() wrote. Errors: io; bad_request for a file that is damaged, or that another model or
  // another kind of cache wrote, naming both; too_long for more tokens than the context holds; no_memory.
  virtual Result<std::unique_ptr<State>> load_state(const std::filesystem::path& path) const = 0;

  // Appends `ids` (at least one) to the timeline and computes the logits after the `wanted` ones: row-major
  // [wanted.count, info().vocab] float32 into the caller's `logits`, which has exactly that many elements. Row r holds
  // the scores of the token that follows ids[wanted.first + r]. Calls of several ids equal calls of one id each within
  // the models' numeric class; the same call gives the same bits on any number of threads.
  // Allocates nothing once a call of the same number of ids has been made and the past has room (State::reserve).
  // Errors, all of them before anything is computed where they concern the arguments: bad_request (a state of
  // another line, no ids, an id outside [0, vocab) or one of refused_ids, rows outside the call, logits of another
  // size), too_long (more positions than context_tokens), no_memory. After an error the timeline has its old length and
  // `logits` is undefined.
  virtual Result<void> forward(State& state, std::span<const int32_t> ids, Rows wanted,
                               std::span<float> logits) const = 0;

  // The logits after the last token of the timeline once more, [vocab] into `logits`: kept ones, or computed again,
  // which they are where an observer looks on. Errors, before anything is computed: bad_request (a state of another
  // line, an empty one, logits of another size); later: those of forward(). After an error the timeline is as before.
  virtual Result<void> last_row(State& state, std::span<float> logits) const = 0;

  // One row a node in execution order; with the figures of the last forward of `state` unless that is null.
  virtual std::vector<NodeReport> graph_report(const State* state) const = 0;
  virtual MemoryReport memory() const = 0;
};

struct OpenOptions {
  cpu::Pool* pool = nullptr;  // must outlive the Line
  cpu::Features features;
  bool profile = false;  // measure the time of every node
  // What is computed in, float32 or bfloat16 with roundings where the model's authors have them; nothing: what the
  // model is made for.
  std::optional<DType> compute = std::nullopt;
  // What keys and values are kept as, one of model/kv_cache.h's types; nothing: what the line prefers.
  std::optional<DType> kv = std::nullopt;
  std::vector<std::string> no_fuse = {};  // passes over the graph that are left out, by name
  // Positions of a timeline and the memory to open in; see choose_context().
  int32_t context_tokens = 0;
  MemoryBudget memory = {};
};

// What a folder holds, read from its files and never guessed from its name.
struct Identity {
  std::string model_type;
  std::filesystem::path config;  // the file that says so
};

// Errors: unsupported (a model type or a file format that this program does not run, or was built without, by name),
// bad_model (the folder or a part of the model is missing, by name; a damaged configuration), io.
Result<Identity> identify(const std::filesystem::path& folder);

// Opens the model in `folder` with the line that its type names. Errors: those of identify() and, before weights are
// prepared, of choose_context(); what the line finds in the files: bad_model, unsupported, no_memory, io; bad_request
// for a pass that the line does not have, unsupported for a type that it does not compute in or keep.
Result<std::unique_ptr<Line>> open_line(const std::filesystem::path& folder, const OpenOptions& options);

}  // namespace quern::model
