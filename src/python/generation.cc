// SPDX-License-Identifier: Apache-2.0
// Arguments, results and streams of generating calls.
#include "python/generation.h"

#include <fmt/format.h>

#include <limits>

#include "base/clock.h"
#include "python/interpreter_lock.h"

namespace quern::python {
namespace {

// Often enough for a person; taking the interpreter lock can cost milliseconds where other threads compute in Python.
constexpr double kPollMs = 50;

nb::list log_probs_out(const std::vector<engine::TokenLogProbs>& tokens) {
  const auto entry = [](const engine::TokenLogProbs::Entry& e) {
    nb::dict row;
    row["id"] = e.id;
    row["log_prob"] = e.log_prob;
    return row;
  };
  nb::list list;
  for (const engine::TokenLogProbs& token : tokens) {
    nb::dict row = entry(token.chosen);
    nb::list top;
    for (const auto& e : token.top) top.append(entry(e));
    row["top"] = top;
    list.append(row);
  }
  return list;
}

int32_t narrow(int64_t value, const char* what) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    raise(bad_request(what, fmt::format("{} is outside 0 to {}", value, std::numeric_limits<int32_t>::max())));
  }
  return static_cast<int32_t>(value);
}

uint64_t seed_in(nb::handle object) {
  if (PyIndex_Check(object.ptr()) == 0) raise_type("seed", "an int", object);
  const nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  const uint64_t seed = number.is_valid() ? PyLong_AsUnsignedLongLong(number.ptr()) : 0;
  if (PyErr_Occurred() == nullptr) return seed;
  PyErr_Clear();
  raise(bad_request(
      "seed", fmt::format("{} is outside 0 to {}", nb::repr(object).c_str(), std::numeric_limits<uint64_t>::max())));
}

std::vector<std::string> stop_strings_in(nb::handle object) {
  constexpr const char* kWanted = "a str or a sequence of str";
  if (object.is_none()) return {};
  if (nb::isinstance<nb::str>(object)) return {text_in(object, "stop")};
  if (PySequence_Check(object.ptr()) == 0 || PyBytes_Check(object.ptr())) raise_type("stop", kWanted, object);
  std::vector<std::string> texts;
  for (const nb::handle item : nb::borrow<nb::object>(object)) {
    texts.push_back(text_in(item, fmt::format("stop[{}]", texts.size())));
  }
  return texts;
}

}  // namespace

PyGeneration generation_out(const engine::Engine& engine, engine::Generation generation, double prefill_ms) {
  PyGeneration result;
  result.text = std::move(generation.text);
  result.token_ids = std::move(generation.token_ids);
  result.finish_reason = engine::finish_reason_name(generation.finish_reason);
  result.cycle_tokens = generation.finish_reason == engine::FinishReason::repetition ? generation.cycle_tokens : 0;
  if (!generation.log_probs.empty()) result.logprobs = log_probs_out(generation.log_probs);
  result.timings["load_ms"] = engine.load_ms();
  result.timings["prefill_ms"] = prefill_ms;
  result.timings["first_token_ms"] = generation.timings.first_token_ms;
  result.timings["decode_ms_per_token"] = generation.timings.decode_ms_per_token();
  return result;
}

namespace {

// Python's bool is an int, and an array of them converts to ids as well.
void check_no_bools(nb::handle object, const char* what) {
  const Py_ssize_t size = PySequence_Size(object.ptr());
  if (size < 0) PyErr_Clear();
  for (Py_ssize_t i = 0; i < size; i++) {
    const nb::object item = object[i];
    const bool is_bool =
        PyBool_Check(item.ptr()) || std::string_view(Py_TYPE(item.ptr())->tp_name).starts_with("numpy.bool");
    if (is_bool) raise_type(fmt::format("{}[{}]", what, i), "an int", item);
  }
}

}  // namespace

std::vector<int32_t> ids_in(nb::handle object, const char* what, const char* wanted) {
  std::vector<int32_t> ids;
  const bool is_text = PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr()) ||
                       PyByteArray_Check(object.ptr()) || PyMemoryView_Check(object.ptr());
  if (!is_text && PySequence_Check(object.ptr()) != 0) check_no_bools(object, what);
  if (!is_text && nb::try_cast(object, ids)) return ids;
  if (is_text || PySequence_Check(object.ptr()) == 0) raise_type(what, wanted, object);
  int64_t i = 0;
  for (const nb::handle item : nb::borrow<nb::object>(object)) {
    const std::string place = fmt::format("{}[{}]", what, i++);
    if (PyIndex_Check(item.ptr()) == 0) raise_type(place, "an int", item);
    int32_t id = 0;
    if (!nb::try_cast(item, id)) raise(bad_request(place, fmt::format("{} is no token id", nb::repr(item).c_str())));
  }
  raise_type(what, wanted, object);
}

void check_ids(const engine::Engine& engine, const std::vector<int32_t>& ids, const char* what) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= engine.info().vocab) {
      raise(bad_request(what, fmt::format("token id {} is outside 0 to {}", id, engine.info().vocab - 1)));
    }
  }
}

