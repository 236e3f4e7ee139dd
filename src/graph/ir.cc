// SPDX-License-Identifier: Apache-2.0
// From the parsed file to the checked graph: names become indices, definitions are checked, nodes are sorted.
#include "graph/ir.h"

#include <fmt/format.h>

#include <queue>
#include <unordered_map>

#include "base/quote_name.h"
#include "ops/registry.h"

namespace quern::graph {
namespace {

class Builder {
 public:
  explicit Builder(const formats::OnnxFile& file) : graph_(file.graph()) {}

  Result<Ir> build() {
    QUERN_TRY_VOID(add_inputs());
    QUERN_TRY_VOID(add_initializers());
    QUERN_TRY_VOID(add_nodes());
    QUERN_TRY_VOID(sort());
    QUERN_TRY_VOID(add_outputs());
    return std::move(ir_);
  }

 private:
  // The index of a name, made on its first mention; it is defined later or an error.
  int mention(std::string_view name) {
    const auto [it, is_new] = index_.try_emplace(name, static_cast<int>(ir_.values.size()));
    if (is_new) {
      ir_.values.push_back({});
      ir_.values.back().name = name;
      defined_.push_back(false);
    }
    return it->second;
  }

  Result<Port> port(const formats::ValueInfoProto& info, const char* what) {
    if (!info.is_tensor || info.onnx_type == 0) {
      return bad_model(fmt::format("graph {} {}", what, quote_name(info.name)), "has no tensor type");
    }
    if (!info.dtype) {
      return unsupported(fmt::format("graph {} {}", what, quote_name(info.name)),
                         fmt::format("element type {} is not supported", formats::onnx_type_name(info.onnx_type)));
    }
    Port p;
    p.name = info.name;
    p.dtype = *info.dtype;
    p.has_shape = info.has_shape;
    for (const auto& d : info.dims) {
      DeclaredDim dim;
      if (d.kind == formats::DimProto::Kind::kValue) dim.extent = d.value;
      if (d.kind == formats::DimProto::Kind::kSymbol) dim.symbol = d.symbol;
      p.dims.push_back(dim);
    }
    return p;
  }

  Result<void> add_inputs() {
    for (const auto& info : graph_.inputs) {
      QUERN_TRY(Port p, port(info, "input"));
      p.value = mention(info.name);
      if (info.name.empty()) return bad_model("graph input", "has an empty name");
      if (defined_[p.value]) return bad_model(fmt::format("graph input {}", quote_name(info.name)), "is listed twice");
      defined_[p.value] = true;
      Value& v = ir_.values[p.value];
      v.kind = ValueKind::input;
      v.dtype = p.dtype;
      ir_.inputs.push_back(std::move(p));
    }
    return {};
  }

  Result<void> add_initializers() {
    for (const auto& t : graph_.initializers) {
      if (t.name.empty()) return bad_model("initializer", "has an empty name");
      const int i = mention(t.name);
      Value& v = ir_.values[i];
      if (v.initializer != nullptr || (defined_[i] && v.kind != ValueKind::input)) {
        return bad_model(fmt::format("initializer {}", quote_name(t.name)), "is defined twice");
      }
      v.initializer = &t;
      if (defined_[i]) {
        // A graph input with a default: the caller may override it, so it is not a constant.
        if (!t.dtype || *t.dtype != v.dtype) {
          return bad_model(fmt::format("initializer {}", quote_name(t.name)),
                           "differs in type from the graph input it is for");
        }
        continue;
      }
      defined_[i] = true;
      v.kind = ValueKind::constant;
    }
    return {};
  }

