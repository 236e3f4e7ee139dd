// SPDX-License-Identifier: Apache-2.0
// Owns an opened model ready for use: compute threads, model line and tokenizer. With session.h the whole surface for
// programs. Does not own timelines (session.h) or how anything is shown.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "cpu/memory.h"
#include "engine/sampler.h"
#include "model/line.h"
#include "text/tokenizer.h"

namespace quern::engine {

class Session;

// Far above every machine quern knows.
inline constexpr int kMaxThreads = 1024;

// What keys and values can be kept as.
std::span<const std::string_view> kv_types();

struct EngineOptions {
  int threads = 0;                   // at most kMaxThreads; 0: the usable physical cores
  bool profile = false;              // measure the time of every node
  bool with_text = true;             // false: no tokenizer is read, and there is no text in or out
  std::string compute = "auto";      // fp32 or bf16 where the model can be computed in both, auto: what it is made for
  std::string kv = "auto";           // one of kv_types() where the model can keep them, auto: what it is made for
  std::vector<std::string> no_fuse;  // passes over the graph that are left out, by name
  // Positions of a timeline; 0: as many as the model has and as memory has room for.
  int32_t context_tokens = 0;
};

// What opening expected before it took anything, in bytes.
struct MemoryEstimate {
  size_t program = 0;  // resident before, and what little opening adds besides the rest
  size_t tokenizer = 0;
  size_t weights = 0;
  size_t cache = 0;      // keys and values of the whole context, and states
  size_t workspace = 0;  // intermediates of a chunk of a prompt, and logits
  size_t mapped = 0;     // of files that stay mapped; not in the total: their pages give way
  size_t available = 0;  // what there was beside the program, 0 where not known
  std::string bound;     // what decided that

  size_t total() const { return program + tokenizer + weights + cache + workspace; }
};

// Bytes. The process-wide figures count every engine of the process.
struct EngineMemory {
  model::MemoryReport model;
  cpu::MemoryUsage process;
  size_t peak_resident = 0;
  MemoryEstimate estimate;
};

// Immutable after opening: every call may come from any thread. Opened instruction sets follow QUERN_ISA.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // Errors: what model::open_line() and text::Tokenizer::load() give, no_memory among it for a model that will not fit
  // into the memory that is available to this process; bad_model when the tokenizer has ids that the
  // model has not; bad_request for a number of threads or tokens outside of the range, a kind of cache or a pass that
  // does not exist, or a QUERN_ISA that the machine does not have.
  static Result<std::shared_ptr<const Engine>> open(const std::filesystem::path& folder, const EngineOptions& options);
  ~Engine();

  const model::ModelInfo& info() const { return line_->info(); }
  const model::Line& line() const { return *line_; }
  int threads() const { return pool_->threads(); }
  // For work of this folder on what a forward gave; several threads may use it at once.
  cpu::Pool& pool() const { return *pool_; }
  const cpu::Features& features() const { return features_; }
  double load_ms() const { return load_ms_; }
  const Process& process() const { return process_; }
  EngineMemory memory() const;
  std::vector<model::NodeReport> graph_report() const { return line_->graph_report(nullptr); }

  // An empty timeline. Keeps the engine alive. Errors: no_memory; unsupported in a child of fork(), here and wherever a
  // session computes.
  Result<std::unique_ptr<Session>> new_session() const;

  // Errors: those of text::Tokenizer::encode(); bad_request without a tokenizer.
  Result<std::vector<int32_t>> encode(std::string_view utf8) const;
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special = false) const;
  const std::optional<text::Tokenizer>& tokenizer() const { return tokenizer_; }

  // What bad_model says about logits that are no numbers, with what else than the model may be the cause.
  Error explain_not_finite(Error error) const;

  // A caller's settings, and each that is absent as the model's authors want it. One of temperature, top_k, top_p and
  // min_p asks for sampling where the authors are greedy. Errors: unsupported, naming what the authors want and quern
  // does not carry out; not where the caller says how to choose: greedy, or temperature, top_k and top_p.
  Result<SamplingOptions> choose_sampling(const SamplingChoice& choice) const;
  // What the model's authors want.
  Result<SamplingOptions> default_sampling() const { return choose_sampling({}); }

  // Ids that may be sampled are those in [0, sampled_ids()) but not in unsampled_ids(): the rest of the logits' columns
  // have no text, the model would not take them as input, or its authors suppress them.
  int32_t sampled_ids() const;
  std::span<const int32_t> unsampled_ids() const { return unsampled_ids_; }

 private:
  Engine() = default;

  Process process_;
  cpu::Features features_;
  std::unique_ptr<cpu::Pool> pool_;
  std::unique_ptr<model::Line> line_;
  std::optional<text::Tokenizer> tokenizer_;
  std::vector<int32_t> unsampled_ids_;
  double load_ms_ = 0;
  MemoryEstimate estimate_;
};

}  // namespace quern::engine
