// SPDX-License-Identifier: Apache-2.0
// quern chat: a conversation, a line a message. Answers go to standard output; reasoning, the prompt of the terminal
// and notes go to standard error.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/quote_name.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/sampling.h"
#include "engine/chat.h"
#include "engine/engine.h"

namespace quern::cli {
namespace {

struct ChatOptions {
  std::string model;
  std::optional<std::string> system;
  std::optional<std::string> messages;
  bool think = false;
  bool no_think = false;
  engine::WhenFull when_full = engine::WhenFull::refuse;
  std::optional<int32_t> max_tokens;
  SamplingFlags sampling;
  std::vector<std::string> stop_strings;
  int32_t repeat_guard = engine::GenerateOptions().repeat_guard;
  engine::EngineOptions opening;
  bool stats = false;
  bool json = false;
};

constexpr const char* kCommands =
    "A line that starts with a / and a letter, without another / in its first word, is a command:\n"
    "/think, /no_think  answers with or without reasoning, from the next message on\n"
    "/reset             forget the conversation\n"
    "/save FILE         write its messages to a file, as --messages reads it\n"
    "/help              this list\n"
    "/exit              leave; so do Ctrl-D, and Ctrl-C while no answer is being written\n"
    "Every other line is a message; of // at its start one / is left out.\n"
    "A \\ at the end of a line continues the message on the next one. A terminal keeps at most 4095 bytes of a line;\n"
    "a line as long as that is refused, since its end may be missing.\n";

void note(const std::string& text) { write_message(fmt::format("quern: {}\n", one_line(text))); }

Result<engine::Messages> first_messages(const ChatOptions& options) {
  engine::Messages messages = engine::Messages::array();
  if (options.messages) {
    QUERN_TRY(const std::string text, read_all(*options.messages));
    messages = engine::Messages::parse(text, nullptr, false);
    if (messages.is_discarded()) {
      return bad_request(path_place(*options.messages), "is not JSON, a list of messages is needed");
    }
    if (auto checked = engine::check_messages(messages); !checked.ok()) {
      Error error = std::move(checked).error();
      error.where = fmt::format("{}: {}", path_place(*options.messages), error.where);
      return error;
    }
  }
  if (options.system) messages.push_back({{"role", "system"}, {"content", *options.system}});
  return messages;
}

// One answer on its way out.
class Writer {
 public:
  explicit Writer(bool json) : json_(json), dim_(isatty(STDERR_FILENO) != 0) {}

  Result<void> write(const engine::AnswerParts& parts) {
    if (json_) return {};
    if (!parts.reasoning.empty()) {
      write_message(dim_ ? fmt::format("\x1b[2m{}\x1b[0m", parts.reasoning) : parts.reasoning);
      in_reasoning_ = true;
    }
    if (!parts.answer.empty()) end_reasoning();
    return write_out(parts.answer);
  }
  Result<void> end(const engine::Answer& answer) {
    if (json_) return write_json(describe(answer));
    end_reasoning();
    return write_out("\n");
  }

 private:
  void end_reasoning() {
    if (in_reasoning_) write_message("\n\n");
    in_reasoning_ = false;
  }

  static Json describe(const engine::Answer& answer) {
    const engine::GenerateTimings& t = answer.generation.timings;
    Json json;
    json["text"] = answer.text;
    json["reasoning"] = answer.reasoning;
    json["token_ids"] = answer.generation.token_ids;
    describe_finish(answer.generation, json);
    json["timings"] = {{"prefill_ms", answer.prefill_ms},
                       {"first_token_ms", answer.prefill_ms + t.first_token_ms},
                       {"decode_ms", t.decode_ms},
                       {"decode_ms_per_token", t.decode_ms_per_token()}};
    json["counts"] = {
        {"prompt_tokens", answer.prompt_tokens},     {"kept_tokens", answer.kept_tokens},
        {"computed_tokens", answer.computed_tokens}, {"generated_tokens", answer.generation.token_ids.size()},
        {"decode_tokens", t.decode_tokens},          {"dropped_messages", answer.dropped_messages}};
    return json;
  }

  bool json_;
  bool dim_;
  bool in_reasoning_ = false;
};

class Chat {
 public:
  Chat(const ChatOptions& options, engine::Conversation& conversation, engine::AskOptions ask)
      : options_(options), conversation_(conversation), ask_(std::move(ask)) {}

