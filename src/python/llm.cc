// SPDX-License-Identifier: Apache-2.0
// quern.LLM: a model folder, text or ids in, text, ids or logits out.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/no_memory.h"
#include "engine/session.h"
#include "python/argument_types.h"
#include "python/arrays.h"
#include "python/chat.h"
#include "python/generation.h"
#include "python/interpreter_lock.h"

namespace quern::python {
namespace {

int32_t context_tokens(int64_t ctx) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (ctx < 1 || ctx > kMost) raise(bad_request("ctx", fmt::format("{} is outside 1 to {}", ctx, kMost)));
  return static_cast<int32_t>(ctx);
}

// A timeline; keeps the model alive.
struct PyState {
  std::shared_ptr<const engine::Engine> engine;
  std::unique_ptr<model::State> state;
  // Rows of logits that were handed out. Whoever steps through tokens holds the last one while the next is computed;
  // mapping new pages for every row costs a percent of a small model's token.
  std::array<std::shared_ptr<cpu::Buffer>, 2> rows = {};
  std::unique_ptr<std::mutex> in_use = std::make_unique<std::mutex>();

  // Held by every call. Raises bad_request instead of waiting: interleaved calls would mix up the timeline.
  std::unique_lock<std::mutex> hold() const {
    take(engine->process().check());
    return hold_alone(*in_use, "state");
  }
  std::shared_ptr<cpu::Buffer> free_row(size_t bytes) {
    for (auto& row : rows) {
      if (row != nullptr && row.use_count() > 1) continue;
      if (row == nullptr) {
        row = std::make_shared<cpu::Buffer>(take(cpu::Buffer::allocate(bytes, cpu::MemoryTag::logits)));
      }
      return row;
    }
    return std::make_shared<cpu::Buffer>(take(cpu::Buffer::allocate(bytes, cpu::MemoryTag::logits)));
  }
};

// Calls a Python function with the results of steps, as arrays of their own.
class PyObserver {
 public:
  explicit PyObserver(nb::handle function) : function_(function) {}

  // Called without the interpreter lock.
  Result<void> operator()(const model::StepResult& result) {
    ops::Tensor tensor;
    tensor.dtype = result.dtype == DType::bf16 ? DType::u16 : result.dtype;
    tensor.shape = {result.rows, result.width};
    const auto bytes = storage_bytes(tensor.dtype, result.rows * result.width);
    QUERN_TRY(cpu::Buffer copy, cpu::Buffer::allocate(bytes.value_or(SIZE_MAX), cpu::MemoryTag::workspace));
    if (copy.size() > 0) std::memcpy(copy.data(), result.data, copy.size());
    const LockHeld locked;
    try {
      // Unwinding would give these back without the lock.
      const nb::str node(result.node.data(), result.node.size()), part(result.part.data(), result.part.size());
      const ArrayOut array = array_out(tensor, std::move(copy));
      PyObject* returned = sleep_if_ended(
          [&] { return PyObject_CallFunctionObjArgs(function_.ptr(), node.ptr(), part.ptr(), array.ptr(), nullptr); });
      if (returned == nullptr) throw nb::python_error();
      Py_DECREF(returned);
    } catch (...) {
      raised_ = std::current_exception();
      return bad_request("observe", "the function raised an exception");
    }
    return {};
  }
  // After the call that was observed, with the interpreter lock.
  void rethrow() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  nb::handle function_;
  std::exception_ptr raised_;
};

class LLM {
 public:
  LLM(PathArg folder, int64_t threads, std::optional<int64_t> ctx, const std::string& compute, const std::string& kv,
      const std::vector<std::string>& no_fuse, bool text) {
    engine::EngineOptions options;
    options.threads = thread_count(threads);
    if (ctx) options.context_tokens = context_tokens(*ctx);
    options.compute = compute;
    options.kv = kv;
    options.with_text = text;
    options.no_fuse = no_fuse;
    const std::string path = path_in(folder, "folder");
    const LockReleased released;
    engine_ = take(engine::Engine::open(path, options));
  }

  std::vector<int32_t> tokenize(TextArg text) const { return take(engine_->encode(text_in(text, "text"))); }
  nb::str detokenize(IdsArg of) const {
    const std::vector<int32_t> ids = ids_in(of, "ids");
    check_ids(*engine_, ids, "ids");
    const std::string text = take(engine_->decode(ids));
    return nb::str(text.data(), text.size());
  }

  PyGeneration generate(PromptArg prompt, const GenerateArguments& arguments) {
    const std::vector<int32_t> ids = ids_of(prompt);
    engine::GenerateOptions options = options_of(*engine_, arguments);
    Interruptions interruptions;
    options.cancel = interruptions.flag();
    options.on_token = [&](std::string_view, int32_t) {
      interruptions.poll();
      return true;
    };
    engine::Generation generation;
    double prefill_ms = 0;
    interruptions.run([&] {
      const auto session = take(engine_->new_session());
      const int64_t start = now_ns();
      take(session->append(ids, interruptions.append_options()));
      prefill_ms = ms_since(start);
      generation = take(session->generate(options));
    });
    return generation_out(*engine_, std::move(generation), prefill_ms);
  }
  std::unique_ptr<PyStream> stream(PromptArg prompt, const GenerateArguments& arguments) {
    return PyStream::start(engine_, ids_of(prompt), options_of(*engine_, arguments));
  }
  std::unique_ptr<PyChat> new_chat(MessagesArg messages, TextArg system, const std::string& when_full) const {
    return PyChat::start(engine_, messages, system, when_full);
  }

