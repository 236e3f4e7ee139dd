// SPDX-License-Identifier: Apache-2.0
// ModelProto from the wire, one function per message type. Messages that nest without end (graphs in attributes, types
// of sequences) are not entered, so depth is that of this file.
#include "formats/onnx/model_proto.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <utility>

#include "base/checked.h"
#include "base/quote_name.h"
#include "formats/onnx/wire.h"

namespace quern::formats {
namespace {

using Bytes = std::span<const std::byte>;

// Two bytes of file can ask for a whole NodeProto, so the memory of the parsed structure has its own limit. The largest
// graph of the family (64 layers, 1167 nodes) takes less than one MiB.
constexpr size_t kMaxParsedBytes = size_t{64} << 20;

// IR 3 is the first whose models name their operator sets. Up to 14 nothing changed in the fields read here.
constexpr int64_t kMinIrVersion = 3;
constexpr int64_t kMaxIrVersion = 14;

struct AttributeRow {
  std::string_view name;
  uint32_t field;  // where values of the type lie
};
// Indexed by the number of the type, less one.
constexpr std::array<AttributeRow, 14> kAttributeTypes = {AttributeRow{"FLOAT", 2},
                                                          {"INT", 3},
                                                          {"STRING", 4},
                                                          {"TENSOR", 5},
                                                          {"GRAPH", 6},
                                                          {"FLOATS", 7},
                                                          {"INTS", 8},
                                                          {"STRINGS", 9},
                                                          {"TENSORS", 10},
                                                          {"GRAPHS", 11},
                                                          {"SPARSE_TENSOR", 22},
                                                          {"SPARSE_TENSORS", 23},
                                                          {"TYPE_PROTO", 14},
                                                          {"TYPE_PROTOS", 15}};

std::string_view normalised_domain(std::string_view domain) {
  return domain == "ai.onnx" ? std::string_view() : domain;
}

// Which types may have their values in a typed field of TensorProto. Types without a DType pass: they are refused
// where their bytes are asked for.
bool typed_field_fits(uint32_t field, std::optional<DType> dtype) {
  if (!dtype) return true;
  switch (*dtype) {
    case DType::f32: return field == 4;
    case DType::f64: return field == 10;
    case DType::i64: return field == 7;
    case DType::u32:
    case DType::u64: return field == 11;
    default: return field == 5;
  }
}

class Parser {
 public:
  explicit Parser(const WireSource& source) : source_(source) {}

  Result<void> model(Bytes message, ModelProto& out);

 private:
  Result<void> opset(const WireField& at, ModelProto& out);
  Result<void> graph(Bytes message, GraphProto& out);
  Result<void> node(const WireField& at, NodeProto& out);
  Result<void> attribute(const WireField& at, AttributeProto& out);
  Result<void> attribute_value(const WireField& field, AttributeProto& out);
  Result<void> tensor(const WireField& at, TensorProto& out);
  Result<void> tensor_shape(const WireField& at, TensorProto& out);
  Result<void> tensor_storage(const WireField& at, bool external, bool has_location, TensorProto& out);
  Result<void> external_entry(const WireField& at, TensorProto& out, uint32_t& seen);
  Result<void> value_info(const WireField& at, ValueInfoProto& out);
  Result<void> tensor_type(const WireField& at, ValueInfoProto& out);
  Result<void> dim(const WireField& at, DimProto& out);

  Error damaged(const WireField& at, std::string what) const { return source_.damaged(at.begin, std::move(what)); }

  // To be called before `bytes` of parsed structure come into being.
  Result<void> charge(const WireField& at, size_t bytes) {
    parsed_bytes_ += bytes;
    if (parsed_bytes_ <= kMaxParsedBytes) return {};
    return damaged(at, fmt::format("the graph's description takes more than {} MiB of memory, which is the limit",
                                   kMaxParsedBytes >> 20));
  }

  // One more element at the end of `list`.
  template <class T>
  Result<T*> grow(const WireField& at, std::vector<T>& list) {
    QUERN_TRY_VOID(charge(at, sizeof(T)));
    return &list.emplace_back();
  }

  Result<void> text(const WireField& field, std::string_view& out) {
    QUERN_TRY(out, wire_text(field, source_));
    return {};
  }

  Result<void> text_into(const WireField& field, std::vector<std::string_view>& list) {
    QUERN_TRY(std::string_view * slot, grow(field, list));
    return text(field, *slot);
  }

