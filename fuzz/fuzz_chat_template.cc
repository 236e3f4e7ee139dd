// SPDX-License-Identifier: Apache-2.0
// Any bytes as a chat template: read or refused, and what is read renders a fixed conversation to valid text or to an
// error that has a place, in bounded time and memory.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/chat_template.h"
#include "text/utf8.h"

namespace {

using nlohmann::ordered_json;

void require(bool condition) {
  if (!condition) std::abort();
}

const ordered_json& messages() {
  static const ordered_json made = ordered_json::parse(R"([
    {"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "\u00fc\u4f60"}, {"type": "image"}]},
    {"role": "assistant", "content": "<think>\na\n</think>\n\nb", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]},
    {"role": "tool", "content": ""}])");
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto chat = quern::text::ChatTemplate::parse({reinterpret_cast<const char*>(data), size});
  if (!chat.ok()) {
    require(!chat.error().what.empty() && !chat.error().where.empty());
    return 0;
  }
  const ordered_json tools = ordered_json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const auto text = chat->render(messages(), tools, {true, false, {{"s", "a,b"}, {"n", 3}}});
  if (text.ok()) {
    require(!quern::text::find_invalid_utf8(*text));
  } else {
    require(!text.error().what.empty() && !text.error().where.empty());
  }
  return 0;
}