  ArrayOut logits(IdsArg of) const {
    const std::vector<int32_t> ids = ids_in(of, "ids");
    const auto vocab = static_cast<size_t>(engine_->info().vocab);
    ops::Tensor tensor;
    tensor.shape = {static_cast<int64_t>(ids.size()), static_cast<int64_t>(vocab)};
    cpu::Buffer storage;
    Interruptions interruptions;
    interruptions.run([&] {
      storage = take(cpu::Buffer::allocate(ids.size() * vocab * sizeof(float), cpu::MemoryTag::logits));
      const auto session = take(engine_->new_session());
      take(session->logits(ids, {storage.as<float>(), ids.size() * vocab}, interruptions.append_options()));
    });
    return array_out(tensor, std::move(storage));
  }

  PyState new_state() const {
    return {engine_, take(engine::or_no_memory("state", [&] { return engine_->line().new_state(); }))};
  }
  PyState load_state(PathArg path) const {
    const std::string file = path_in(path, "path");
    const LockReleased released;
    return {engine_, take(engine::or_no_memory("state", [&] { return engine_->line().load_state(file); }))};
  }

  ArrayOut forward(PyState& state, IdsArg appended, ObserverArg observe) const {
    const std::vector<int32_t> ids = ids_in(appended, "ids");
    if (!observe.is_none() && PyCallable_Check(observe.ptr()) == 0) raise_type("observe", "callable", observe);
    const auto held = state.hold();
    if (observe.is_none()) return forward_held(state, ids);
    PyObserver observer(observe);
    take(state.state->observe([&](const model::StepResult& result) { return observer(result); }));
    const auto end = [&](void*) { (void)state.state->observe({}); };
    const std::unique_ptr<void, decltype(end)> guard(&state, end);
    try {
      return forward_held(state, ids);
    } catch (const Raised&) {
      observer.rethrow();
      throw;
    }
  }

 private:
  ArrayOut forward_held(PyState& state, const std::vector<int32_t>& ids) const {
    const auto vocab = static_cast<size_t>(engine_->info().vocab);
    ops::Tensor tensor;
    tensor.shape = {static_cast<int64_t>(vocab)};
    std::shared_ptr<cpu::Buffer> storage;
    {
      const LockReleased released;
      storage = state.free_row(vocab * sizeof(float));
      model::State& timeline = *state.state;
      const std::span<float> row(storage->as<float>(), vocab);
      take(engine::or_no_memory("state", [&] {
        return ids.empty() ? engine_->line().last_row(timeline, row)
                           : engine_->line().forward(timeline, ids, model::Rows{}, row);
      }));
    }
    return array_out(tensor, std::move(storage));
  }

  std::vector<int32_t> ids_of(nb::handle prompt) const {
    if (nb::isinstance<nb::str>(prompt)) return take(engine_->encode(text_in(prompt, "prompt")));
    return ids_in(prompt, "prompt", "a str or a sequence of token ids");
  }

  std::shared_ptr<const engine::Engine> engine_;
};

}  // namespace