  // The exit code.
  Result<int> run() {
    while (true) {
      auto read = next_message();
      if (interactive_ && !read.ok() && read.error().code == Errc::too_long) {
        note(read.error().message());
        continue;
      }
      QUERN_TRY(const std::optional<std::string> line, std::move(read));
      if (!line) break;
      Result<bool> goes_on = is_command(*line) ? command(*line) : answer(line->substr(line->starts_with("//") ? 1 : 0));
      if (!goes_on.ok() && goes_on.error().code == Errc::cancelled) {
        note("the answer was stopped");
        if (!interactive_) return kExitInterrupted;
        continue;
      }
      if (!goes_on.ok()) {
        if (!interactive_ || !is_for_the_user(goes_on.error().code)) return std::move(goes_on).error();
        note(goes_on.error().message());
        continue;
      }
      if (!*goes_on) break;
    }
    if (conversation_.answer().generation.finish_reason == engine::FinishReason::cancelled && !interactive_) {
      return kExitInterrupted;
    }
    return 0;
  }

 private:
  // Somebody who sees the message can do something about it.
  static bool is_for_the_user(Errc code) {
    return code == Errc::bad_request || code == Errc::too_long || code == Errc::unsupported || code == Errc::io;
  }

  // Several lines where a \ joins them; empty ones are passed over.
  Result<std::optional<std::string>> next_message() {
    std::string message;
    leave_on_interrupts();
    for (bool more = true; more;) {
      if (prompts_) write_message(message.empty() ? "> " : ". ");
      QUERN_TRY(std::optional<std::string> line, read_line());
      if (!line) {
        if (prompts_) write_message("\n");
        if (message.empty()) return std::optional<std::string>();
        break;
      }
      if (line->ends_with('\r')) line->pop_back();
      more = line->ends_with('\\');
      if (more) line->back() = '\n';
      message += *line;
      if (message.find_first_not_of(" \t\r\n") == std::string::npos) {
        message.clear();
        more = true;
      }
    }
    return std::optional(std::move(message));
  }

  static std::string first_word(const std::string& line) { return line.substr(0, line.find_first_of(kBlanks)); }

  // Paths are messages.
  static bool is_command(const std::string& line) {
    const std::string word = first_word(line);
    const bool letter = word.size() > 1 && ((word[1] >= 'a' && word[1] <= 'z') || (word[1] >= 'A' && word[1] <= 'Z'));
    return letter && word.front() == '/' && word.find('/', 1) == std::string::npos;
  }

  // False: leave.
  Result<bool> command(const std::string& line) {
    const std::string name = first_word(line);
    const size_t begin = std::min(line.find_first_not_of(kBlanks, name.size()), line.size());
    const std::string value = line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin);
    if (!value.empty() && std::ranges::find(kWithoutValue, name) != std::end(kWithoutValue)) {
      return bad_request(name, fmt::format("takes no argument, {} was given", quote_name(value)));
    }
    if (name == "/exit") return false;
    if (name == "/help") {
      write_message(kCommands);
    } else if (name == "/reset") {
      conversation_.reset();
    } else if (name == "/think" || name == "/no_think") {
      if (!conversation_.format().switches_thinking()) {
        return unsupported(name, "the chat template of this model has no switch for reasoning");
      }
      ask_.thinking = name == "/think";
    } else if (name == "/save") {
      if (value.empty()) return bad_request(name, "needs the name of a file");
      const auto bytes = conversation_.messages().dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
      QUERN_TRY_VOID(write_private_file(value, bytes));
      note(fmt::format("{} messages are in {}", conversation_.messages().size(), quote_name(value)));
    } else {
      return bad_request(quote_name(name), "is no command; /help lists them, and a message may begin with //");
    }
    return true;
  }

  Result<bool> answer(const std::string& message) {
    Progress progress;
    ask_.progress = [&](int64_t done, int64_t total) {
      progress.show(fmt::format("prompt: {} of {} tokens", done, total));
    };
    // Who watches may press the key twice, and would lose the conversation.
    ask_.generate.cancel =
        answer_interrupts(interactive_ ? FurtherInterrupts::are_ignored : FurtherInterrupts::end_the_program);
    auto asked = conversation_.ask(message, ask_);
    progress.clear();
    Writer writer(options_.json);
    Result<void> written;
    while (asked.ok() && written.ok() && conversation_.answering()) {
      auto parts = conversation_.next();
      if (parts.ok()) {
        written = writer.write(*parts);
      } else {
        asked = std::move(parts).error();
      }
    }
    if (!interactive_) leave_on_interrupts();
    QUERN_TRY_VOID(std::move(written));
    QUERN_TRY_VOID(std::move(asked));
    QUERN_TRY_VOID(writer.end(conversation_.answer()));
    report(conversation_.answer());
    if (!options_.sampling.seed) ask_.generate.sampling.seed++;
    return interactive_ || conversation_.answer().generation.finish_reason != engine::FinishReason::cancelled;
  }

