// SPDX-License-Identifier: Apache-2.0
// Owns one timeline of invocations of a Model: resolved shapes, the arena of intermediates, and the figures of the last
// run. Not for two threads at once; several Runners may share a Model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpu/memory.h"
#include "cpu/pool.h"
#include "graph/model.h"
#include "graph/storage_plan.h"

namespace quern::graph {

// Where one graph output goes. On success `result` describes it; its data is the bound memory, or `storage`.
struct Output {
  void* bound = nullptr;   // write here when not null; contents are undefined after a failed run
  size_t bound_bytes = 0;  // capacity there; too little is a bad_request
  cpu::MemoryTag tag = cpu::MemoryTag::workspace;
  bool wanted = true;  // false: dropped after its last use, or not even computed where its operator can omit it;
                       // `result` has no data
  ops::Tensor result;
  cpu::Buffer storage;  // made by the run when wanted and not bound; its size is kept and reused when it fits
};

// Rows [first, first + count) of the second-to-last dimension of graph output `output`; the producing node then
// computes those only (one with further outputs computes all, and the rows are copied). Leading dimensions must have
// extent 1.
struct RowRange {
  int output = 0;
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const RowRange&) const = default;
};

class Runner {
 public:
  Runner(std::shared_ptr<const Model> model, cpu::Pool& pool, bool profile = false);

  // inputs[i] feeds model().inputs()[i]: contiguous, read-only during the call; present == false leaves out an input
  // that has a default. outputs[j] belongs to model().outputs()[j]. A fed tensor and a bound output may be the same
  // memory only where an operator's contract says so (the key and value caches of GroupQueryAttention).
  // Errors: bad_request (missing input, dtype, rank, extents, payload values), no_memory.
  Result<void> run(std::span<const ops::Tensor> inputs, std::span<Output> outputs,
                   std::optional<RowRange> rows = std::nullopt);

  const Model& model() const { return *model_; }
  // Rows of Model::report() with the figures of the last run; owners as that run executed them.
  std::vector<ReportRow> report() const;
  // Of the last run.
  const ops::Counters& counters() const { return counters_; }
  size_t arena_bytes() const { return arena_.size(); }
  size_t scratch_peak_bytes() const { return scratch_.peak_bytes(); }

 private:
  // Where the value of a graph output goes.
  struct Home {
    bool wanted = false;
    void* data = nullptr;
    bool operator==(const Home&) const = default;
  };
  // Where the tensors of a step's call begin in call_tensors_.
  struct Call {
    size_t inputs = 0;
    size_t outputs = 0;
  };

  void find_ahead();
  Result<void> bind_inputs(std::span<const ops::Tensor> inputs);
  Result<void> check_input(const Port& port, const ops::Tensor& fed) const;
  Result<void> read_values(const Port& port);
  void set_values(int value, const ops::IntValues& values);
  void mark_readers(int value);
  Result<void> resolve();
  Result<void> narrow(const RowRange& rows);
  Result<ops::Shape> rows_of(const ops::Shape& full, const RowRange& rows) const;
  Result<void> resolve_step(int index);
  Result<void> take_output(int index, size_t j);
  void write_folded(int value);
  Result<void> bind_output(size_t index, Output& output);
  Result<void> place();
  void find_left_out();
  void find_lifetimes();
  int shared_input(int index, int output) const;
  void connect(int index);
  Result<void> execute();
  Result<void> copy_passed_through(std::span<Output> outputs);
  void gather_inputs(int index);

  std::shared_ptr<const Model> model_;
  cpu::Pool* pool_;
  bool profile_;
  cpu::Buffer arena_;
  cpu::Arena scratch_;
  StoragePlan storage_;
  ops::Counters counters_;

  bool settled_ = false;  // what the last run resolved, placed and connected can be built on
  bool moved_ = false;    // storage must be placed and every step be connected again
  std::optional<RowRange> rows_;
  std::vector<Home> homes_;  // by graph output

  // By value.
  std::vector<bool> left_out_;  // nobody takes it and its operator can omit it
  std::vector<ops::Tensor> tensors_;
  std::vector<ops::IntValues> int_values_;
  std::vector<int> viewed_;           // the value whose storage this one shares, -1 for own storage
  std::vector<int> storage_of_;       // the value at the end of the chain of views (itself when it is none)
  std::vector<int> storage_end_;      // by such a value: the last step that reads it or a view of it
  std::vector<int64_t> view_offset_;  // elements
  std::vector<bool> taken_over_;      // its place in the arena went to an output of its last reader
  std::vector<int> block_of_;         // index into blocks_, -1 for none
  std::vector<std::array<int64_t, ops::IntValues::kMax>> payload_;  // of folded values
  std::vector<bool> decides_shapes_;                                // inputs whose contents shape resolution needs
  std::vector<Block> blocks_;

  // The step whose first input is cut to the wanted rows, -1 for none.
  int narrowed_step_ = -1;
  ops::Shape narrowed_shape_;
  int64_t narrowed_offset_ = 0;  // elements
  // The value of which a copy of the wanted rows leaves the graph, -1 for none.
  int cut_value_ = -1;
  ops::Shape cut_shape_;
  int64_t cut_offset_ = 0;  // elements

  // Of the step at hand.
  std::vector<ops::Tensor> in_;
  std::vector<ops::IntValues> in_values_, out_values_;
  std::vector<ops::Shape> out_shapes_;
  std::vector<ops::View> out_views_;

  // By step.
  std::vector<bool> stale_;     // is to be resolved and connected again
  std::vector<bool> computes_;  // has a result that is not a view
  std::vector<Call> calls_;
  std::vector<ops::Tensor> call_tensors_;
  std::vector<std::span<const std::byte>> ahead_;  // what the next step that reads much reads first
  std::vector<int64_t> ns_;                        // of the last run
  std::vector<uint64_t> copied_;                   // of the last run
};

}  // namespace quern::graph
