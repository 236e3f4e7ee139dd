// SPDX-License-Identifier: Apache-2.0
// Owns the border between graph/ and the operator rooms: how a node is shown to a room (NodeView), what a room gives
// back (Operator), and the table of ONNX operators that quern runs. Does not own graphs, files or memory planning.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_map.h"
#include "ops/context.h"
#include "ops/kernel_list.h"
#include "ops/tensor.h"

namespace quern::ops {

// ---- the node as a room sees it ----

enum class AttributeType : uint8_t { f, i, s, tensor, floats, ints, strings, other };

struct Attribute {
  std::string_view name;
  AttributeType type = AttributeType::other;
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  Tensor tensor;
  std::vector<int64_t> ints;
};

struct NodeInput {
  bool present = false;  // false for an empty name or a missing trailing input
  DType dtype = DType::f32;
  bool constant = false;  // true for an initializer that callers cannot override: `value` is filled
  Tensor value;           // borrowed, possibly unaligned, alive while the model is
};

// Valid during the factory call only; constant payloads stay alive as long as the model.
struct NodeView {
  std::string_view name, op, domain;
  int64_t opset = 0;  // of the node's domain, from opset_import
  std::span<const Attribute> attributes;
  std::span<const NodeInput> inputs;
  std::span<const bool> outputs;  // true where the node names the output

  bool has_input(int i) const { return i < static_cast<int>(inputs.size()) && inputs[static_cast<size_t>(i)].present; }
  bool has_output(int i) const { return i < static_cast<int>(outputs.size()) && outputs[static_cast<size_t>(i)]; }
  const NodeInput& input(int i) const { return inputs[static_cast<size_t>(i)]; }
  std::string where() const;
};

// "MatMulNBits node '/lm_head/MatMul_Q4'": the place for errors.
std::string node_where(std::string_view op, std::string_view name);

// Reads attributes by name and type, and refuses what was not asked for. A type that differs is bad_model, not a
// conversion. Use: construct, read every attribute, then finish().
class AttributeReader {
 public:
  explicit AttributeReader(const NodeView& node);

  Result<int64_t> require_int(std::string_view name);
  Result<int64_t> int_or(std::string_view name, int64_t absent);
  Result<float> float_or(std::string_view name, float absent);
  Result<std::string_view> string_or(std::string_view name, std::string_view absent);
  // The attribute may be absent or have this value; any other is unsupported, by name.
  Result<void> only_int(std::string_view name, int64_t value);
  Result<void> only_string(std::string_view name, std::string_view value);
  // Errors: unsupported for the first attribute that was not read.
  Result<void> finish() const;

 private:
  const Attribute* find(std::string_view name, AttributeType type, Error* error);
  const NodeView& node_;
  std::vector<bool> seen_;
};

// Errors: bad_model unless `count` inputs at most are there and the first `required` are present; same for outputs.
Result<void> check_arity(const NodeView& node, int required_inputs, int max_inputs, int required_outputs,
                         int max_outputs);
// Errors: unsupported when input i is present with another type.
Result<void> check_dtype(const NodeView& node, int i, DType dtype);

// ---- the prepared operator ----

// Small integer contents that are known while shapes are resolved (constants, results of Shape, fed lengths).
struct IntValues {
  static constexpr int kMax = 16;
  bool known = false;
  int count = 0;
  std::array<int64_t, kMax> v{};
  std::span<const int64_t> span() const { return {v.data(), static_cast<size_t>(count)}; }
  bool operator==(const IntValues& other) const {
    return known == other.known && (!known || std::ranges::equal(span(), other.span()));
  }
};

// One invocation's shapes. `in` and `in_values` are filled; resolve() fills `out`, and where it applies `out_values`
// and `views`. Absent inputs have a null data meaning only through NodeView at preparation: remember what you need.
struct View {
  int of = -1;         // index of the input whose storage the output shares, -1 for none
  int64_t offset = 0;  // elements from the input's data to the output's
  RowLayout layout;
  bool contiguous = true;
};

struct ResolveArgs {
  std::span<const Tensor> in;  // dtype, shape, layout and contiguous are valid; data is not
  std::span<const IntValues> in_values;
  std::span<Shape> out;
  std::span<IntValues> out_values;
  std::span<View> views;
};

// Immutable after preparation; resolve() and run() may be called from several threads at once with different contexts.
class Operator {
 public:
  virtual ~Operator() = default;