  Result<void> once(const WireField& field, bool& seen, std::string_view what) {
    if (std::exchange(seen, true)) return damaged(field, fmt::format("the {} is there twice", what));
    return {};
  }

  const WireSource& source_;
  size_t parsed_bytes_ = 0;
};

Result<void> Parser::model(Bytes message, ModelProto& out) {
  bool has_graph = false;
  bool has_version = false;
  const auto read = [&](const WireField& f) -> Result<void> {
    switch (f.number) {
      case 1: {
        has_version = true;
        QUERN_TRY(out.ir_version, wire_int64(f, source_));
        if (out.ir_version < kMinIrVersion || out.ir_version > kMaxIrVersion) {
          return unsupported(std::string(source_.name), fmt::format("the IR version is {}, supported are {} to {}",
                                                                    out.ir_version, kMinIrVersion, kMaxIrVersion));
        }
        return {};
      }
      case 2: return text(f, out.producer_name);
      case 3: return text(f, out.producer_version);
      case 7: {
        QUERN_TRY_VOID(once(f, has_graph, "graph"));
        QUERN_TRY(const Bytes payload, wire_payload(f, source_));
        return graph(payload, out.graph);
      }
      case 8: return opset(f, out);
      case 25: return unsupported(std::string(source_.name), "the model defines functions of its own");
      default: return {};
    }
  };
  QUERN_TRY_VOID(wire_fields(message, source_, read));
  const std::string where(source_.name);
  if (!has_version) return bad_model(where, "not an ONNX model or cut short: there is no IR version");
  if (!has_graph) return bad_model(where, "not an ONNX model or cut short: there is no graph");
  if (out.opsets.empty()) return bad_model(where, "not an ONNX model or cut short: no operator set is imported");
  return {};
}

Result<void> Parser::opset(const WireField& at, ModelProto& out) {
  OpsetId id;
  QUERN_TRY(const Bytes message, wire_payload(at, source_));
  const auto read = [&](const WireField& f) -> Result<void> {
    if (f.number == 1) return text(f, id.domain);
    if (f.number == 2) {
      QUERN_TRY(id.version, wire_int64(f, source_));
    }
    return {};
  };
  QUERN_TRY_VOID(wire_fields(message, source_, read));
  id.domain = normalised_domain(id.domain);
  if (id.version < 1) {
    return damaged(at,
                   fmt::format("operator set {} has version {}, the first is 1", quote_name(id.domain), id.version));
  }
  if (const std::optional<int64_t> before = out.opset(id.domain)) {
    if (*before == id.version) return {};
    return damaged(at, fmt::format("operator set {} is imported in versions {} and {}, allowed is one",
                                   quote_name(id.domain), *before, id.version));
  }
  QUERN_TRY(OpsetId * slot, grow(at, out.opsets));
  *slot = id;
  // opset() above is a linear search.
  constexpr size_t kMaxDomains = 1024;
  if (out.opsets.size() > kMaxDomains) {
    return damaged(at, fmt::format("more than {} operator sets are imported, which is the limit", kMaxDomains));
  }
  return {};
}

Result<void> Parser::graph(Bytes message, GraphProto& out) {
  return wire_fields(message, source_, [&](const WireField& f) -> Result<void> {
    switch (f.number) {
      case 1: {
        QUERN_TRY(NodeProto * slot, grow(f, out.nodes));
        return node(f, *slot);
      }
      case 2: return text(f, out.name);
      case 5: {
        QUERN_TRY(TensorProto * slot, grow(f, out.initializers));
        return tensor(f, *slot);
      }
      case 11: {
        QUERN_TRY(ValueInfoProto * slot, grow(f, out.inputs));
        return value_info(f, *slot);
      }
      case 12: {
        QUERN_TRY(ValueInfoProto * slot, grow(f, out.outputs));
        return value_info(f, *slot);
      }
      case 13: {
        QUERN_TRY(ValueInfoProto * slot, grow(f, out.value_info));
        return value_info(f, *slot);
      }
      case 15: return unsupported(std::string(source_.name), "the graph has sparse initializers");
      default: return {};
    }
  });
}

Result<void> Parser::node(const WireField& at, NodeProto& out) {
  QUERN_TRY(const Bytes message, wire_payload(at, source_));
  const auto read = [&](const WireField& f) -> Result<void> {
    switch (f.number) {
      case 1: return text_into(f, out.inputs);
      case 2: return text_into(f, out.outputs);
      case 3: return text(f, out.name);
      case 4: return text(f, out.op_type);
      case 5: {
        QUERN_TRY(AttributeProto * slot, grow(f, out.attributes));
        return attribute(f, *slot);
      }
      case 7: return text(f, out.domain);
      case 8: {
        QUERN_TRY(const std::string_view overload, wire_text(f, source_));
        if (overload.empty()) return {};
        return unsupported(std::string(source_.name),
                           fmt::format("a node calls overload {} of a function", quote_name(overload)));
      }
      default: return {};
    }
  };
  QUERN_TRY_VOID(wire_fields(message, source_, read));
  out.domain = normalised_domain(out.domain);
  if (out.op_type.empty()) return damaged(at, fmt::format("node {} has no operator type", quote_name(out.name)));
  std::vector<std::string_view> names;
  names.reserve(out.attributes.size());
  for (const AttributeProto& a : out.attributes) names.push_back(a.name);
  std::sort(names.begin(), names.end());
  if (const auto twin = std::adjacent_find(names.begin(), names.end()); twin != names.end()) {
    return damaged(at, fmt::format("node {} has attribute {} twice", quote_name(out.name), quote_name(*twin)));
  }
  return {};
}

Result<void> Parser::attribute_value(const WireField& f, AttributeProto& out) {
  switch (f.number) {
    case 2: {
      QUERN_TRY(out.f, wire_float(f, source_));
      return {};
    }
    case 3: {
      QUERN_TRY(out.i, wire_int64(f, source_));
      return {};
    }
    case 4: return text(f, out.s);
    case 5: {
      if (out.tensor != nullptr) return damaged(f, "the tensor of an attribute is there twice");
      QUERN_TRY_VOID(charge(f, sizeof(TensorProto)));
      auto value = std::make_shared<TensorProto>();
      QUERN_TRY_VOID(tensor(f, *value));
      out.tensor = std::move(value);
      return {};
    }
    case 7:
      return wire_numbers(f, WireType::kFixed32, source_, [&](uint64_t bits) -> Result<void> {
        QUERN_TRY(float* slot, grow(f, out.floats));
        *slot = std::bit_cast<float>(static_cast<uint32_t>(bits));
        return {};
      });
    case 8:
      return wire_numbers(f, WireType::kVarint, source_, [&](uint64_t bits) -> Result<void> {
        QUERN_TRY(int64_t * slot, grow(f, out.ints));
        *slot = static_cast<int64_t>(bits);
        return {};
      });
    case 9: return text_into(f, out.strings);
    default: return {};
  }
}

Result<void> Parser::attribute(const WireField& at, AttributeProto& out) {
  int32_t type = 0;
  std::string_view reference;
  uint32_t seen = 0;  // bit n: a value lies in field n
  QUERN_TRY(const Bytes message, wire_payload(at, source_));
  const auto read = [&](const WireField& f) -> Result<void> {
    if (f.number == 1) return text(f, out.name);
    if (f.number == 21) return text(f, reference);
    if (f.number == 20) {
      QUERN_TRY(type, wire_int32(f, source_));
      return {};
    }
    for (const AttributeRow& row : kAttributeTypes) {
      if (row.field == f.number) seen |= 1u << f.number;
    }
    return attribute_value(f, out);
  };
  QUERN_TRY_VOID(wire_fields(message, source_, read));
  if (out.name.empty()) return damaged(at, "an attribute has no name");
  if (!reference.empty()) {
    return damaged(at, fmt::format("attribute {} refers to attribute {} of a function, but lies outside of one",
                                   quote_name(out.name), quote_name(reference)));
  }
  if (type < 1 || type > static_cast<int32_t>(kAttributeTypes.size())) {
    return damaged(at, fmt::format("attribute {} has type {}, allowed are 1 to {}", quote_name(out.name), type,
                                   kAttributeTypes.size()));
  }
  out.type = static_cast<AttributeType>(type);
  const AttributeRow& row = kAttributeTypes[static_cast<size_t>(type - 1)];
  if ((seen & ~(1u << row.field)) != 0) {
    return damaged(at, fmt::format("attribute {} says it is {}, but holds a value of another type",
                                   quote_name(out.name), row.name));
  }
  if (out.type == AttributeType::kTensor && out.tensor == nullptr) {
    return damaged(at, fmt::format("attribute {} says it is TENSOR, but holds none", quote_name(out.name)));
  }
  return {};
}

Result<void> Parser::tensor(const WireField& at, TensorProto& out) {
  bool external = false;
  uint32_t seen = 0;  // entries of external_data
  QUERN_TRY(out.message, wire_payload(at, source_));
  const auto read = [&](const WireField& f) -> Result<void> {
    switch (f.number) {
      case 1:
        return wire_numbers(f, WireType::kVarint, source_, [&](uint64_t bits) -> Result<void> {
          QUERN_TRY(int64_t * slot, grow(f, out.dims));
          *slot = static_cast<int64_t>(bits);
          return {};
        });
      case 2: {
        QUERN_TRY(out.onnx_type, wire_int32(f, source_));
        return {};
      }
      case 3: return unsupported(std::string(source_.name), "a tensor is stored in segments");
      case 4:
      case 5:
      case 6:
      case 7:
      case 10:
      case 11: {
        // An empty packed run is no value.
        if (f.number != 6 && f.type == WireType::kPayload && f.payload.empty()) return {};
        if (out.typed_field != 0 && out.typed_field != f.number) {
          return damaged(
              f, fmt::format("a tensor has values in fields {} and {}, allowed is one", out.typed_field, f.number));
        }
        out.typed_field = f.number;
        return {};
      }
      case 8: return text(f, out.name);
      case 9: {
        QUERN_TRY(out.raw, wire_payload(f, source_));
        out.storage = TensorProto::Storage::kRaw;
        return {};
      }
      case 13: return external_entry(f, out, seen);
      case 14: {
        QUERN_TRY(const int32_t place, wire_int32(f, source_));
        if (place != 0 && place != 1) {
          return damaged(f, fmt::format("the data location of a tensor is {}, allowed are 0 and 1", place));
        }
        external = place == 1;
        return {};
      }
      default: return {};
    }
  };
  QUERN_TRY_VOID(wire_fields(out.message, source_, read));
  out.dtype = dtype_from_onnx(out.onnx_type);
  QUERN_TRY_VOID(tensor_shape(at, out));
  return tensor_storage(at, external, (seen & 1) != 0, out);
}

Result<void> Parser::tensor_shape(const WireField& at, TensorProto& out) {
  // Zero extents do not excuse the others: whoever multiplies a part of the shape must not overflow either.
  std::optional<int64_t> product = 1;
  bool empty = false;
  for (const int64_t d : out.dims) {
    if (d < 0)
      return damaged(at, fmt::format("tensor {} has dimension {}, allowed is 0 and up", quote_name(out.name), d));
    empty = empty || d == 0;
    if (d > 0 && product) product = checked_mul(*product, d);
  }
  if (!product || (out.dtype && !storage_bytes(*out.dtype, *product))) {
    return damaged(at,
                   fmt::format("tensor {} has the shape [{}], whose size is not a 64-bit number", quote_name(out.name),
                               fmt::join(out.dims.begin(),
                                         out.dims.begin() + std::min<std::ptrdiff_t>(8, std::ssize(out.dims)), ",")));
  }
  out.elements = empty ? 0 : *product;
  return {};
}

Result<void> Parser::tensor_storage(const WireField& at, bool external, bool has_location, TensorProto& out) {
  const bool has_raw = out.storage == TensorProto::Storage::kRaw && !out.raw.empty();
  if (external) {
    if (has_raw || out.typed_field != 0) {
      return damaged(at, fmt::format("tensor {} has data both inside and outside of the file", quote_name(out.name)));
    }
    if (!has_location) return damaged(at, fmt::format("external tensor {} has no location", quote_name(out.name)));
    out.storage = TensorProto::Storage::kExternal;
    return {};
  }
  out.external = ExternalData{};
  if (out.typed_field != 0) {
    if (has_raw)
      return damaged(at, fmt::format("tensor {} has raw and typed data, allowed is one", quote_name(out.name)));
    if (!typed_field_fits(out.typed_field, out.dtype)) {
      return damaged(at, fmt::format("tensor {} of type {} has its values in field {}, which is not for this type",
                                     quote_name(out.name), onnx_type_name(out.onnx_type), out.typed_field));
    }
    out.storage = TensorProto::Storage::kTyped;
    return {};
  }
  if (!out.dtype) return {};
  const std::optional<size_t> need = storage_bytes(*out.dtype, out.elements);
  if (!need || out.raw.size() != *need) {
    return damaged(at, fmt::format("tensor {} holds {} bytes, but its type and shape need {}", quote_name(out.name),
                                   out.raw.size(), need.value_or(0)));
  }
  return {};
}

// `seen` collects which of location (bit 0), offset (1) and length (2) were there.
Result<void> Parser::external_entry(const WireField& at, TensorProto& out, uint32_t& seen) {
  std::string_view key;
  std::string_view value;
  QUERN_TRY(const Bytes message, wire_payload(at, source_));
  const auto read = [&](const WireField& f) -> Result<void> {
    if (f.number == 1) return text(f, key);
    if (f.number == 2) return text(f, value);
    return {};
  };
  QUERN_TRY_VOID(wire_fields(message, source_, read));
  const uint32_t bit = key == "location" ? 1 : key == "offset" ? 2 : key == "length" ? 4 : 0;
  if (bit == 0) return {};
  if ((seen & bit) != 0) return damaged(at, fmt::format("an external tensor has its {} twice", key));
  seen |= bit;
  if (bit == 1) {
    out.external.location = value;
    return {};
  }
  int64_t number = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (status != std::errc() || end != value.data() + value.size() || number < 0) {
    return damaged(at, fmt::format("the {} of an external tensor is {}, allowed is a decimal number of 0 and up", key,
                                   quote_name(value)));
  }
  if (bit == 2)
    out.external.offset = number;
  else
    out.external.length = number;
  return {};
}

Result<void> Parser::value_info(const WireField& at, ValueInfoProto& out) {
  bool has_type = false;
  QUERN_TRY(const Bytes message, wire_payload(at, source_));
  return wire_fields(message, source_, [&](const WireField& f) -> Result<void> {
    if (f.number == 1) return text(f, out.name);
    if (f.number != 2) return {};
    QUERN_TRY_VOID(once(f, has_type, "type of a value"));
    QUERN_TRY(const Bytes type, wire_payload(f, source_));
    return wire_fields(type, source_, [&](const WireField& kind) -> Result<void> {
      if (kind.number != 1) return {};  // sequences, maps and the like: not a tensor
      QUERN_TRY_VOID(once(kind, out.is_tensor, "tensor type of a value"));
      return tensor_type(kind, out);
    });
  });
}

Result<void> Parser::tensor_type(const WireField& at, ValueInfoProto& out) {
  QUERN_TRY(const Bytes message, wire_payload(at, source_));
  const auto read = [&](const WireField& f) -> Result<void> {
    if (f.number == 1) {
      QUERN_TRY(out.onnx_type, wire_int32(f, source_));
      return {};
    }
    if (f.number != 2) return {};
    QUERN_TRY_VOID(once(f, out.has_shape, "shape of a value"));
    QUERN_TRY(const Bytes shape, wire_payload(f, source_));
    return wire_fields(shape, source_, [&](const WireField& entry) -> Result<void> {
      if (entry.number != 1) return {};
      QUERN_TRY(DimProto * slot, grow(entry, out.dims));
      return dim(entry, *slot);
    });
  };
  QUERN_TRY_VOID(wire_fields(message, source_, read));
  out.dtype = dtype_from_onnx(out.onnx_type);
  return {};
}

Result<void> Parser::dim(const WireField& at, DimProto& out) {
  QUERN_TRY(const Bytes message, wire_payload(at, source_));
  return wire_fields(message, source_, [&](const WireField& f) -> Result<void> {
    if (f.number == 1) {
      QUERN_TRY(const int64_t value, wire_int64(f, source_));
      // Some exporters write -1 for "not known".
      out = value < 0 ? DimProto{} : DimProto{DimProto::Kind::kValue, value, {}};
    } else if (f.number == 2) {
      QUERN_TRY(const std::string_view symbol, wire_text(f, source_));
      out = symbol.empty() ? DimProto{} : DimProto{DimProto::Kind::kSymbol, 0, symbol};
    }
    return {};
  });
}

}  // namespace

std::string_view attribute_type_name(AttributeType type) {
  return kAttributeTypes[static_cast<size_t>(static_cast<int32_t>(type) - 1)].name;
}

const AttributeProto* NodeProto::attribute(std::string_view attribute_name) const {
  for (const AttributeProto& a : attributes) {
    if (a.name == attribute_name) return &a;
  }
  return nullptr;
}

std::optional<int64_t> ModelProto::opset(std::string_view domain) const {
  for (const OpsetId& id : opsets) {
    if (id.domain == normalised_domain(domain)) return id.version;
  }
  return std::nullopt;
}

Result<ModelProto> parse_model(std::span<const std::byte> bytes, std::string_view where) {
  const WireSource source{where, bytes.data()};
  ModelProto model;
  QUERN_TRY_VOID(Parser(source).model(bytes, model));
  return model;
}

}  // namespace quern::formats
