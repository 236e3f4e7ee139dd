// SPDX-License-Identifier: Apache-2.0
// quern.InferenceSession: a graph under the ONNX Runtime calling convention.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>

#include "base/process.h"
#include "base/quote_name.h"
#include "cpu/topology.h"
#include "graph/runner.h"
#include "python/argument_types.h"
#include "python/arrays.h"
#include "python/interpreter_lock.h"

namespace quern::python {
namespace {

struct NodeArg {
  std::string name;
  std::string type;
  nb::list shape;
};

nb::object text(std::string_view bytes) {
  return nb::bytes(bytes.data(), bytes.size()).attr("decode")("utf-8", "backslashreplace");
}

class InferenceSession {
 public:
  InferenceSession(PathOrBytesArg model, int64_t threads, bool profile, PathArg external_data_dir,
                   const std::vector<std::string>& no_fuse) {
    const int wanted = thread_count(threads);
    const int count = wanted > 0 ? wanted : cpu::read_topology().threads;
    auto file = open(model, external_data_dir);
    const auto features = take(cpu::usable_features());
    const LockReleased released;
    pool_ = std::make_unique<cpu::Pool>(count);
    model_ = take(graph::Model::load(std::move(file), *pool_, features, {no_fuse}));
    runner_ = std::make_unique<graph::Runner>(model_, *pool_, profile);
  }

  std::vector<NodeArg> ports(std::span<const graph::Port> ports) const {
    std::vector<NodeArg> args;
    for (const auto& port : ports) {
      NodeArg arg{std::string(port.name), type_string(port.dtype), {}};
      for (const auto& d : port.dims) {
        if (d.extent >= 0) {
          arg.shape.append(d.extent);
        } else if (d.symbol.empty()) {
          arg.shape.append(nb::none());
        } else {
          arg.shape.append(text(d.symbol));
        }
      }
      args.push_back(std::move(arg));
    }
    return args;
  }
  std::vector<NodeArg> inputs() const { return ports(model_->inputs()); }
  std::vector<NodeArg> outputs() const { return ports(model_->outputs()); }

  nb::list run(NamesArg output_names, FeedsArg feeds_object) {
    if (!nb::isinstance<nb::dict>(feeds_object)) raise_type("feeds", "a dict of arrays by input name", feeds_object);
    const auto feeds = nb::borrow<nb::dict>(feeds_object);
    std::vector<ArrayIn> arrays;  // keeps converted copies alive
    arrays.reserve(feeds.size());
    std::vector<ops::Tensor> inputs(model_->inputs().size());
    for (auto& t : inputs) t.present = false;
    for (auto [key, value] : feeds) {
      const auto name = text_in(key, "input name");
      const int i = model_->input_index(name);
      if (i < 0) raise(bad_request("input " + quote_name(name), "is not an input of this model"));
      arrays.emplace_back(value, "input " + quote_name(name));
      inputs[static_cast<size_t>(i)] = arrays.back().tensor();
    }
    std::vector<graph::Output> outputs(model_->outputs().size());
    std::vector<int> order;
    if (output_names.is_none()) {
      for (size_t j = 0; j < outputs.size(); j++) order.push_back(static_cast<int>(j));
    } else {
      if (nb::isinstance<nb::str>(output_names) || !nb::isinstance<nb::iterable>(output_names)) {
        raise_type("output_names", "a list of names", output_names);
      }
      for (auto& output : outputs) output.wanted = false;
      for (nb::handle item : output_names) {
        const auto name = text_in(item, "output name");
        const int j = model_->output_index(name);
        if (j < 0) raise(bad_request("output " + quote_name(name), "is not an output of this model"));
        if (outputs[static_cast<size_t>(j)].wanted)
          raise(bad_request("output " + quote_name(name), "is asked for twice"));
        outputs[static_cast<size_t>(j)].wanted = true;
        order.push_back(j);
      }
    }
    {
      const LockReleased released;
      const auto lock = hold();
      take(runner_->run(inputs, outputs));
    }
    nb::list results;
    for (int j : order) {
      graph::Output& output = outputs[static_cast<size_t>(j)];
      results.append(array_out(output.result, std::move(output.storage)));
    }
    return results;
  }

  nb::list report() {
    const auto lock = wait_and_hold();
    nb::list rows;
    for (const auto& r : runner_->report()) {
      nb::dict row;
      row["node"] = text(r.node);
      row["op"] = text(r.op);
      row["domain"] = text(r.domain);
      row["owner"] = text(graph::owner_name(r.owner));
      row["variant"] = text(r.variant);
      row["reason"] = text(r.reason);
      row["ns"] = r.ns;
      row["bytes_copied"] = r.bytes_copied;
      row["view"] = r.owner == graph::Owner::view;
      rows.append(row);
    }
    return rows;
  }

  nb::dict counters() {
    const auto lock = wait_and_hold();
    const auto& c = runner_->counters();
    const auto& memory = model_->memory();
    nb::dict d;
    d["bytes_copied"] = c.bytes_copied;
    d["cache_bytes_copied"] = c.cache_bytes_copied;
    d["cache_bytes_appended"] = c.cache_bytes_appended;
    d["weight_bytes_read"] = c.weight_bytes_read;
    d["preparations"] = memory.preparations;
    d["prepared_bytes"] = memory.prepared_bytes;
    d["serialized_bytes"] = memory.serialized_bytes;
    d["arena_bytes"] = runner_->arena_bytes();
    d["scratch_peak_bytes"] = runner_->scratch_peak_bytes();
    return d;
  }

