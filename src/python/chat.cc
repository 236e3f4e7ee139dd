// SPDX-License-Identifier: Apache-2.0
// quern.Chat: messages in, answers out. Messages cross the border as JSON text.
#include "python/chat.h"

#include <fmt/format.h>
#include <nanobind/stl/unique_ptr.h>

#include "base/quote_name.h"

namespace quern::python {
namespace {

nb::object json_module() { return nb::module_::import_("json"); }

engine::Messages messages_in(nb::handle object) {
  if (object.is_none()) return engine::Messages::array();
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) raise_type("messages", "a list of dicts", object);
  for (Py_ssize_t i = 0; i < PySequence_Size(object.ptr()); i++) {
    const nb::object message = nb::steal(PySequence_GetItem(object.ptr(), i));
    if (!PyDict_Check(message.ptr())) raise_type(fmt::format("messages[{}]", i), "a dict", message);
  }
  try {
    const nb::object text = json_module().attr("dumps")(object, nb::arg("allow_nan") = false);
    return engine::Messages::parse(text_in(text, "messages"), nullptr, false);
  } catch (nb::python_error& error) {
    raise(bad_request("messages", fmt::format("have no JSON form: {}", nb::str(error.value()).c_str())));
  }
}

engine::WhenFull when_full_in(const std::string& name) {
  if (name == "refuse") return engine::WhenFull::refuse;
  if (name == "drop_oldest") return engine::WhenFull::drop_oldest;
  raise(bad_request("when_full", fmt::format("is {}, allowed are refuse, drop_oldest", quote_name(name))));
}

}  // namespace

std::unique_ptr<PyChat> PyChat::start(std::shared_ptr<const engine::Engine> engine, nb::handle messages,
                                      nb::handle system, const std::string& when_full) {
  engine::ConversationOptions options;
  options.messages = messages_in(messages);
  options.when_full = when_full_in(when_full);
  if (!system.is_none()) {
    if (!options.messages.empty()) raise(bad_request("system", "is part of messages where those are given"));
    options.messages.push_back({{"role", "system"}, {"content", text_in(system, "system")}});
  }
  auto chat = std::make_unique<PyChat>();
  chat->conversation_ = take(engine::Conversation::start(std::move(engine), std::move(options)));
  return chat;
}

std::unique_lock<std::mutex> PyChat::hold() const { return hold_alone(in_use_, "chat"); }

void PyChat::begin(nb::handle text, const GenerateArguments& arguments, Interruptions& interruptions) {
  const std::string message = text_in(text, "text");
  engine::AskOptions options;
  options.generate = options_of(*conversation_->format().engine(), arguments);
  options.generate.cancel = interruptions.flag();
  options.generate.progress = interruptions.append_options().progress;
  options.thinking = thinking;
  options.progress = interruptions.append_options().progress;
  turn_++;
  try {
    interruptions.run([&] { take(conversation_->ask(message, options)); });
  } catch (...) {
    conversation_->stop();  // a signal came behind the prompt
    throw;
  }
}

PyAnswer PyChat::ask(TextArg text, const GenerateArguments& arguments) {
  const auto held = hold();
  Interruptions interruptions;
  begin(text, arguments, interruptions);
  interruptions.run([&] {
    while (conversation_->answering()) {
      take(conversation_->next());
      interruptions.poll();
    }
  });
  return answer();
}

std::unique_ptr<PyChatStream> PyChat::stream(TextArg text, const GenerateArguments& arguments) {
  const auto held = hold();
  auto interruptions = std::make_unique<Interruptions>();
  begin(text, arguments, *interruptions);
  return std::make_unique<PyChatStream>(nb::find(*this), std::move(interruptions));
}

PyAnswer PyChat::answer() const {
  const engine::Answer& answer = conversation_->answer();
  PyAnswer result;
  static_cast<PyGeneration&>(result) =
      generation_out(*conversation_->format().engine(), answer.generation, answer.prefill_ms);
  result.text = answer.text;
  result.reasoning = answer.reasoning;
  result.prompt_tokens = answer.prompt_tokens;
  result.kept_tokens = answer.kept_tokens;
  result.computed_tokens = answer.computed_tokens;
  result.dropped_messages = answer.dropped_messages;
  return result;
}

