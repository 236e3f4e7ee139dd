// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <fmt/format.h>

#include <map>

#include "base/model_part.h"
#include "base/quote_name.h"
#include "text/jinja/builtins.h"
#include "text/jinja/template.h"
#include "text/model_file.h"

namespace quern::text {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Where a template stands, and its source.
struct Source {
  std::string where, text;
};
using Sources = std::map<std::string, Source>;  // by the name of the template

struct Named {
  Source source;
  jinja::Template parsed;
};

Result<Named> parse_source(const Source& source) {
  Result<jinja::Template> parsed = jinja::Template::parse(source.text);
  if (!parsed.ok()) return in_file(std::move(parsed).error(), source.where);
  return Named{source, std::move(parsed).value()};
}

Result<void> add_file(const std::filesystem::path& path, const std::string& name, Sources& sources) {
  if (!has_part(path)) return {};
  QUERN_TRY(const FileMap map, open_bounded(path));
  sources[name] = {path.string(), std::string(text_of_map(map))};
  return {};
}

// The entry "chat_template": a text, or a list of {"name", "template"}.
Result<void> add_entry(const json& config, const std::string& file, Sources& sources) {
  const auto entry = config.find("chat_template");
  if (entry == config.end() || entry->is_null()) return {};
  const std::string where = file + ": chat_template";
  if (entry->is_string()) {
    sources["default"] = {where, entry->get<std::string>()};
    return {};
  }
  if (!entry->is_array()) return bad_model(where, "a string or a list of named templates is needed");
  for (const json& named : *entry) {
    const bool complete = named.is_object() && named.contains("name") && named["name"].is_string() &&
                          named.contains("template") && named["template"].is_string();
    if (!complete) return bad_model(where, "a named template needs the strings 'name' and 'template'");
    const auto name = named["name"].get<std::string>();
    sources[name] = {fmt::format("{}, {}", where, quote_name(name)), named["template"].get<std::string>()};
  }
  return {};
}

// Entries like "eos_token", and those of "extra_special_tokens" where that is an object.
Result<ordered_json> special_tokens(const json& config) {
  ordered_json tokens = ordered_json::object();
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token") || value.is_boolean()) continue;
    QUERN_TRY(const std::optional<std::string> text, token_text(config, key));
    if (text) tokens[key] = *text;
  }
  const auto extra = config.find("extra_special_tokens");
  if (extra == config.end() || !extra->is_object()) return tokens;
  for (const auto& [key, value] : extra->items()) {
    QUERN_TRY(const std::optional<std::string> text, token_text(*extra, key));
    if (text) tokens[key] = *text;
  }
  return tokens;
}

// A JSON file of the folder, or an empty object where there is none.
Result<json> optional_config(const std::filesystem::path& path) {
  if (!has_part(path)) return json::object();
  QUERN_TRY(const FileMap map, open_bounded(path));
  Result<json> config = parse_json_object(text_of_map(map));
  if (!config.ok()) return in_file(std::move(config).error(), path.string());
  return config;
}

}  // namespace

struct ChatTemplate::Parts {
  Named ordinary;
  std::optional<Named> for_tools;
  ordered_json tokens = ordered_json::object();
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  QUERN_TRY(Named ordinary, parse_source({"chat template", std::string(source)}));
  return ChatTemplate(std::make_shared<const Parts>(Parts{std::move(ordinary), std::nullopt}));
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  QUERN_TRY_VOID(check_folder(folder));
  Sources sources;
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  QUERN_TRY(const json config, optional_config(config_path));
  // The template of a processor, then that of the tokenizer, then files of their own: later ones go before.
  const std::filesystem::path processor_path = folder / "chat_template.json";
  QUERN_TRY(const json processor, optional_config(processor_path));
  QUERN_TRY_VOID(add_entry(processor, processor_path.string(), sources));
  QUERN_TRY_VOID(add_entry(config, config_path.string(), sources));
  const std::filesystem::path file = folder / "chat_template.jinja";
  if (has_part(file)) sources.clear();
  QUERN_TRY_VOID(add_file(file, "default", sources));
  QUERN_TRY_VOID(add_file(folder / "additional_chat_templates" / "tool_use.jinja", "tool_use", sources));

  if (!sources.contains("default")) {
    return bad_model(folder.string(),
                     "there is no chat template: neither chat_template.jinja nor an entry of tokenizer_config.json");
  }
  Result<ordered_json> tokens = special_tokens(config);
  if (!tokens.ok()) return in_file(std::move(tokens).error(), config_path.string());
  QUERN_TRY(Named ordinary, parse_source(sources["default"]));
  Parts parts{std::move(ordinary), std::nullopt, std::move(tokens).value()};
  if (const auto for_tools = sources.find("tool_use"); for_tools != sources.end()) {
    QUERN_TRY(parts.for_tools, parse_source(for_tools->second));
  }
  return ChatTemplate(std::make_shared<const Parts>(std::move(parts)));
}

namespace {

Result<void> check_form(const ordered_json& messages, const ordered_json& tools, const ordered_json& variables) {
  if (!messages.is_array() || messages.empty())
    return bad_request("messages", "a list of at least one message is needed");
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) return bad_request(fmt::format("messages[{}]", i), "a message is an object");
  }
  if (!tools.is_null() && !tools.is_array()) return bad_request("tools", "a list of tools, or null, is needed");
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) return bad_request(fmt::format("tools[{}]", i), "a tool is an object");
  }
  if (!variables.is_object()) return bad_request("variables", "an object is needed");
  for (const auto& [name, value] : variables.items()) {
    if (name == "namespace" || jinja::find_function(name) != nullptr) {
      return bad_request("variables",
                         fmt::format("{} is the name of a function of the template language", quote_name(name)));
    }
    if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
      return bad_request("variables", fmt::format("{} is given in its own place", quote_name(name)));
    }
  }
  return {};
}

}  // namespace

Result<std::string> ChatTemplate::render(const ordered_json& messages, const ordered_json& tools,
                                         const ChatOptions& options) const {
  QUERN_TRY_VOID(check_form(messages, tools, options.variables));
  jinja::Mapping variables;
  size_t bytes = 0;
  const auto give = [&](const std::string& name, const ordered_json& json) -> Result<void> {
    Result<jinja::Value> value = jinja::from_json(json, bytes);
    if (!value.ok()) return bad_request(name, value.error().what);
    variables.set(name, std::move(value).value());
    return {};
  };
  QUERN_TRY_VOID(give("messages", messages));
  QUERN_TRY_VOID(give("tools", tools));
  QUERN_TRY_VOID(give("documents", nullptr));
  QUERN_TRY_VOID(give("add_generation_prompt", options.add_generation_prompt));
  if (options.enable_thinking) {
    QUERN_TRY_VOID(give("enable_thinking", *options.enable_thinking));
  }
  for (const auto& [name, token] : parts_->tokens.items()) QUERN_TRY_VOID(give(name, token));
  for (const auto& [name, value] : options.variables.items()) QUERN_TRY_VOID(give(name, value));

  const Named& named = !tools.is_null() && parts_->for_tools ? *parts_->for_tools : parts_->ordinary;
  Result<std::string> text = named.parsed.render(variables, bytes);
  if (!text.ok()) return in_file(std::move(text).error(), named.source.where);
  return text;
}

bool ChatTemplate::names(std::string_view name) const {
  return parts_->ordinary.source.text.find(name) != std::string::npos;
}

}  // namespace quern::text