engine::GenerateOptions options_of(const engine::Engine& engine, const GenerateArguments& a) {
  if (a.greedy) {
    for (const auto& [name, given] : {std::pair("temperature", a.temperature.has_value()),
                                      {"top_k", a.top_k.has_value()},
                                      {"top_p", a.top_p.has_value()},
                                      {"min_p", a.min_p.has_value()}}) {
      if (given) raise(bad_request(name, "has no influence with greedy=True; give one of them"));
    }
  }
  engine::GenerateOptions options;
  options.max_tokens = narrow(a.max_tokens, "max_tokens");
  if (!a.stop_ids.is_none()) {
    options.stop_ids = ids_in(a.stop_ids, "stop_ids");
    check_ids(engine, *options.stop_ids, "stop_ids");
  }
  options.stop_strings = stop_strings_in(a.stop);
  if (a.logprobs) options.log_probs = narrow(*a.logprobs, "logprobs");
  options.repeat_guard = narrow(a.repeat_guard, "repeat_guard");
  engine::SamplingChoice choice;
  const auto set = [](std::optional<float>& to, const std::optional<double>& value) {
    if (value) to = static_cast<float>(*value);
  };
  choice.greedy = a.greedy;
  set(choice.temperature, a.temperature);
  if (a.top_k) choice.top_k = narrow(*a.top_k, "top_k");
  set(choice.top_p, a.top_p);
  set(choice.min_p, a.min_p);
  set(choice.repetition_penalty, a.repetition_penalty);
  set(choice.presence_penalty, a.presence_penalty);
  set(choice.frequency_penalty, a.frequency_penalty);
  for (const auto& [id, bias] : a.logit_bias) {
    choice.logit_bias.push_back({narrow(id, "logit_bias"), static_cast<float>(bias)});
  }
  choice.seed = seed_in(a.seed);
  options.sampling = take(engine.choose_sampling(choice));
  return options;
}

void Interruptions::poll() {
  if (ms_since(polled_ns_) < kPollMs || thrown_) return;
  polled_ns_ = now_ns();
  const LockHeld held;
  if (PyErr_CheckSignals() == 0) return;
  thrown_ = std::make_unique<nb::python_error>();
  raise_flag();
}

engine::AppendOptions Interruptions::append_options() {
  engine::AppendOptions options;
  options.cancel = flag();
  options.progress = [this](int64_t, int64_t) { poll(); };
  return options;
}

std::unique_ptr<PyStream> PyStream::start(std::shared_ptr<const engine::Engine> engine, const std::vector<int32_t>& ids,
                                          engine::GenerateOptions options) {
  std::unique_ptr<PyStream> stream(new PyStream(std::move(engine)));
  options.cancel = stream->interruptions_.flag();
  stream->interruptions_.run([&] {
    stream->session_ = take(stream->engine_->new_session());
    const int64_t start = now_ns();
    take(stream->session_->append(ids, stream->interruptions_.append_options()));
    stream->prefill_ms_ = ms_since(start);
    stream->generator_ =
        std::make_unique<engine::Generator>(take(engine::Generator::start(*stream->session_, options)));
  });
  return stream;
}

std::string PyStream::next() {
  const auto held = hold_alone(in_use_, "stream");
  std::string text;
  interruptions_.run([&] {
    while (text.empty() && !generator_->ended()) {
      text = take(generator_->next());
      interruptions_.poll();
    }
  });
  if (text.empty()) throw nb::stop_iteration();
  return text;
}

nb::object PyStream::result() {
  const std::unique_lock held(in_use_, std::try_to_lock);
  if (!held || !generator_->ended()) return nb::none();
  return nb::cast(generation_out(*engine_, generator_->result(), prefill_ms_));
}

void bind_generation(nb::module_& m) {
  nb::class_<PyGeneration>(m, "Generation", "What LLM.generate returns.")
      .def_ro("text", &PyGeneration::text, "The generated text, without the prompt and the stop token.")
      .def_ro("token_ids", &PyGeneration::token_ids, "The generated ids, the stop id included where one ended it.")
      .def_ro("finish_reason", &PyGeneration::finish_reason, "'stop', 'length', 'cancelled' or 'repetition'.")
      .def_ro("cycle_tokens", &PyGeneration::cycle_tokens,
              "After 'repetition' the length of the cycle of tokens that went round, else 0.")
      .def_ro("timings", &PyGeneration::timings, nb::for_getter(nb::sig("def timings(self) -> dict[str, float]")),
              "Milliseconds: load_ms, prefill_ms, first_token_ms, decode_ms_per_token.")
      .def_ro("logprobs", &PyGeneration::logprobs, nb::for_getter(nb::sig("def logprobs(self) -> list[dict] | None")),
              "A dict for every token where logprobs was given, else None: id, log_prob (nats, of the model's own "
              "logits), and top, the list of the same for the most likely ids.");
  nb::class_<PyStream>(m, "Stream",
                       "What LLM.stream returns: an iterator over the text as it becomes certain, in whole characters. "
                       "For one thread at once, but for cancel().")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> Stream"))
      .def("__next__", &PyStream::next)
      .def("cancel", &PyStream::cancel, "Ends the text after the token that is being computed. From any thread.")
      .def_prop_ro("result", &PyStream::result, nb::for_getter(nb::sig("def result(self) -> Generation | None")),
                   "The Generation once the text has ended, None before.");
}

}  // namespace quern::python