void bind_llm(nb::module_& m) {
  nb::class_<PyState>(m, "State",
                      "One timeline of a model: what it remembers of the tokens so far. LLM.new_state() makes one.\n\n"
                      "For one thread at once: calls of another thread raise quern.Error, bad_request. In a child of "
                      "fork() every call raises unsupported.")
      .def_prop_ro(
          "length",
          [](const PyState& s) {
            const auto held = s.hold();
            return s.state->length_tokens();
          },
          "int: tokens so far.")
      .def_prop_ro(
          "bytes",
          [](const PyState& s) {
            const auto held = s.hold();
            return s.state->bytes();
          },
          "int: memory of this timeline in bytes, its past and what it computes in.")
      .def(
          "reset",
          [](PyState& s) {
            const auto held = s.hold();
            s.state->reset();
          },
          "Forgets everything, keeps the memory. Raises quern.Error: bad_request (in use by another thread).")
      .def(
          "rewind",
          [](PyState& s, int64_t tokens) {
            const auto held = s.hold();
            take(s.state->rewind(tokens));
          },
          nb::arg("tokens"),
          "Forgets all but the first `tokens` tokens. Raises quern.Error: bad_request when there are fewer.")
      .def(
          "fork",
          [](const PyState& s) {
            const auto held = s.hold();
            return PyState{s.engine, take(engine::or_no_memory("state", [&] { return s.state->fork(); }))};
          },
          "An independent copy. Raises quern.Error: no_memory.")
      .def(
          "save",
          [](const PyState& s, PathArg path) {
            const std::string file = path_in(path, "path");
            const auto held = s.hold();
            const LockReleased released;
            take(engine::or_no_memory("state", [&] { return s.state->save(file); }));
          },
          nb::arg("path"),
          "Writes the timeline to a file, which appears whole or not at all; LLM.load_state() of the same model reads "
          "it. Raises quern.Error: io.");
  auto llm = nb::class_<LLM>(
      m, "LLM",
      "A model folder, opened. Calls may come from several threads at once; the interpreter lock is released while "
      "they compute.\n\n"
      "Does not survive fork(): in the child, what computes raises quern.Error, unsupported; open the model "
      "there, or use multiprocessing's start method 'spawn'.");
  llm.def(
         nb::init<PathArg, int64_t, std::optional<int64_t>, const std::string&, const std::string&,
                  const std::vector<std::string>&, bool>(),
         nb::arg("folder"), nb::kw_only(), nb::arg("threads") = 0, nb::arg("ctx") = nb::none(),
         nb::arg("compute") = engine::EngineOptions().compute, nb::arg("kv") = engine::EngineOptions().kv,
         nb::arg("no_fuse") = std::vector<std::string>(), nb::arg("text") = true,
         "Opens the folder (str or os.PathLike).\n\n"
         "threads: 1 to 1024, 0 for the usable physical cores. ctx: tokens that the context holds, None for as many as "
         "the model has positions for and memory has room for. compute: 'auto', or 'fp32' or 'bf16' for a model that "
         "can be computed in both. kv: what an ONNX model's keys and values are kept as, 'fp32', 'fp16' (which 'auto' "
         "is), 'bf16' or 'int8'. no_fuse: names of graph passes to leave out. text=False: no tokenizer is read, and "
         "there is no text in or out.\n\n"
         "Raises quern.Error: bad_model (a file is missing, damaged or inconsistent, with the place), unsupported "
         "(names what quern does not do), bad_request (an option), too_long (ctx beyond the model's positions, with "
         "both "
         "numbers), no_memory (with what would fit), io.")
      .def("tokenize", &LLM::tokenize, nb::arg("text"),
           "The token ids of a str, as a list of int: special tokens parsed, nothing added in front or behind.\n\n"
           "Raises quern.Error: bad_request (surrogates; no tokenizer), too_long (2 GiB and more).")
      .def("detokenize", &LLM::detokenize, nb::arg("ids"),
           "The text of a sequence of token ids, as a str; bytes that are not UTF-8 become U+FFFD.\n\n"
           "Raises quern.Error: bad_request (an id outside the vocabulary; no tokenizer).")
      .def("new_state", &LLM::new_state, "An empty timeline, a State. Raises quern.Error: no_memory.")
      .def("load_state", &LLM::load_state, nb::arg("path"),
           "The timeline that State.save() wrote, a State. Raises quern.Error: io; bad_request for a damaged file and "
           "for one of another model or another kind of cache; no_memory.")
      .def("forward", &LLM::forward, nb::arg("state"), nb::arg("ids"), nb::kw_only(), nb::arg("observe") = nb::none(),
           "Appends a sequence of ids to a State of this model; returns the logits of the token after the last of "
           "them, a float32 array [vocab]. Without ids they are those after the last token of the State.\n\n"
           "Raises quern.Error: bad_request (no ids for an empty State, an id outside the vocabulary, a State of "
           "another model or in use "
           "by another thread), too_long (more tokens than the context), no_memory. The State is then as before.\n\n"
           "observe(node, part, array): called with what every step of the model computes (part names which, of a step "
           "with several results), in order and chunk by chunk; bfloat16 comes as the uint16 of its bits. For "
           "qwen4_exp.")
      .def("logits", &LLM::logits, nb::arg("ids"),
           "Teacher-forced logits of one sequence of ids: a float32 array [len(ids), vocab], row i for the token after "
           "ids[i].\n\n"
           "Raises quern.Error: bad_request (an id outside the vocabulary), too_long, no_memory.")
      .def("new_chat", &LLM::new_chat, nb::kw_only(), nb::arg("messages") = nb::none(), nb::arg("system") = nb::none(),
           nb::arg("when_full") = "refuse",
           "A conversation by the model's chat template. messages: a list of {'role', 'content'} that it goes on from; "
           "system: what the model is told before everything else. when_full: 'refuse' a message that the context "
           "cannot hold, or 'drop_oldest' exchanges until the rest takes half of it.\n\n"
           "Raises quern.Error: bad_request (messages that are none, system beside messages, another word for "
           "when_full), "
           "bad_model (no chat template, or one that is damaged), unsupported (names what the template uses that quern "
           "does not carry out), no_memory, io.");
  def_generating<PromptArg>(llm, "generate", "prompt", &LLM::generate,
                            "Continues a prompt (text or ids) and returns a Generation. Ctrl-C interrupts it.", "");
  def_generating<PromptArg>(llm, "stream", "prompt", &LLM::stream,
                            "The same, piece by piece: an iterator over texts that are whole characters.", "");
}

}  // namespace quern::python