 private:
  // A Runner serves one call at a time. The mutex that a child of fork() inherits may never be unlocked.
  std::unique_lock<std::mutex> hold() {
    take(process_.check());
    return std::unique_lock(mutex_);
  }
  // For the thread that keeps the interpreter lock: others run while it waits.
  std::unique_lock<std::mutex> wait_and_hold() {
    const LockReleased released;
    return hold();
  }

  static formats::OnnxFile open(nb::handle model, nb::handle external_data_dir) {
    if (!nb::isinstance<nb::bytes>(model)) return take(formats::OnnxFile::open(path_in(model, "path_or_bytes")));
    const auto bytes = nb::cast<nb::bytes>(model);
    std::vector<std::byte> copy(bytes.size());
    if (!copy.empty()) std::memcpy(copy.data(), bytes.c_str(), copy.size());
    std::optional<std::filesystem::path> dir;
    if (!external_data_dir.is_none()) dir = path_in(external_data_dir, "external_data_dir");
    return take(formats::OnnxFile::from_bytes(std::move(copy), dir));
  }

  Process process_;
  std::unique_ptr<cpu::Pool> pool_;
  std::shared_ptr<const graph::Model> model_;
  std::unique_ptr<graph::Runner> runner_;
  std::mutex mutex_;
};

nb::dict memory_usage() {
  const cpu::MemoryUsage usage = cpu::memory_usage();
  nb::dict d;
  for (int tag = 0; tag < cpu::kMemoryTags; tag++) {
    nb::dict one;
    one["current"] = usage.current[tag];
    one["peak"] = usage.peak[tag];
    one["allocations"] = usage.allocations[tag];
    d[text(cpu::memory_tag_name(static_cast<cpu::MemoryTag>(tag)))] = one;
  }
  d["largest_weights_bytes"] = usage.largest_weights_bytes;
  return d;
}

}  // namespace

void bind_inference_session(nb::module_& m) {
  m.def(
      "memory_usage", &memory_usage,
      "Large memory of this process by purpose: a dict with an entry for weights, cache, workspace and logits, each a "
      "dict of current and peak (bytes) and allocations (a count), and largest_weights_bytes.");
  nb::class_<NodeArg>(m, "NodeArg", "Name, element type and shape of a graph input or output.")
      .def_ro("name", &NodeArg::name, "str: the name in the graph.")
      .def_ro("type", &NodeArg::type, "str: the element type as ONNX Runtime writes it, such as 'tensor(float)'.")
      .def_ro("shape", &NodeArg::shape, "list: an int for a fixed extent, a str for a named one, None for any.");
  nb::class_<InferenceSession>(
      m, "InferenceSession",
      "An ONNX graph, every node on quern's kernels, under the ONNX Runtime calling convention.\n\n"
      "Calls from several threads take turns; the interpreter lock is released while they compute. "
      "In a child of fork() they raise quern.Error, unsupported.")
      .def(nb::init<PathOrBytesArg, int64_t, bool, PathArg, const std::vector<std::string>&>(),
           nb::arg("path_or_bytes"), nb::kw_only(), nb::arg("threads") = 0, nb::arg("profile") = false,
           nb::arg("external_data_dir") = nb::none(), nb::arg("no_fuse") = std::vector<std::string>(),
           "Loads a model file (str or os.PathLike), or bytes with external data in external_data_dir.\n\n"
           "threads: 1 to 1024, 0 for the usable physical cores. profile=True: report() has times. no_fuse: names of "
           "graph passes to leave out.\n\n"
           "Raises quern.Error: bad_model (damaged or inconsistent, with the place), unsupported (a node that quern "
           "does not run, by name), bad_request (an option; external data without a folder), no_memory, io.")
      .def("get_inputs", &InferenceSession::inputs, "One NodeArg a graph input, in declared order.")
      .def("get_outputs", &InferenceSession::outputs, "One NodeArg a graph output, in declared order.")
      .def("run", &InferenceSession::run, nb::arg("output_names").none(), nb::arg("feeds"),
           "Runs the graph on {input name: NumPy array}; returns the named outputs (None: all) as a list of NumPy "
           "arrays.\n\n"
           "Shapes and dtypes are those that get_inputs() and get_outputs() tell; arrays that are not C-contiguous are "
           "copied. Raises quern.Error: bad_request (a name, a dtype or a shape, or an input that is missing), "
           "unsupported, no_memory.")
      .def("report", &InferenceSession::report,
           "A list with one dict a node in execution order: node, op, domain, owner ('kernel', 'prepared', 'view' or "
           "'fused'), variant, reason, ns (with profile=True), bytes_copied, view.\n\n"
           "Raises quern.Error: unsupported (a child of fork()).")
      .def("counters", &InferenceSession::counters,
           "A dict of int: bytes copied, appended to caches and read of weights by the last run, and memory of the "
           "model.\n\n"
           "Raises quern.Error: unsupported (a child of fork()).");
}

}  // namespace quern::python