  Result<void> add_nodes() {
    ir_.nodes.reserve(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); n++) {
      const auto& proto = graph_.nodes[n];
      Node node;
      node.proto = &proto;
      node.name = proto.name.empty() ? fmt::format("#{}", n) : std::string(proto.name);
      for (std::string_view name : proto.inputs) node.inputs.push_back(name.empty() ? -1 : mention(name));
      for (std::string_view name : proto.outputs) {
        if (name.empty()) {
          node.outputs.push_back(-1);
          continue;
        }
        const int i = mention(name);
        if (defined_[i]) {
          return bad_model(ops::node_where(proto.op_type, node.name),
                           fmt::format("output {} is defined twice", quote_name(name)));
        }
        defined_[i] = true;
        node.outputs.push_back(i);
      }
      ir_.nodes.push_back(std::move(node));
    }
    for (const Node& node : ir_.nodes) {
      for (int i : node.inputs) {
        if (i < 0 || defined_[i]) continue;
        return bad_model(
            ops::node_where(node.proto->op_type, node.name),
            fmt::format("input {} is not defined by anything in the graph", quote_name(ir_.values[i].name)));
      }
    }
    return {};
  }

  // Kahn's algorithm with the file position as priority: a file already in order keeps it.
  Result<void> sort() {
    std::vector<int> producer(ir_.values.size(), -1);
    std::vector<int> waiting(ir_.nodes.size(), 0);
    std::vector<std::vector<int>> readers(ir_.values.size());
    for (size_t n = 0; n < ir_.nodes.size(); n++) {
      for (int v : ir_.nodes[n].outputs) {
        if (v >= 0) producer[v] = static_cast<int>(n);
      }
    }
    for (size_t n = 0; n < ir_.nodes.size(); n++) {
      for (int v : ir_.nodes[n].inputs) {
        if (v < 0 || producer[v] < 0) continue;
        waiting[n]++;
        readers[v].push_back(static_cast<int>(n));
      }
    }
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (size_t n = 0; n < ir_.nodes.size(); n++) {
      if (waiting[n] == 0) ready.push(static_cast<int>(n));
    }
    std::vector<int> order;
    while (!ready.empty()) {
      const int n = ready.top();
      ready.pop();
      order.push_back(n);
      for (int v : ir_.nodes[n].outputs) {
        if (v < 0) continue;
        for (int reader : readers[v]) {
          if (--waiting[reader] == 0) ready.push(reader);
        }
      }
    }
    if (order.size() != ir_.nodes.size()) {
      for (size_t n = 0; n < ir_.nodes.size(); n++) {
        if (waiting[n] == 0) continue;
        return bad_model(ops::node_where(ir_.nodes[n].proto->op_type, ir_.nodes[n].name),
                         "is part of, or behind, a cycle of nodes");
      }
    }
    std::vector<Node> sorted;
    sorted.reserve(order.size());
    for (int n : order) sorted.push_back(std::move(ir_.nodes[n]));
    ir_.nodes = std::move(sorted);
    for (size_t n = 0; n < ir_.nodes.size(); n++) {
      for (int v : ir_.nodes[n].outputs) {
        if (v >= 0) ir_.values[v].producer = static_cast<int>(n);
      }
      const auto& inputs = ir_.nodes[n].inputs;
      for (size_t i = 0; i < inputs.size(); i++) {
        if (inputs[i] >= 0) ir_.values[inputs[i]].uses.push_back({static_cast<int>(n), static_cast<int>(i)});
      }
    }
    return {};
  }

  Result<void> add_outputs() {
    if (graph_.outputs.empty()) return bad_model("graph", "has no outputs");
    for (const auto& info : graph_.outputs) {
      QUERN_TRY(Port p, port(info, "output"));
      const auto it = index_.find(info.name);
      if (it == index_.end()) {
        return bad_model(fmt::format("graph output {}", quote_name(info.name)),
                         "is not defined by anything in the graph");
      }
      p.value = it->second;
      if (ir_.values[p.value].is_output) {
        return bad_model(fmt::format("graph output {}", quote_name(info.name)), "is listed twice");
      }
      ir_.values[p.value].is_output = true;
      ir_.outputs.push_back(std::move(p));
    }
    return {};
  }

  const formats::GraphProto& graph_;
  Ir ir_;
  std::unordered_map<std::string_view, int> index_;
  std::vector<bool> defined_;
};

}  // namespace

Result<Ir> build_ir(const formats::OnnxFile& file) { return Builder(file).build(); }

}  // namespace quern::graph
