// SPDX-License-Identifier: Apache-2.0
// Owns the chat template of a model: which one a folder holds, and conversations as the prompt it makes of them, byte
// for byte what Hugging Face's apply_chat_template returns. Does not own the template language (text/jinja).
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quern::text {

struct ChatOptions {
  // Opens the answer of the assistant at the end of the prompt.
  bool add_generation_prompt = false;
  // Absent leaves it to the template.
  std::optional<bool> enable_thinking;
  // Whatever else the template can name ("preserve_thinking", "documents"): an object. Goes before the special tokens
  // of the model.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
};

// A handle to immutable templates: cheap to copy, usable from several threads at once.
class ChatTemplate {
 public:
  // Errors: bad_model (the template is broken), unsupported (names the filter, function, tag ... that quern lacks);
  // `where` ends in "line N".
  static Result<ChatTemplate> parse(std::string_view source);

  // The template of a folder: chat_template.jinja, else the entry chat_template of tokenizer_config.json (a text, or a
  // list of named ones), else chat_template.json. One named "tool_use", also in additional_chat_templates/, is taken
  // for conversations with tools. The special tokens of tokenizer_config.json can be named by templates. Errors: those
  // of parse, bad_model (no template, or a file that cannot hold), io.
  static Result<ChatTemplate> load(const std::filesystem::path& folder);

  // `messages` is a list of objects as the OpenAI interface has them, at least one; `tools` a list of JSON schemas, or
  // null for none. Errors: bad_request (not of that form, not UTF-8, the template refuses the conversation, or it does
  // with it what is an error in Python or what quern lacks; `where` then ends in "line N").
  Result<std::string> render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                             const ChatOptions& options) const;

  // Whether the template for ordinary conversations has the name anywhere in its text, as in "enable_thinking" or
  // "reasoning_content": one that has not cannot depend on it.
  bool names(std::string_view name) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const Parts> parts_;
};

}  // namespace quern::text
