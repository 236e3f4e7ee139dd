// SPDX-License-Identifier: Apache-2.0
// Owns the checked form of an ONNX graph: values with one definition each, nodes in an order that can be executed.
// Does not own what operators mean (ops/) or when memory is used (plan.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/onnx/onnx_file.h"
#include "ops/tensor.h"

namespace quern::graph {

// A dimension of a graph input or output as declared: a fixed extent, or a symbol (possibly without a name).
struct DeclaredDim {
  int64_t extent = -1;      // -1 for a symbol
  std::string_view symbol;  // may be empty
};

// A graph input or output. Names live as long as the file.
struct Port {
  std::string_view name;
  DType dtype = DType::f32;
  bool has_shape = false;  // false: any rank
  std::vector<DeclaredDim> dims;
  int value = -1;  // index into Ir::values
};

enum class ValueKind : uint8_t {
  input,     // fed by the caller (where `initializer` is set too: may be left out)
  constant,  // an initializer, or the tensor of a Constant node
  computed,  // output of a node
};

struct Use {
  int node = 0;
  int input = 0;
};

struct Value {
  std::string_view name;
  ValueKind kind = ValueKind::computed;
  DType dtype = DType::f32;                           // of computed values: set when operators are made
  const formats::TensorProto* initializer = nullptr;  // of constants and of inputs with a default
  int producer = -1;                                  // node index, -1 for inputs and initializers
  std::vector<Use> uses;
  bool is_output = false;
};

struct Node {
  const formats::NodeProto* proto = nullptr;
  std::string name;          // for people: the node's name, or "#<position in the file>" where it has none
  std::vector<int> inputs;   // value index, -1 for an absent one
  std::vector<int> outputs;  // likewise
};

struct Ir {
  std::vector<Value> values;
  std::vector<Node> nodes;  // topologically sorted, file order where that is one
  std::vector<Port> inputs;
  std::vector<Port> outputs;
};

// Checks names, definitions and order. Unused initializers are dropped. The result points into `file`.
// Errors: bad_model (value defined twice, used before or without definition, cycle, input or output without a tensor
// type), unsupported (element types quern does not have). Each names the value and the node.
Result<Ir> build_ir(const formats::OnnxFile& file);

}  // namespace quern::graph
