// SPDX-License-Identifier: Apache-2.0
// Owns a writer of ONNX files for tests: models, nodes, attributes, initializers (inline or external), and the bare
// wire format for files that are wrong on purpose. It checks nothing: what the test asks for is what lands in the file.
//
// Use:
//   using namespace quern::support;
//   OnnxWriter model;                                             // IR 10, no opsets yet
//   model.opset("", 21).opset("com.microsoft", 1);
//   model.input("x", DType::f32, {"batch", 4}).output("y", DType::f32, {"batch", 2});
//   model.initializer("w", {4, 2}, std::vector<float>(8, 1.0f)); // raw_data, type from the vector
//   model.node("MatMul", {"x", "w"}, {"y"});
//   model.node("MatMulNBits", {"x", "b", "s"}, {"z"}, {attribute("K", 32), attribute("block_size", 32)},
//              {.name = "/lm_head/MatMul_Q4", .domain = "com.microsoft"});
//   model.node("Constant", {}, {"axes"}, {attribute("value", tensor("", {1}, std::vector<int64_t>{1}))});
//   std::vector<std::byte> bytes = model.bytes();
//
// External data: the file grows by one tensor per call; align 0 puts tensors back to back.
//   ExternalFile data("model.onnx.data");
//   model.initializer(data.tensor("e", {2, 3}, std::vector<float>(6)));
//   model.save(folder / "model.onnx");
//   data.save(folder);
// A wrong entry: model.initializer(external_tensor("e", DType::f32, {2, 3}, "../x", "0", "24"));
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace quern::support {

// One protobuf message under construction; fields are written in the order of the calls.
class WireWriter {
 public:
  WireWriter& tag(uint32_t field, uint32_t wire_type) { return raw_varint(uint64_t{field} << 3 | wire_type); }
  WireWriter& varint(uint32_t field, int64_t value) { return tag(field, 0).raw_varint(static_cast<uint64_t>(value)); }
  WireWriter& fixed32(uint32_t field, float value) { return tag(field, 5).raw_value(value); }
  WireWriter& fixed64(uint32_t field, double value) { return tag(field, 1).raw_value(value); }
  WireWriter& text(uint32_t field, std::string_view value) {
    tag(field, 2).raw_varint(value.size());
    const auto* begin = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), begin, begin + value.size());
    return *this;
  }
  WireWriter& message(uint32_t field, const WireWriter& value) { return payload(field, value.bytes_); }
  WireWriter& payload(uint32_t field, std::span<const std::byte> value) {
    tag(field, 2).raw_varint(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  WireWriter& raw_varint(uint64_t value) {
    while (value > 127) {
      bytes_.push_back(static_cast<std::byte>(value | 128));
      value >>= 7;
    }
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  template <class T>
  WireWriter& raw_value(T value) {
    std::byte parts[sizeof(T)];
    std::memcpy(parts, &value, sizeof(T));
    bytes_.insert(bytes_.end(), parts, parts + sizeof(T));
    return *this;
  }
  WireWriter& append(const WireWriter& other) {
    bytes_.insert(bytes_.end(), other.bytes_.begin(), other.bytes_.end());
    return *this;
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// The number the ONNX format gives to an element type.
constexpr int onnx_number(DType type) {
  switch (type) {
    case DType::f32: return 1;
    case DType::u8: return 2;
    case DType::i8: return 3;
    case DType::u16: return 4;
    case DType::i16: return 5;
    case DType::i32: return 6;
    case DType::i64: return 7;
    case DType::boolean: return 9;
    case DType::f16: return 10;
    case DType::f64: return 11;
    case DType::u32: return 12;
    case DType::u64: return 13;
    case DType::bf16: return 16;
    case DType::f8_e4m3: return 17;
    case DType::u4: return 21;
    case DType::i4: return 22;
  }
  return 0;
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, int16_t>)
    return DType::i16;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DType::i8;
  else if constexpr (std::is_same_v<T, uint64_t>)
    return DType::u64;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return DType::u32;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return DType::u16;
  else {
    static_assert(std::is_same_v<T, uint8_t>);
    return DType::u8;
  }
}

using Shape = std::vector<int64_t>;

// A dimension of a graph input or output: a number, a symbol, or (an empty symbol) nothing at all.
using DimSpec = std::variant<int64_t, std::string>;
struct ShapeSpec {
  std::vector<DimSpec> dims;
  struct Entry {
    DimSpec dim;
    template <std::integral T>
    Entry(T value) : dim(static_cast<int64_t>(value)) {}
    Entry(const char* symbol) : dim(std::string(symbol)) {}
    Entry(std::string symbol) : dim(std::move(symbol)) {}
  };
  ShapeSpec(std::initializer_list<Entry> entries) {
    for (const Entry& e : entries) dims.push_back(e.dim);
  }
};

inline WireWriter tensor_head(std::string_view name, int type, const Shape& shape) {
  WireWriter w;
  for (const int64_t d : shape) w.varint(1, d);
  w.varint(2, type);
  if (!name.empty()) w.text(8, name);
  return w;
}

// A TensorProto with its bytes in raw_data. For types without a C++ type of their own, give the bytes and the type.
inline WireWriter raw_tensor(std::string_view name, DType type, const Shape& shape, std::span<const std::byte> raw) {
  return tensor_head(name, onnx_number(type), shape).payload(9, raw);
}

template <class T>
WireWriter tensor(std::string_view name, const Shape& shape, const std::vector<T>& values) {
  return raw_tensor(name, dtype_of<T>(), shape, std::as_bytes(std::span(values)));
}

// A TensorProto whose bytes lie elsewhere; an absent offset or length is left out of the file.
inline WireWriter external_tensor(std::string_view name, DType type, const Shape& shape, std::string_view location,
                                  std::optional<std::string> offset, std::optional<std::string> length) {
  WireWriter w = tensor_head(name, onnx_number(type), shape);
  w.message(13, WireWriter().text(1, "location").text(2, location));
  if (offset) w.message(13, WireWriter().text(1, "offset").text(2, *offset));
  if (length) w.message(13, WireWriter().text(1, "length").text(2, *length));
  return w.varint(14, 1);
}

// The bytes of one external data file.
class ExternalFile {
 public:
  explicit ExternalFile(std::string location, size_t align = 0) : location_(std::move(location)), align_(align) {}

  template <class T>
  WireWriter tensor(std::string_view name, const Shape& shape, const std::vector<T>& values) {
    return raw(name, dtype_of<T>(), shape, std::as_bytes(std::span(values)));
  }
  WireWriter raw(std::string_view name, DType type, const Shape& shape, std::span<const std::byte> bytes) {
    if (align_ > 0) bytes_.resize((bytes_.size() + align_ - 1) / align_ * align_);
    const size_t offset = bytes_.size();
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return external_tensor(name, type, shape, location_, std::to_string(offset), std::to_string(bytes.size()));
  }
  std::vector<std::byte>& bytes() { return bytes_; }
  void save(const std::filesystem::path& folder) const {
    std::ofstream(folder / location_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
  }

 private:
  std::string location_;
  size_t align_;
  std::vector<std::byte> bytes_;
};

// AttributeProto of each kind. A C++ integer is an INT and a floating-point number a FLOAT, never converted.
template <class T>
requires std::is_arithmetic_v<T> WireWriter attribute(std::string_view name, T value) {
  WireWriter w = WireWriter().text(1, name);
  if constexpr (std::is_floating_point_v<T>)
    return w.fixed32(2, static_cast<float>(value)).varint(20, 1);
  else
    return w.varint(3, static_cast<int64_t>(value)).varint(20, 2);
}
inline WireWriter attribute(std::string_view name, std::string_view value) {
  return WireWriter().text(1, name).text(4, value).varint(20, 3);
}
inline WireWriter attribute(std::string_view name, const char* value) {
  return attribute(name, std::string_view(value));
}
inline WireWriter attribute(std::string_view name, const WireWriter& tensor_proto) {
  return WireWriter().text(1, name).message(5, tensor_proto).varint(20, 4);
}
inline WireWriter attribute(std::string_view name, const std::vector<float>& values) {
  WireWriter w = WireWriter().text(1, name);
  for (const float v : values) w.fixed32(7, v);
  return w.varint(20, 6);
}
inline WireWriter attribute(std::string_view name, const std::vector<int64_t>& values) {
  WireWriter w = WireWriter().text(1, name);
  for (const int64_t v : values) w.varint(8, v);
  return w.varint(20, 7);
}
inline WireWriter attribute(std::string_view name, const std::vector<std::string>& values) {
  WireWriter w = WireWriter().text(1, name);
  for (const std::string& v : values) w.text(9, v);
  return w.varint(20, 8);
}

// A ValueInfoProto of a tensor; nullopt for the shape leaves the rank unknown.
inline WireWriter value_info(std::string_view name, int type, const std::optional<ShapeSpec>& shape) {
  WireWriter tensor_type = WireWriter().varint(1, type);
  if (shape) {
    WireWriter dims;
    for (const DimSpec& d : shape->dims) {
      WireWriter dim;
      if (const auto* value = std::get_if<int64_t>(&d))
        dim.varint(1, *value);
      else if (const auto& symbol = std::get<std::string>(d); !symbol.empty())
        dim.text(2, symbol);
      dims.message(1, dim);
    }
    tensor_type.message(2, dims);
  }
  return WireWriter().text(1, name).message(2, WireWriter().message(1, tensor_type));
}

struct NodeNames {
  std::string name = {};
  std::string domain = {};
};

class OnnxWriter {
 public:
  OnnxWriter& ir_version(int64_t version) {
    ir_version_ = version;
    return *this;
  }
  OnnxWriter& opset(std::string_view domain, int64_t version) {
    WireWriter w;
    if (!domain.empty()) w.text(1, domain);
    opsets_.message(8, w.varint(2, version));
    return *this;
  }
  OnnxWriter& node(std::string_view op, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
                   const std::vector<WireWriter>& attributes = {}, const NodeNames& names = {}) {
    WireWriter w;
    for (const std::string& v : inputs) w.text(1, v);
    for (const std::string& v : outputs) w.text(2, v);
    if (!names.name.empty()) w.text(3, names.name);
    w.text(4, op);
    for (const WireWriter& a : attributes) w.message(5, a);
    if (!names.domain.empty()) w.text(7, names.domain);
    nodes_.message(1, w);
    return *this;
  }
  template <class T>
  OnnxWriter& initializer(std::string_view name, const Shape& shape, const std::vector<T>& values) {
    return initializer(tensor(name, shape, values));
  }
  OnnxWriter& initializer(const WireWriter& tensor_proto) {
    initializers_.message(5, tensor_proto);
    return *this;
  }
  OnnxWriter& input(std::string_view name, DType type, const ShapeSpec& shape) {
    return input(value_info(name, onnx_number(type), shape));
  }
  OnnxWriter& input(const WireWriter& value_info_proto) {
    inputs_.message(11, value_info_proto);
    return *this;
  }
  OnnxWriter& output(std::string_view name, DType type, const ShapeSpec& shape) {
    return output(value_info(name, onnx_number(type), shape));
  }
  OnnxWriter& output(const WireWriter& value_info_proto) {
    outputs_.message(12, value_info_proto);
    return *this;
  }
  OnnxWriter& annotate(std::string_view name, DType type, const ShapeSpec& shape) {
    value_infos_.message(13, value_info(name, onnx_number(type), shape));
    return *this;
  }
  // Fields written verbatim at the end of the graph or of the model.
  OnnxWriter& graph_extra(const WireWriter& fields) {
    graph_extra_.append(fields);
    return *this;
  }
  OnnxWriter& model_extra(const WireWriter& fields) {
    model_extra_.append(fields);
    return *this;
  }

  std::vector<std::byte> bytes() const {
    WireWriter graph;
    graph.append(nodes_).text(2, "main").append(initializers_).append(inputs_).append(outputs_).append(value_infos_);
    graph.append(graph_extra_);
    WireWriter model;
    model.varint(1, ir_version_).text(2, "quern tests").message(7, graph).append(opsets_).append(model_extra_);
    return model.bytes();
  }
  void save(const std::filesystem::path& path) const {
    const std::vector<std::byte> all = bytes();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(all.size()));
  }

 private:
  int64_t ir_version_ = 10;
  WireWriter opsets_, nodes_, initializers_, inputs_, outputs_, value_infos_, graph_extra_, model_extra_;
};

}  // namespace quern::support
