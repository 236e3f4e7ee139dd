// SPDX-License-Identifier: Apache-2.0
// Renders chat templates in bulk for tests/oracle: one JSON object per line in, one per line out. Not a product
// command.
//   {"template":T or "folder":F, "messages":[...], "tools":[...] or absent, "add_generation_prompt":B,
//    "enable_thinking":B or absent, "variables":{...}}  -> {"text":T}
// Any failure is {"error":{"code","what","where"}, "loading":B}: whether loading the template failed, or rendering.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template.h"

namespace {

using nlohmann::ordered_json;
using quern::text::ChatTemplate;

ordered_json error_line(const quern::Error& error, bool loading) {
  return {{"error", {{"code", quern::errc_name(error.code)}, {"what", error.what}, {"where", error.where}}},
          {"loading", loading}};
}

ordered_json answer(const ordered_json& request) {
  const auto chat = request.contains("folder") ? ChatTemplate::load(request.at("folder").get<std::string>())
                                               : ChatTemplate::parse(request.at("template").get<std::string>());
  if (!chat.ok()) return error_line(chat.error(), true);
  quern::text::ChatOptions options;
  options.add_generation_prompt = request.value("add_generation_prompt", false);
  if (request.contains("enable_thinking")) options.enable_thinking = request["enable_thinking"].get<bool>();
  options.variables = request.value("variables", ordered_json::object());
  const auto text = chat->render(request.at("messages"), request.value("tools", ordered_json()), options);
  return text.ok() ? ordered_json{{"text", *text}} : error_line(text.error(), false);
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(ordered_json::parse(line)).dump() << '\n';
  return 0;
}
