// SPDX-License-Identifier: Apache-2.0
// Owns what generating calls of Python have in common: their arguments, what they return, streams, and that signals
// interrupt them. Does not own prompts or conversations.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/generator.h"
#include "engine/session.h"
#include "python/argument_types.h"
#include "python/arrays.h"
#include "python/interpreter_lock.h"

namespace quern::python {

struct PyGeneration {
  std::string text;
  std::vector<int32_t> token_ids;
  std::string finish_reason;
  int32_t cycle_tokens = 0;
  nb::dict timings;
  nb::object logprobs = nb::none();
};

PyGeneration generation_out(const engine::Engine& engine, engine::Generation generation, double prefill_ms);

// Whole numbers are wide here, so that one out of range is a bad request with its value.
struct GenerateArguments {
  int64_t max_tokens;
  bool greedy;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::map<int64_t, double> logit_bias;
  nb::object seed, stop_ids, stop;
  std::optional<int64_t> logprobs;
  int64_t repeat_guard;
};

// Raises bad_request for what the arguments cannot be.
engine::GenerateOptions options_of(const engine::Engine& engine, const GenerateArguments& arguments);

// Token ids of a sequence of whole numbers; TypeError says that `what` must be `wanted`.
std::vector<int32_t> ids_in(nb::handle object, const char* what, const char* wanted = "a sequence of token ids");
void check_ids(const engine::Engine& engine, const std::vector<int32_t>& ids, const char* what);

// Lets signal handlers of Python, Ctrl-C's first of all, run while something is computed without the interpreter lock.
class Interruptions {
 public:
  engine::CancelFlag flag() const { return &raised_; }
  void raise_flag() { raised_.store(true); }
  bool raised() const { return raised_.load(); }
  // To be called between steps of the work; raises the flag when a handler threw.
  void poll();
  engine::AppendOptions append_options();
  // Runs work() without the interpreter lock, then throws what a handler threw.
  template <class Work>
  void run(Work&& work) {
    std::exception_ptr failure;
    {
      const LockReleased released;
      try {
        work();
      } catch (const Raised&) {
        failure = std::current_exception();
      }
    }
    if (thrown_) throw nb::python_error(*std::exchange(thrown_, nullptr));
    if (failure) std::rethrow_exception(failure);
  }

 private:
  std::atomic<bool> raised_{false};
  int64_t polled_ns_ = 0;
  std::unique_ptr<nb::python_error> thrown_;
};

// A generation that its iterator carries out.
class PyStream {
 public:
  // Computes the prompt.
  static std::unique_ptr<PyStream> start(std::shared_ptr<const engine::Engine> engine, const std::vector<int32_t>& ids,
                                         engine::GenerateOptions options);

  std::string next();
  void cancel() { interruptions_.raise_flag(); }
  // None before the end.
  nb::object result();

 private:
  explicit PyStream(std::shared_ptr<const engine::Engine> engine) : engine_(std::move(engine)) {}

  std::shared_ptr<const engine::Engine> engine_;
  Interruptions interruptions_;
  std::unique_ptr<engine::Session> session_;
  std::unique_ptr<engine::Generator> generator_;
  double prefill_ms_ = 0;
  std::mutex in_use_;
};

// Defines a method of a prompt and the arguments of a generation. `also` are further errors that it raises.
template <class Prompt, class Class, class Out, class Self>
void def_generating(nb::class_<Class>& of, const char* name, const char* prompt,
                    Out (Self::*method)(Prompt, const GenerateArguments&), const std::string& doc,
                    const std::string& also) {
  const std::string text =
      doc +
      "\n\nWhat is not given comes from the model's generation settings. greedy=True excludes temperature, top_k, "
      "top_p and min_p. logit_bias: {id: number added to its logit}. stop: a text, or a list of them, in front of "
      "which the text ends. logprobs=N: log-probabilities of every token and of the N most likely ones in its place. "
      "repeat_guard: ends a text whose tokens go round in a circle when a cycle came so often, 0: never.\n\n"
      "Raises quern.Error: bad_request (an argument out of its range, an id outside the vocabulary), too_long (a "
      "prompt "
      "beyond the context, with both numbers), bad_model (logits that are no numbers), unsupported (a generation "
      "setting "
      "of the model that quern does not carry out, by name; a child of fork()), no_memory" +
      also + ".";
  of.def(
      name,
      [method](Self& self, Prompt prompt_value, int64_t max_tokens, bool greedy, std::optional<double> temperature,
               std::optional<int64_t> top_k, std::optional<double> top_p, std::optional<double> min_p,
               std::optional<double> repetition_penalty, std::optional<double> presence_penalty,
               std::optional<double> frequency_penalty, std::map<int64_t, double> logit_bias, IntArg seed,
               IdsArg stop_ids, StopArg stop, std::optional<int64_t> logprobs, int64_t repeat_guard) {
        return (self.*method)(
            prompt_value, {max_tokens, greedy, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
                           frequency_penalty, std::move(logit_bias), seed, stop_ids, stop, logprobs, repeat_guard});
      },
      nb::arg(prompt), nb::kw_only(), nb::arg("max_tokens") = engine::GenerateOptions().max_tokens,
      nb::arg("greedy") = false, nb::arg("temperature") = nb::none(), nb::arg("top_k") = nb::none(),
      nb::arg("top_p") = nb::none(), nb::arg("min_p") = nb::none(), nb::arg("repetition_penalty") = nb::none(),
      nb::arg("presence_penalty") = nb::none(), nb::arg("frequency_penalty") = nb::none(),
      nb::arg("logit_bias") = std::map<int64_t, double>(), nb::arg("seed") = 0, nb::arg("stop_ids") = nb::none(),
      nb::arg("stop") = nb::none(), nb::arg("logprobs") = nb::none(),
      nb::arg("repeat_guard") = engine::GenerateOptions().repeat_guard, text.c_str());
}

}  // namespace quern::python
