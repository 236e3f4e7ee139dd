// SPDX-License-Identifier: Apache-2.0
// Owns a loaded graph: the file, the prepared operators and constants, and who executes each node. Immutable after
// loading, shared by any number of Runners on any threads. Does not own invocations (runner.h).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/memory.h"
#include "cpu/pool.h"
#include "formats/onnx/onnx_file.h"
#include "graph/ir.h"
#include "graph/step.h"
#include "ops/registry.h"

namespace quern::graph {

struct ReportRow {
  std::string_view node, op, domain;
  Owner owner = Owner::kernel;
  std::string variant;        // kernel symbol, empty for nodes without one
  std::string reason;         // why this owner
  int64_t ns = 0;             // of the last run, when the Runner profiles
  uint64_t bytes_copied = 0;  // in the last run
  size_t weight_bytes = 0;    // prepared, of nodes that were joined at the first of them
};

// What is known about a value before any invocation.
struct ValuePlan {
  ops::Tensor constant;  // data filled for constants (and for defaults of inputs)
  ops::IntValues known;  // small integer constants
  bool folded = false;   // content known when shapes are resolved
  bool rows_ok = false;  // every consumer reads any row layout, so a strided view may stay one
  int last_use = -1;     // last step that reads this value itself, or its producer
};

struct MemorySummary {
  size_t prepared_bytes = 0;    // weights in quern's layout
  size_t serialized_bytes = 0;  // the same weights in the file
  size_t copied_bytes = 0;      // constants copied for alignment
  uint64_t preparations = 0;    // weight matrices packed
};

// Content of a small integer tensor at any address; not known of other types, nor of more than IntValues::kMax
// elements.
ops::IntValues known_values(const ops::Tensor& tensor);

struct LoadOptions {
  std::vector<std::string> no_fuse;  // names of passes (fuse.h) that are left out
};

class Model {
 public:
  // Prepares every node. `pool` is used during the call only. Errors: bad_model, unsupported, no_memory, with the node;
  // bad_request for a pass that does not exist.
  static Result<std::shared_ptr<const Model>> load(formats::OnnxFile file, cpu::Pool& pool, cpu::Features features,
                                                   const LoadOptions& options = {});

  std::span<const Port> inputs() const { return ir_.inputs; }
  std::span<const Port> outputs() const { return ir_.outputs; }
  // -1 when there is none.
  int input_index(std::string_view name) const;
  int output_index(std::string_view name) const;
  const formats::OnnxFile& file() const { return file_; }
  const Ir& ir() const { return ir_; }
  std::span<const Step> steps() const { return steps_; }
  std::span<const ValuePlan> values() const { return values_; }
  const MemorySummary& memory() const { return memory_; }
  cpu::Features features() const { return features_; }
  // One row a node, in execution order, without figures of a run; of graph inputs that are bound like `inputs`, or of
  // ordinary tensors.
  std::vector<ReportRow> report(std::span<const ops::Tensor> inputs = {}) const;

 private:
  explicit Model(formats::OnnxFile file) : file_(std::move(file)) {}
  Result<void> make_constants();
  Result<void> make_operators(cpu::Pool& pool);
  Result<void> make_step(int index, const ops::PrepareContext& ctx);
  void find_owner(int index);
  void find_last_uses();
  void find_strided_values();
  void settle_view_owners();
  Result<void> align_constants();

  formats::OnnxFile file_;
  Ir ir_;
  cpu::Features features_;
  std::vector<Step> steps_;
  std::vector<ValuePlan> values_;
  cpu::Buffer copies_;  // aligned copies of constants
  std::map<ops::SharedKey, std::shared_ptr<const void>> shared_;
  MemorySummary memory_;
};

}  // namespace quern::graph