  // Element type of output j.
  virtual DType output_dtype(int j) const = 0;
  // Shapes of this invocation. Reads no payload. Errors: bad_request with the shapes seen.
  virtual Result<void> resolve(const ResolveArgs& args) const = 0;
  // Computes all outputs that are not views. Data of `out` is allocated as resolve() said (or bound by the caller),
  // never overlaps an input unless may_share() allows it or the caller bound it so (GroupQueryAttention's cache).
  // Checks of payload values (indices, lengths) come before anything is written. Errors: bad_request, no_memory.
  virtual Result<void> run(const Context& ctx, std::span<const Tensor> in, std::span<const Tensor> out) const = 0;
  // Symbol of the chosen kernel variant, or another short name of what runs.
  virtual std::string_view variant() const = 0;
  // What else a person should know of how it runs, for the report; may be empty. Of a joint operator: its own part.
  virtual std::string detail() const { return {}; }
  // variant() and detail() of a call with inputs that are bound like these, where that decides them: a cache's rows
  // have a type of their own. Of other inputs nothing need be filled.
  virtual std::string_view variant_of(std::span<const Tensor> /*in*/) const { return variant(); }
  virtual std::string detail_of(std::span<const Tensor> /*in*/) const { return detail(); }

  // Bit i set: the content of input i must be known when shapes are resolved (Reshape's shape, Split's sizes ...).
  virtual uint32_t shape_inputs() const { return 0; }
  // True when the outputs' contents follow from in_values alone whenever those are known, set by resolve() (Shape, and
  // Gather and Cast on such values): the node is then folded and never run.
  virtual bool folds_known_values() const { return false; }
  // True when the outputs' contents follow from shapes alone (Shape).
  virtual bool folds_shapes() const { return false; }
  // True when run() takes input i with any RowLayout; otherwise it gets contiguous tensors only.
  virtual bool accepts_rows(int /*input*/) const { return false; }
  // True when run() reads constant input i at any address (or only while preparing); others get aligned elements.
  virtual bool accepts_unaligned(int /*input*/) const { return false; }
  // True when output j may use the storage of input i where both have the same size: element k of every input is read
  // before element k of the output is written, and nothing else is read of it afterwards.
  virtual bool may_share(int /*input*/, int /*output*/) const { return false; }
  // True when run() does without output j: it is then told of it as an output that the node does not have.
  virtual bool may_omit(int /*output*/) const { return false; }
  // True for operators that only relabel or slice their first input (Reshape, Split): resolve() may set views.
  virtual bool makes_views() const { return false; }
  // True when row r of each output depends on row r of input 0 alone, so that callers may ask for some rows only.
  virtual bool row_wise() const { return false; }
  // Operators with equal, non-empty keys that read the same value as input 0, have one output each and no other
  // computed input may be joined into one. The key names everything that the common work depends on.
  virtual std::string join_key() const { return {}; }
  // One operator for this one and `others`, whose keys equal its own; it keeps what it needs of their prepared weights.
  // Its inputs are those of this operator's node, its output 0 is this operator's and output j that of others[j - 1],
  // with the bits that each would give alone. This operator is destroyed afterwards.
  virtual std::unique_ptr<Operator> join(std::vector<std::unique_ptr<Operator>> /*others*/) const { return nullptr; }
  // Bytes of prepared weights that this operator keeps (shared storage is counted by its first owner), and how many
  // bytes they took in the file.
  virtual size_t prepared_bytes() const { return 0; }
  virtual size_t serialized_bytes() const { return 0; }
  // The constants that run() on few rows reads from memory first on a thread that joins the calling one, of `threads`
  // in all; empty where asking for them early is not worth it.
  virtual std::span<const std::byte> reads_first(int /*threads*/) const { return {}; }
};

// Addresses of the constants that one preparation was made of, null for those that a node does not have. MatMulNBits:
// codes, scales, zero points.
using SharedKey = std::array<const void*, 3>;

// What a factory may use while it prepares.
struct PrepareContext {
  cpu::Features features;
  cpu::Pool* pool = nullptr;
  // Prepared weights by the address of their source, so that nodes that share a constant share the preparation.
  std::map<SharedKey, std::shared_ptr<const void>>* shared = nullptr;
  // Called with source bytes that will not be read again (their pages need not stay resident). May be empty.
  std::function<void(std::span<const std::byte>)> drop_source;
  // Copies source bytes without making their pages resident, also while operators run. May be empty.
  CopyBytes copy_source;
  // Counts preparations (packing of one weight matrix); a repack would show here.
  uint64_t* preparations = nullptr;
};

using Factory = Result<std::unique_ptr<Operator>> (*)(const NodeView& node, const PrepareContext& ctx);

struct OpEntry {
  std::string_view domain;  // "" for ai.onnx
  std::string_view op;
  int64_t first_opset, last_opset;
  std::string_view room;
  Factory make;
};

struct RoomEntry {
  std::string_view room;
  std::span<const VariantInfo> (*variants)();
};

// The table of ops/op_list.inc and the rooms with kernel variants.
std::span<const OpEntry> op_table();
std::span<const RoomEntry> room_table();

// Errors: unsupported, naming node, operator, domain and opset.
Result<std::unique_ptr<Operator>> make_operator(const NodeView& node, const PrepareContext& ctx);

}  // namespace quern::ops
