// SPDX-License-Identifier: Apache-2.0
// Prints what the ONNX reader makes of files, one JSON object per path given, for tests/oracle. Not a product command.
// A file that is refused gives {"error": {"code", "what", "where"}}; so does a tensor whose bytes are refused. Payloads
// come as their length, their sum and their position-weighted sum, both modulo 2^64.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/onnx/onnx_file.h"

namespace {

using nlohmann::json;
using namespace quern::formats;

json error_object(const quern::Error& error) {
  return {{"code", quern::errc_name(error.code)}, {"what", error.what}, {"where", error.where}};
}

json tensor_object(const OnnxFile& file, const TensorProto& tensor) {
  json out = {{"name", tensor.name}, {"type", tensor.onnx_type}, {"dims", tensor.dims}};
  const auto bytes = file.bytes_of(tensor);
  if (!bytes.ok()) {
    out["error"] = error_object(bytes.error());
    return out;
  }
  uint64_t sum = 0;
  uint64_t weighted = 0;
  for (size_t i = 0; i < bytes->size(); ++i) {
    const auto b = static_cast<uint64_t>((*bytes)[i]);
    sum += b;
    weighted += b * (i + 1);
  }
  out["payload"] = {bytes->size(), sum, weighted};
  return out;
}

json value_object(const ValueInfoProto& info) {
  json out = {{"name", info.name}, {"is_tensor", info.is_tensor}, {"type", info.onnx_type}, {"dims", nullptr}};
  if (!info.has_shape) return out;
  out["dims"] = json::array();
  for (const DimProto& d : info.dims) {
    if (d.kind == DimProto::Kind::kValue)
      out["dims"].push_back(d.value);
    else
      out["dims"].push_back(d.kind == DimProto::Kind::kSymbol ? json(d.symbol) : json());
  }
  return out;
}

json attribute_object(const OnnxFile& file, const AttributeProto& a) {
  json out = {{"name", a.name}, {"type", static_cast<int32_t>(a.type)}};
  switch (a.type) {
    case AttributeType::kFloat: out["value"] = a.f; break;
    case AttributeType::kInt: out["value"] = a.i; break;
    case AttributeType::kString: out["value"] = a.s; break;
    case AttributeType::kTensor: out["value"] = tensor_object(file, *a.tensor); break;
    case AttributeType::kFloats: out["value"] = a.floats; break;
    case AttributeType::kInts: out["value"] = a.ints; break;
    case AttributeType::kStrings: out["value"] = a.strings; break;
    default: break;
  }
  return out;
}

json file_object(const OnnxFile& file) {
  const GraphProto& graph = file.graph();
  json out = {{"ir_version", file.model().ir_version}, {"producer", file.model().producer_name}, {"graph", graph.name}};
  out["opsets"] = json::object();
  for (const OpsetId& id : file.model().opsets) out["opsets"][std::string(id.domain)] = id.version;
  for (const char* key : {"nodes", "initializers", "inputs", "outputs", "value_info"}) out[key] = json::array();
  for (const NodeProto& n : graph.nodes) {
    json node = {
        {"name", n.name}, {"op", n.op_type}, {"domain", n.domain}, {"inputs", n.inputs}, {"outputs", n.outputs}};
    node["attributes"] = json::array();
    for (const AttributeProto& a : n.attributes) node["attributes"].push_back(attribute_object(file, a));
    out["nodes"].push_back(std::move(node));
  }
  for (const TensorProto& t : graph.initializers) out["initializers"].push_back(tensor_object(file, t));
  for (const ValueInfoProto& v : graph.inputs) out["inputs"].push_back(value_object(v));
  for (const ValueInfoProto& v : graph.outputs) out["outputs"].push_back(value_object(v));
  for (const ValueInfoProto& v : graph.value_info) out["value_info"].push_back(value_object(v));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const quern::Result<OnnxFile> file = OnnxFile::open(argv[i]);
    const json line = file.ok() ? file_object(*file) : json{{"error", error_object(file.error())}};
    std::puts(line.dump(-1, ' ', true, json::error_handler_t::replace).c_str());
  }
  return 0;
}
