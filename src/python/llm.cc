// SPDX-License-Identifier: Apache-2.0
// quern.LLM: a model folder, text or ids in, text, ids or logits out.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "python/arrays.h"

namespace quern::python {
namespace {

struct PyGeneration {
  std::string text;
  std::vector<int32_t> token_ids;
  std::string finish_reason;
  nb::dict timings;
};

// A timeline; keeps the model alive.
struct PyState {
  std::shared_ptr<const engine::Engine> engine;
  std::unique_ptr<model::State> state;
};

class LLM {
 public:
  LLM(nb::object folder, int64_t threads, const std::vector<std::string>& no_fuse) {
    engine::EngineOptions options;
    options.threads = thread_count(threads);
    options.no_fuse = no_fuse;
    const std::string path = path_in(folder, "folder");
    nb::gil_scoped_release released;
    engine_ = take(engine::Engine::open(path, options));
  }

  std::vector<int32_t> tokenize(nb::handle text) const { return take(engine_->encode(text_in(text, "text"))); }
  nb::object detokenize(const std::vector<int32_t>& ids) const {
    check_ids(ids, "ids");
    const std::string text = take(engine_->decode(ids));
    return nb::str(text.data(), text.size());
  }

  PyGeneration generate(nb::object prompt, int32_t max_tokens, bool greedy, std::optional<float> temperature,
                        std::optional<int32_t> top_k, std::optional<float> top_p, uint64_t seed,
                        std::optional<std::vector<int32_t>> stop_ids) const {
    const std::vector<int32_t> ids = ids_of(prompt);
    if (max_tokens < 0) raise(bad_request("max_tokens", fmt::format("{} is below 0", max_tokens)));
    if (stop_ids) check_ids(*stop_ids, "stop_ids");
    engine::GenerateOptions options;
    options.max_tokens = max_tokens;
    options.stop_ids = std::move(stop_ids);
    if (greedy) {
      options.sampling.greedy = true;
    } else {
      options.sampling = take(engine_->default_sampling());
    }
    if (temperature) options.sampling.temperature = *temperature;
    if (top_k) options.sampling.top_k = *top_k;
    if (top_p) options.sampling.top_p = *top_p;
    options.sampling.seed = seed;
    engine::Generation generation;
    double prefill_ms = 0;
    {
      nb::gil_scoped_release released;
      const auto session = take(engine_->new_session());
      const int64_t start = now_ns();
      take(session->append(ids));
      prefill_ms = ms_since(start);
      generation = take(session->generate(options));
    }
    PyGeneration result;
    result.text = std::move(generation.text);
    result.token_ids = std::move(generation.token_ids);
    result.finish_reason = engine::finish_reason_name(generation.finish_reason);
    result.timings["load_ms"] = engine_->load_ms();
    result.timings["prefill_ms"] = prefill_ms;
    result.timings["first_token_ms"] = generation.timings.first_token_ms;
    result.timings["decode_ms_per_token"] = generation.timings.decode_ms_per_token();
    return result;
  }

  nb::object logits(const std::vector<int32_t>& ids) const {
    const auto vocab = static_cast<size_t>(engine_->info().vocab);
    ops::Tensor tensor;
    tensor.shape = {static_cast<int64_t>(ids.size()), static_cast<int64_t>(vocab)};
    cpu::Buffer storage;
    {
      nb::gil_scoped_release released;
      storage = take(cpu::Buffer::allocate(ids.size() * vocab * sizeof(float), cpu::MemoryTag::logits));
      const auto session = take(engine_->new_session());
      take(session->logits(ids, {storage.as<float>(), ids.size() * vocab}));
    }
    return array_out(tensor, std::move(storage));
  }

  PyState new_state() const { return {engine_, take(engine_->line().new_state())}; }

  nb::object forward(PyState& state, const std::vector<int32_t>& ids) const {
    const auto vocab = static_cast<size_t>(engine_->info().vocab);
    ops::Tensor tensor;
    tensor.shape = {static_cast<int64_t>(vocab)};
    cpu::Buffer storage;
    {
      nb::gil_scoped_release released;
      storage = take(cpu::Buffer::allocate(vocab * sizeof(float), cpu::MemoryTag::logits));
      take(engine_->line().forward(*state.state, ids, model::Rows{}, {storage.as<float>(), vocab}));
    }
    return array_out(tensor, std::move(storage));
  }

