// SPDX-License-Identifier: Apache-2.0
// Owns the checked C++ picture of an ONNX model: what the bytes of a ModelProto say, field by field.
// Does not own external data or the lifetime of the bytes (onnx_file.h), and knows nothing of what operators mean, of
// names that clash or of cycles (graph/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/onnx/element_type.h"

namespace quern::formats {

// Every string_view and span below points into the bytes given to parse_model. Names are opaque bytes: they hold
// slashes, brackets, blanks and whatever else the writer liked, and need not be UTF-8.

struct OpsetId {
  std::string_view domain;  // "" for the standard operators, also where the file says "ai.onnx"
  int64_t version = 0;
};

// Where an external tensor lies, as the file says it; OnnxFile checks it against the file system.
struct ExternalData {
  std::string_view location;
  int64_t offset = 0;             // 0 when absent
  std::optional<int64_t> length;  // computed from type and shape when absent
};

struct TensorProto {
  enum class Storage : uint8_t {
    kNone,      // no data field at all: right only for zero elements
    kRaw,       // `raw`, little-endian
    kTyped,     // one of float_data, int32_data, int64_data, double_data, uint64_data, string_data
    kExternal,  // `external`
  };

  std::string_view name;
  int32_t onnx_type = 0;
  std::optional<DType> dtype;  // of onnx_type
  std::vector<int64_t> dims;   // none negative, product fits; empty for a scalar
  int64_t elements = 1;        // product of dims
  Storage storage = Storage::kNone;
  std::span<const std::byte> raw;
  ExternalData external;

  // For kTyped: the field number, and the whole message, from which OnnxFile::bytes_of decodes the values on demand.
  uint32_t typed_field = 0;
  std::span<const std::byte> message;
};

// The numbers are those of the format.
enum class AttributeType : int32_t {
  kFloat = 1,
  kInt = 2,
  kString = 3,
  kTensor = 4,
  kGraph = 5,
  kFloats = 6,
  kInts = 7,
  kStrings = 8,
  kTensors = 9,
  kGraphs = 10,
  kSparseTensor = 11,
  kSparseTensors = 12,
  kTypeProto = 13,
  kTypeProtos = 14,
};

std::string_view attribute_type_name(AttributeType type);  // "FLOAT", "INT", ...

// Only the field that belongs to `type` is ever set. Of graphs, sparse tensors, type protos and lists of tensors only
// the type is kept: nothing quern runs has them, and whoever meets one refuses it by name.
struct AttributeProto {
  std::string_view name;
  AttributeType type = AttributeType::kInt;
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  std::shared_ptr<const TensorProto> tensor;  // never null for kTensor
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
};

struct NodeProto {
  std::string_view name;  // may be empty
  std::string_view op_type;
  std::string_view domain;                // normalised as in OpsetId
  std::vector<std::string_view> inputs;   // "" is an absent input, also at the end
  std::vector<std::string_view> outputs;  // likewise
  std::vector<AttributeProto> attributes;

  // Nothing when the node has no such attribute. Names are unique within a node.
  const AttributeProto* attribute(std::string_view attribute_name) const;
};

struct DimProto {
  enum class Kind : uint8_t { kValue, kSymbol, kUnknown };
  Kind kind = Kind::kUnknown;
  int64_t value = 0;        // kValue: never negative (a negative dimension in the file is kUnknown)
  std::string_view symbol;  // kSymbol: a label, never an expression to evaluate
};

// Annotations are hints about values, binding only for graph inputs and outputs.
struct ValueInfoProto {
  std::string_view name;
  bool is_tensor = false;      // false: absent type, or a sequence, map, optional or sparse tensor
  int32_t onnx_type = 0;       // 0 when the file gives none
  std::optional<DType> dtype;  // of onnx_type
  bool has_shape = false;      // false: the rank is unknown
  std::vector<DimProto> dims;
};

struct GraphProto {
  std::string_view name;
  std::vector<NodeProto> nodes;  // in file order
  std::vector<TensorProto> initializers;
  std::vector<ValueInfoProto> inputs;
  std::vector<ValueInfoProto> outputs;
  std::vector<ValueInfoProto> value_info;
};

struct ModelProto {
  int64_t ir_version = 0;
  std::vector<OpsetId> opsets;  // one per domain
  std::string_view producer_name;
  std::string_view producer_version;
  GraphProto graph;

  // Nothing when the model does not import the domain.
  std::optional<int64_t> opset(std::string_view domain) const;
};

// Reads a ModelProto without copying payloads. Time is linear in the size of the file less its tensor payloads, which
// are not touched; memory is bounded whatever the bytes are. `where` (a path) heads the error locations.
// Fields the format does not know are skipped, those it knows and quern has no use for too (docs, metadata, training).
// Errors: bad_model for what the format does not allow, unsupported for what it allows and quern does not (model-local
// functions, sparse initializers, segmented tensors, a later IR version).
Result<ModelProto> parse_model(std::span<const std::byte> bytes, std::string_view where);

}  // namespace quern::formats