void PyChat::reset() {
  const auto held = hold();
  conversation_->reset();
}

nb::object PyChat::messages() const {
  const auto held = hold();
  const std::string text = conversation_->messages().dump();
  return json_module().attr("loads")(nb::str(text.data(), text.size()));
}

PyChatStream::PyChatStream(nb::object chat, std::unique_ptr<Interruptions> interruptions)
    : owner_(std::move(chat)),
      chat_(nb::inst_ptr<PyChat>(owner_)),
      turn_(chat_->turn_),
      interruptions_(std::move(interruptions)) {}

// The flag goes away with the stream.
PyChatStream::~PyChatStream() {
  const std::unique_lock held(chat_->in_use_, std::try_to_lock);
  if (held && is_current()) chat_->conversation_->stop();
}

bool PyChatStream::is_current() const { return chat_->turn_ == turn_; }

nb::tuple PyChatStream::next() {
  const auto held = chat_->hold();
  engine::AnswerParts parts;
  interruptions_->run([&] {
    while (is_current() && chat_->conversation_->answering() && parts.reasoning.empty() && parts.answer.empty()) {
      parts = take(chat_->conversation_->next());
      interruptions_->poll();
    }
  });
  if (parts.reasoning.empty() && parts.answer.empty()) throw nb::stop_iteration();
  return nb::make_tuple(parts.reasoning, parts.answer);
}

nb::object PyChatStream::result() const {
  const auto held = chat_->hold();
  if (!is_current() || chat_->conversation_->answering()) return nb::none();
  return nb::cast(chat_->answer());
}

void bind_chat(nb::module_& m) {
  nb::class_<PyAnswer, PyGeneration>(m, "Answer",
                                     "What Chat.ask returns: text is the answer without the reasoning, token_ids are "
                                     "those of both.")
      .def_ro("reasoning", &PyAnswer::reasoning, "What stood between <think> and </think> at the start.")
      .def_ro("prompt_tokens", &PyAnswer::prompt_tokens, "Tokens of the conversation up to the answer.")
      .def_ro("kept_tokens", &PyAnswer::kept_tokens, "How many of these were in the memory of the model already.")
      .def_ro("computed_tokens", &PyAnswer::computed_tokens,
              "Tokens that the model ran over for the prompt: those not kept, and the last one of the answer before.")
      .def_ro("dropped_messages", &PyAnswer::dropped_messages,
              "Messages that were dropped from the conversation because the context was full.");
  nb::class_<PyChatStream>(m, "ChatStream",
                           "What Chat.stream returns: an iterator over pairs (reasoning, text), one of which is mostly "
                           "empty, as they become certain, in whole characters.")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> ChatStream"))
      .def("__next__", &PyChatStream::next, nb::sig("def __next__(self) -> tuple[str, str]"))
      .def("cancel", &PyChatStream::cancel, "Ends the answer after the token that is being computed. From any thread.")
      .def_prop_ro("result", &PyChatStream::result, nb::for_getter(nb::sig("def result(self) -> Answer | None")),
                   "The Answer once it has ended, None before.");
  const std::string also =
      "; further bad_request (messages that the template refuses; a Chat in use by another thread) and unsupported "
      "(thinking where the template has no switch for it)";
  auto chat =
      nb::class_<PyChat>(m, "Chat",
                         "A conversation, made by LLM.new_chat. What the model computed for earlier messages is "
                         "kept; only new tokens are computed. For one thread at once.");
  chat.def("reset", &PyChat::reset,
           "Forgets all messages but system messages at the start. Raises quern.Error: bad_request (in use by another "
           "thread).")
      .def_prop_ro("messages", &PyChat::messages, nb::for_getter(nb::sig("def messages(self) -> list[dict]")),
                   "A list of dicts: role, content, and reasoning_content where the model's template reads it.")
      .def_rw("thinking", &PyChat::thinking,
              "True: answers with reasoning, False: without, None: as the template has it. Where the template has no "
              "switch for it, asking raises quern.Error.");
  def_generating<TextArg>(chat, "ask", "text", &PyChat::ask, "Says something to the model and returns its Answer.",
                          also);
  def_generating<TextArg>(chat, "stream", "text", &PyChat::stream,
                          "The same, piece by piece. An answer that is not read to its end is stopped there.", also);
}

}  // namespace quern::python
