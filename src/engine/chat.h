// SPDX-License-Identifier: Apache-2.0
// Owns a conversation: its messages, their prompt by the model's own chat template, and one session in which as much of
// that prompt stays computed as the next one has in common with it. Does not own terminals, files or commands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/generator.h"
#include "engine/session.h"
#include "text/chat_template.h"
#include "text/reasoning_split.h"

namespace quern::engine {

// A list of {"role", "content", ...} as the OpenAI interface has them.
using Messages = nlohmann::ordered_json;

struct ChatPrompt {
  std::vector<int32_t> ids;
  // The first ones are what later prompts begin with, too: all but the opening of the answer.
  int64_t lasting_tokens = 0;
  bool opens_reasoning = false;  // the answer begins within reasoning
};

// Errors: bad_request, with the place in the list, for what no template can write: anything but a list of objects with
// a role, and a message without content that calls no tool.
Result<void> check_messages(const Messages& messages);

// How a model wants conversations to be written. Immutable; usable from several threads at once.
class ChatFormat {
 public:
  // Errors: those of text::ChatTemplate::load().
  static Result<ChatFormat> load(std::shared_ptr<const Engine> engine);

  // The prompt whose continuation answers the last message. Errors: those of text::ChatTemplate::render() and
  // Engine::encode(); unsupported (`thinking` given to a template without that switch).
  Result<ChatPrompt> prompt(const Messages& messages, std::optional<bool> thinking) const;
  bool switches_thinking() const { return template_.names("enable_thinking"); }
  // Whether reasoning of earlier answers has a place of its own in messages, "reasoning_content".
  bool keeps_reasoning_apart() const { return template_.names("reasoning_content"); }
  const std::shared_ptr<const Engine>& engine() const { return engine_; }

 private:
  ChatFormat(std::shared_ptr<const Engine> engine, text::ChatTemplate chat_template)
      : engine_(std::move(engine)), template_(std::move(chat_template)) {}

  std::shared_ptr<const Engine> engine_;
  text::ChatTemplate template_;
};

// Makes the session hold this prompt: goes back to the end of what both begin with and computes the rest. Gives the
// number of tokens that it had. Errors: those of Session::append(); the session then holds what both begin with.
Result<int64_t> hold_prompt(Session& session, const ChatPrompt& prompt, const AppendOptions& options);

// What becomes of a conversation that the context cannot hold: the message is refused, or the oldest exchanges (a
// message of the user and what follows it) are dropped until it takes half of the context; system messages at the
// start stay.
enum class WhenFull : uint8_t { refuse, drop_oldest };

struct ConversationOptions {
  Messages messages = Messages::array();  // what was said before
  WhenFull when_full = WhenFull::refuse;
};

struct AskOptions {
  GenerateOptions generate;                                   // without on_token; its cancel also ends the prompt
  std::optional<bool> thinking;                               // absent leaves it to the template
  std::function<void(int64_t done, int64_t total)> progress;  // of the prompt; may be empty
};

using AnswerParts = text::ReasoningSplit::Parts;

struct Answer {
  std::string reasoning, text;  // white space around reasoning is left out
  Generation generation;        // of both, as generated
  int64_t prompt_tokens = 0;    // the whole conversation up to the answer
  int64_t kept_tokens = 0;      // of these, the first ones, which the session already had
  // That the model ran over for the prompt: those not kept, and the last token of the answer before, which nothing
  // had followed yet.
  int64_t computed_tokens = 0;
  int64_t dropped_messages = 0;  // see WhenFull
  double prefill_ms = 0;
};

// The answers are the same as those of a new conversation with the same messages (of qwen4_exp but for rounding): the
// session only saves work. Tokens of an answer are kept where the template writes it as it was generated and the
// tokenizer would choose the same tokens for it. For one thread at once.
class Conversation {
 public:
  // Errors: those of ChatFormat::load() and check_messages(); no_memory.
  static Result<std::unique_ptr<Conversation>> start(std::shared_ptr<const Engine> engine, ConversationOptions options);

  // Says something to the model and computes the prompt; next() then gives the answer. An answer under way is ended
  // before. Errors, with nothing said: bad_request, unsupported (see ChatFormat::prompt()), too_long (with both
  // numbers), cancelled, no_memory, what the model reports.
  Result<void> ask(std::string_view text, const AskOptions& options);
  bool answering() const { return generator_ != nullptr; }
  // One more token: what became certain of reasoning and answer by it, maybe nothing, in whole characters. With the
  // last one the answer becomes a message, and answering() false. Errors: those of Generator::next(); nothing was said
  // then. Precondition: answering().
  Result<AnswerParts> next();
  // Ends the answer as cancelled; what there is of it becomes a message. Without any token nothing was said.
  void stop();
  // The last one; complete when not answering().
  const Answer& answer() const { return answer_; }

  const Messages& messages() const { return messages_; }
  // Forgets all messages but system messages at the start.
  void reset();

  const ChatFormat& format() const { return format_; }
  const Session& session() const { return *session_; }

 private:
  explicit Conversation(ChatFormat format) : format_(std::move(format)) {}
  Result<ChatPrompt> fit(Messages& messages, const AskOptions& options);
  Result<void> compute(const ChatPrompt& prompt, const AskOptions& options);
  void take(const AnswerParts& parts);
  void finish();

  ChatFormat format_;
  WhenFull when_full_ = WhenFull::refuse;
  Messages messages_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Generator> generator_;  // while answering
  text::ReasoningSplit split_{false};
  Answer answer_;
};

}  // namespace quern::engine