  void report(const engine::Answer& answer) const {
    const engine::Generation& generation = answer.generation;
    if (answer.dropped_messages > 0) {
      note(fmt::format("the oldest {} messages were dropped, the context was full", answer.dropped_messages));
    }
    report_repetition(generation);
    const auto generated = static_cast<int64_t>(generation.token_ids.size());
    if (generation.finish_reason == engine::FinishReason::length) {
      const bool limit = generated == ask_.generate.max_tokens;
      note(limit ? fmt::format("the answer was ended at {} tokens (-n)", generated)
                 : std::string("the answer was ended, the context is full"));
    }
    if (generation.finish_reason == engine::FinishReason::cancelled) note("the answer was stopped");
    if (!options_.stats) return;
    note(fmt::format("prompt of {} tokens, {} kept, {} computed in {:.0f} ms; answer of {} tokens, {:.1f} ms each",
                     answer.prompt_tokens, answer.kept_tokens, answer.computed_tokens, answer.prefill_ms, generated,
                     generation.timings.decode_ms_per_token()));
  }

  static constexpr const char* kBlanks = " \t\r\n";
  static constexpr std::string_view kWithoutValue[] = {"/exit", "/help", "/reset", "/think", "/no_think"};

  const ChatOptions& options_;
  engine::Conversation& conversation_;
  engine::AskOptions ask_;
  bool interactive_ = isatty(STDIN_FILENO) != 0;
  bool prompts_ = interactive_ && isatty(STDERR_FILENO) != 0;
};

Result<int> chat(const ChatOptions& options) {
  engine::ConversationOptions conversation_options;
  conversation_options.when_full = options.when_full;
  QUERN_TRY(conversation_options.messages, first_messages(options));
  Progress progress;
  progress.show(fmt::format("loading {}", options.model));
  QUERN_TRY(const auto engine, engine::Engine::open(options.model, options.opening));
  progress.clear();
  engine::AskOptions ask;
  QUERN_TRY(ask.generate.sampling, choose_sampling(options.sampling, *engine));
  ask.generate.max_tokens = options.max_tokens.value_or(engine->info().context_tokens);
  ask.generate.stop_strings = options.stop_strings;
  ask.generate.repeat_guard = options.repeat_guard;
  if (options.think || options.no_think) ask.thinking = options.think;
  QUERN_TRY(const auto conversation, engine::Conversation::start(engine, std::move(conversation_options)));
  return Chat(options, *conversation, std::move(ask)).run();
}

}  // namespace

void add_chat(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand(
      "chat", "A conversation: a line a message, answers to standard output, everything else to standard error");
  command->add_option("MODEL", options->model, "The model's folder")->required();
  auto* messages =
      command->add_option("--messages", options->messages,
                          "A JSON list of messages that the conversation goes on from, as /save writes it");
  messages->type_name("FILE");
  command->add_option("--system", options->system, "What the model is told before everything else")
      ->type_name("TEXT")
      ->excludes(messages);
  auto* think = command->add_flag("--think", options->think, "Answers with reasoning");
  command->add_flag("--no-think", options->no_think, "Answers without reasoning")->excludes(think);
  command
      ->add_option_function<std::string>(
          "--when-full",
          [options](const std::string& word) {
            if (word != "refuse" && word != "drop-oldest") refuse_word("--when-full", word, "refuse and drop-oldest");
            options->when_full = word == "refuse" ? engine::WhenFull::refuse : engine::WhenFull::drop_oldest;
          },
          "What becomes of a conversation that the context cannot hold: refuse the message, or drop-oldest exchanges")
      ->type_name("RULE");
  add_whole<int32_t>(*command, "-n,--max-tokens", options->max_tokens,
                     "Tokens of an answer at most; what the context holds without it", 1);
  add_sampling(*command, options->sampling);
  add_stop(*command, options->stop_strings);
  add_repeat_guard(*command, options->repeat_guard);
  add_whole<int32_t>(*command, "-t,--threads", options->opening.threads,
                     "Compute threads; the usable physical cores without it", 1, engine::kMaxThreads);
  add_opening(*command, options->opening);
  add_context(*command, options->opening.context_tokens);
  command->add_flag("--stats", options->stats, "After every answer: what was computed for it, and how fast");
  command->add_flag("--json", options->json, "One JSON object a line for every answer, instead of the text");
  command->footer(kCommands);
  command->callback([options, &chosen] { chosen = [options] { return chat(*options); }; });
}

}  // namespace quern::cli