 private:
  void check_ids(std::span<const int32_t> ids, const char* what) const {
    for (const int32_t id : ids) {
      if (id < 0 || id >= engine_->info().vocab) {
        raise(bad_request(what, fmt::format("token id {} is outside 0 to {}", id, engine_->info().vocab - 1)));
      }
    }
  }

  std::vector<int32_t> ids_of(nb::handle prompt) const {
    if (nb::isinstance<nb::str>(prompt)) return take(engine_->encode(text_in(prompt, "prompt")));
    std::vector<int32_t> ids;
    if (!nb::try_cast(prompt, ids))
      raise(bad_request("prompt", "expected text or a list of token ids (32-bit integers)"));
    return ids;
  }

  std::shared_ptr<const engine::Engine> engine_;
};

}  // namespace

void bind_llm(nb::module_& m) {
  nb::class_<PyGeneration>(m, "Generation", "What LLM.generate returns.")
      .def_ro("text", &PyGeneration::text, "The generated text, without the prompt and the stop token.")
      .def_ro("token_ids", &PyGeneration::token_ids, "The generated ids, the stop id included where one ended it.")
      .def_ro("finish_reason", &PyGeneration::finish_reason, "'stop', 'length' or 'cancelled'.")
      .def_ro("timings", &PyGeneration::timings,
              "Milliseconds: load_ms, prefill_ms, first_token_ms, decode_ms_per_token.");
  nb::class_<PyState>(m, "State",
                      "One timeline of a model: what it remembers of the tokens so far. For one thread at once.")
      .def_prop_ro(
          "length", [](const PyState& s) { return s.state->length_tokens(); }, "Tokens so far.")
      .def_prop_ro(
          "bytes", [](const PyState& s) { return s.state->bytes(); }, "Memory of this timeline.")
      .def(
          "reset", [](PyState& s) { s.state->reset(); }, "Forgets everything.")
      .def(
          "rewind", [](PyState& s, int64_t tokens) { take(s.state->rewind(tokens)); }, nb::arg("tokens"),
          "Forgets all but the first `tokens` tokens.")
      .def(
          "fork",
          [](const PyState& s) {
            return PyState{s.engine, take(s.state->fork())};
          },
          "An independent copy.");
  nb::class_<LLM>(m, "LLM",
                  "A model folder. Calls may come from several threads at once; the interpreter lock is released.")
      .def(nb::init<nb::object, int64_t, const std::vector<std::string>&>(), nb::arg("folder"), nb::kw_only(),
           nb::arg("threads") = 0, nb::arg("no_fuse") = std::vector<std::string>(),
           "Opens the folder. threads=0: all usable cores. no_fuse: names of graph passes to leave out. Raises "
           "quern.Error.")
      .def("tokenize", &LLM::tokenize, nb::arg("text"), "Token ids of a text, special tokens parsed, nothing added.")
      .def("detokenize", &LLM::detokenize, nb::arg("ids"), "The text of token ids.")
      .def("generate", &LLM::generate, nb::arg("prompt"), nb::kw_only(), nb::arg("max_tokens") = 256,
           nb::arg("greedy") = false, nb::arg("temperature") = nb::none(), nb::arg("top_k") = nb::none(),
           nb::arg("top_p") = nb::none(), nb::arg("seed") = 0, nb::arg("stop_ids") = nb::none(),
           "Continues a prompt (text or ids). What is not given comes from the model's generation settings.")
      .def("new_state", &LLM::new_state, "An empty timeline.")
      .def("forward", &LLM::forward, nb::arg("state"), nb::arg("ids"),
           "Appends ids to the timeline; float32 [vocab] scores of the token after the last of them.")
      .def("logits", &LLM::logits, nb::arg("ids"),
           "Teacher-forced scores: float32 [len(ids), vocab], row i for the token after ids[i].");
}

}  // namespace quern::python
