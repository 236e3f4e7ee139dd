// SPDX-License-Identifier: Apache-2.0
// Owns the face of conversations in Python. Does not own conversations (engine/chat.h).
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "engine/chat.h"
#include "python/generation.h"

namespace quern::python {

struct PyAnswer : PyGeneration {
  std::string reasoning;
  int64_t prompt_tokens = 0, kept_tokens = 0, computed_tokens = 0, dropped_messages = 0;
};

class PyChatStream;

class PyChat {
 public:
  static std::unique_ptr<PyChat> start(std::shared_ptr<const engine::Engine> engine, nb::handle messages,
                                       nb::handle system, const std::string& when_full);

  PyAnswer ask(TextArg text, const GenerateArguments& arguments);
  std::unique_ptr<PyChatStream> stream(TextArg text, const GenerateArguments& arguments);
  void reset();
  nb::object messages() const;

  std::optional<bool> thinking;

 private:
  friend class PyChatStream;
  std::unique_lock<std::mutex> hold() const;
  void begin(nb::handle text, const GenerateArguments& arguments, Interruptions& interruptions);
  PyAnswer answer() const;

  std::unique_ptr<engine::Conversation> conversation_;
  int64_t turn_ = 0;  // counts questions
  mutable std::mutex in_use_;
};

// An answer that its iterator carries out. Another question to the same chat ends it.
class PyChatStream {
 public:
  PyChatStream(nb::object chat, std::unique_ptr<Interruptions> interruptions);
  ~PyChatStream();

  nb::tuple next();
  void cancel() { interruptions_->raise_flag(); }
  nb::object result() const;

 private:
  bool is_current() const;

  nb::object owner_;  // keeps chat_ alive
  PyChat* chat_;
  int64_t turn_;
  std::unique_ptr<Interruptions> interruptions_;
};

}  // namespace quern::python
