// SPDX-License-Identifier: Apache-2.0
// The session is a cache of the prompt: every turn renders all messages anew, goes back to the end of the longest
// common prefix of ids, and computes the rest. What a template does with old reasoning needs no knowledge here.
#include "engine/chat.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "engine/no_memory.h"
#include "model/forward_call.h"

namespace quern::engine {
namespace {

bool has_role(const Messages& message, std::string_view role) {
  const auto found = message.find("role");
  return found != message.end() && found->is_string() && found->get_ref<const std::string&>() == role;
}

std::string article_of(const Messages& json) {
  const std::string_view type = json.type_name();
  return fmt::format("{} {}", type == "object" || type == "array" ? "an" : "a", type);
}

// Where what was said begins.
ptrdiff_t behind_system(const Messages& messages) {
  const auto said = [](const Messages& message) { return !has_role(message, "system"); };
  return std::find_if(messages.begin(), messages.end(), said) - messages.begin();
}

// False where only the last exchange is left.
bool drop_oldest_exchange(Messages& messages) {
  const auto first = messages.begin() + behind_system(messages);
  if (first == messages.end()) return false;
  const auto end = std::find_if(first + 1, messages.end(), [](const Messages& m) { return has_role(m, "user"); });
  if (end == messages.end()) return false;
  messages.erase(first, end);
  return true;
}

int64_t common_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

Result<void> check_messages(const Messages& messages) {
  if (!messages.is_array()) {
    return bad_request("messages", fmt::format("are {}, a list is needed", article_of(messages)));
  }
  for (size_t i = 0; i < messages.size(); i++) {
    const Messages& message = messages[i];
    const std::string place = fmt::format("messages[{}]", i);
    if (!message.is_object())
      return bad_request(place, fmt::format("is {}, a message is an object", article_of(message)));
    if (const auto role = message.find("role"); role == message.end() || !role->is_string()) {
      return bad_request(place, "has no role, a text such as \"user\" is needed");
    }
    if (!message.contains("content") && !message.contains("tool_calls")) return bad_request(place, "has no content");
  }
  return {};
}

Result<ChatFormat> ChatFormat::load(std::shared_ptr<const Engine> engine) {
  QUERN_TRY(auto chat_template, text::ChatTemplate::load(engine->info().folder));
  return ChatFormat(std::move(engine), std::move(chat_template));
}

Result<ChatPrompt> ChatFormat::prompt(const Messages& messages, std::optional<bool> thinking) const {
  if (thinking && !switches_thinking()) {
    return unsupported("thinking", "the chat template of this model has no switch for it (enable_thinking)");
  }
  text::ChatOptions options;
  options.add_generation_prompt = true;
  options.enable_thinking = thinking;
  QUERN_TRY(const std::string text, template_.render(messages, nullptr, options));
  options.add_generation_prompt = false;
  QUERN_TRY(const std::string lasting, template_.render(messages, nullptr, options));
  ChatPrompt prompt;
  QUERN_TRY(prompt.ids, engine_->encode(text));
  QUERN_TRY(const auto lasting_ids, engine_->encode(lasting));
  prompt.lasting_tokens = common_tokens(prompt.ids, lasting_ids);
  if (prompt.ids.empty()) return bad_request("prompt", "has no tokens, at least one is needed");
  prompt.opens_reasoning = text::ReasoningSplit::is_open_at_end_of(text);
  return prompt;
}

Result<int64_t> hold_prompt(Session& session, const ChatPrompt& prompt, const AppendOptions& options) {
  const std::span<const int32_t> ids(prompt.ids);
  const int64_t kept = common_tokens(ids, session.tokens());
  QUERN_TRY_VOID(session.rewind(kept));
  session.mark(prompt.lasting_tokens);
  QUERN_TRY_VOID(session.append(ids.subspan(static_cast<size_t>(kept)), options));
  return kept;
}

Result<std::unique_ptr<Conversation>> Conversation::start(std::shared_ptr<const Engine> engine,
                                                          ConversationOptions options) {
  return or_no_memory("conversation", [&]() -> Result<std::unique_ptr<Conversation>> {
    QUERN_TRY_VOID(check_messages(options.messages));
    QUERN_TRY(ChatFormat format, ChatFormat::load(engine));
    std::unique_ptr<Conversation> conversation(new Conversation(std::move(format)));
    QUERN_TRY(conversation->session_, engine->new_session());
    conversation->messages_ = std::move(options.messages);
    conversation->when_full_ = options.when_full;
    return conversation;
  });
}

Result<void> Conversation::ask(std::string_view text, const AskOptions& options) {
  stop();
  return or_no_memory("conversation", [&]() -> Result<void> {
    Messages messages = messages_;
    messages.push_back({{"role", "user"}, {"content", text}});
    answer_ = {};
    QUERN_TRY(const ChatPrompt prompt, fit(messages, options));
    QUERN_TRY_VOID(compute(prompt, options));
    QUERN_TRY(Generator generator, Generator::start(*session_, options.generate));
    generator_ = std::make_unique<Generator>(std::move(generator));
    split_ = text::ReasoningSplit(prompt.opens_reasoning);
    messages_ = std::move(messages);
    return {};
  });
}

// The prompt of `messages`, from which exchanges are dropped where that is the rule. There must be room for a token of
// the answer; by the rule of dropping, for the whole answer or a quarter of the context.
Result<ChatPrompt> Conversation::fit(Messages& messages, const AskOptions& options) {
  QUERN_TRY(ChatPrompt prompt, format_.prompt(messages, options.thinking));
  const int64_t context = format_.engine()->info().context_tokens;
  const auto tokens = [&] { return static_cast<int64_t>(prompt.ids.size()); };
  if (when_full_ == WhenFull::drop_oldest &&
      tokens() + std::min<int64_t>(options.generate.max_tokens, context / 4) > context) {
    const size_t before = messages.size();
    while (tokens() > context / 2 && drop_oldest_exchange(messages)) {
      QUERN_TRY(prompt, format_.prompt(messages, options.thinking));
    }
    answer_.dropped_messages = static_cast<int64_t>(before - messages.size());
  }
  if (tokens() > context) {
    return Error{Errc::too_long,
                 fmt::format("has {} tokens with this message, {}", tokens(),
                             model::what_context_holds(format_.engine()->info())),
                 "conversation"};
  }
  return prompt;
}

Result<void> Conversation::compute(const ChatPrompt& prompt, const AskOptions& options) {
  const auto computed = [&] { return static_cast<int64_t>(session_->counters().tokens); };
  const int64_t computed_before = computed(), start = now_ns();
  AppendOptions append;
  append.progress = options.progress;
  append.cancel = options.generate.cancel;
  QUERN_TRY(answer_.kept_tokens, hold_prompt(*session_, prompt, append));
  answer_.prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  answer_.computed_tokens = computed() - computed_before;
  answer_.prefill_ms = ms_since(start);
  return {};
}

Result<AnswerParts> Conversation::next() {
  QUERN_CHECK(answering(), "an answer is under way");
  return or_no_memory("conversation", [&]() -> Result<AnswerParts> {
    auto text = generator_->next();
    if (!text.ok()) {
      generator_.reset();
      messages_.erase(messages_.size() - 1);
      return std::move(text).error();
    }
    AnswerParts parts = split_.push(*text);
    if (generator_->ended()) {
      const AnswerParts rest = split_.finish();
      parts.reasoning += rest.reasoning;
      parts.answer += rest.answer;
    }
    take(parts);
    if (generator_->ended()) finish();
    return parts;
  });
}

void Conversation::stop() {
  if (!answering()) return;
  take(split_.push(generator_->cancel()));
  take(split_.finish());
  finish();
}

void Conversation::take(const AnswerParts& parts) {
  answer_.reasoning += parts.reasoning;
  answer_.text += parts.answer;
}

void Conversation::finish() {
  answer_.generation = generator_->take_result();
  generator_.reset();
  if (answer_.generation.token_ids.empty()) {
    messages_.erase(messages_.size() - 1);
    return;
  }
  Messages message = {{"role", "assistant"}};
  if (format_.keeps_reasoning_apart()) {
    message["content"] = answer_.text;
    if (!answer_.reasoning.empty()) message["reasoning_content"] = answer_.reasoning;
  } else {
    message["content"] = answer_.generation.text;
  }
  messages_.push_back(std::move(message));
}

void Conversation::reset() {
  stop();
  messages_.erase(messages_.begin() + behind_system(messages_), messages_.end());
}

}  // namespace quern::engine
