// SPDX-License-Identifier: Apache-2.0
// Bounds are checked on the text, before anything is built from it.
#include "formats/json_section.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <span>

#include "base/file_map.h"
#include "base/model_part.h"
#include "formats/json_fault.h"

namespace quern::formats {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxIds = 1024;
constexpr size_t kMaxTexts = 1024;

// Printing a JSON value recurses, so depth is bounded before anything is built.
bool nests_deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text && c == '\\')
      ++i;
    else if (c == '"')
      in_text = !in_text;
    else if (!in_text && (c == '[' || c == '{') && ++depth > limit)
      return true;
    else if (!in_text && (c == ']' || c == '}'))
      --depth;
  }
  return false;
}

}  // namespace

Result<json> parse_json(std::string_view text, std::string_view where, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return bad_model(std::string(where), fmt::format("the file has {} bytes, allowed are {}", text.size(), max_bytes));
  }
  if (nests_deeper_than(text, kMaxJsonDepth)) {
    return bad_model(std::string(where),
                     fmt::format("the file nests deeper than {} levels, which is the limit", kMaxJsonDepth));
  }
  JsonFault fault;
  json parsed = parse_text(text, fault);
  if (!parsed.is_discarded()) return parsed;
  return bad_model(fmt::format("{}@{}", where, fault.byte), std::string(fault.what));
}

Result<json> load_json(const std::filesystem::path& path, size_t max_bytes) {
  QUERN_TRY_VOID(check_part(path));
  QUERN_TRY(const FileMap map, FileMap::open(path));
  const std::span<const std::byte> bytes = map.bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string(), max_bytes);
}

Result<JsonSection> JsonSection::root(const json& document, std::string_view where) {
  if (!document.is_object()) return bad_model(std::string(where), "the file does not hold a JSON object");
  return JsonSection(document, std::string(where), "");
}

std::string JsonSection::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::string JsonSection::place(std::string_view key) const { return fmt::format("{}: {}", where_, path_of(key)); }

const json* JsonSection::find(std::string_view key) const {
  const auto at = object_->find(key);
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

std::string JsonSection::shown(std::string_view key) const {
  constexpr size_t kMaxShown = 80;
  return show_json(*find(key), kMaxShown);
}

Error JsonSection::missing(std::string_view key) const { return bad_model(place(key), "the value is missing"); }

Error JsonSection::wrong(std::string_view key, std::string_view allowed) const {
  return bad_model(place(key), fmt::format("the value is {}, allowed is {}", shown(key), allowed));
}

Error JsonSection::not_supported(std::string_view key, std::string_view allowed) const {
  return unsupported(place(key), fmt::format("the value is {}, quern runs {}", shown(key), allowed));
}

Result<void> JsonSection::refuse(std::string_view key, std::string_view feature) const {
  if (find(key) == nullptr) return {};
  return unsupported(place(key), fmt::format("{} is not supported", feature));
}

Result<JsonSection> JsonSection::section(std::string_view key) const {
  const json* node = find(key);
  if (node == nullptr) return missing(key);
  if (!node->is_object()) return wrong(key, "an object");
  return JsonSection(*node, where_, path_of(key));
}

Result<void> JsonSection::integer_into(std::string_view key, int32_t lowest, int32_t highest, int32_t& out) const {
  int64_t value = out;
  QUERN_TRY_VOID(long_into(key, lowest, highest, value));
  out = static_cast<int32_t>(value);
  return {};
}

Result<int32_t> JsonSection::integer(std::string_view key, int32_t lowest, int32_t highest) const {
  if (find(key) == nullptr) return missing(key);
  int32_t value = 0;
  QUERN_TRY_VOID(integer_into(key, lowest, highest, value));
  return value;
}

Result<void> JsonSection::long_into(std::string_view key, int64_t lowest, int64_t highest, int64_t& out) const {
  const json* node = find(key);
  if (node == nullptr) return {};
  const std::optional<int64_t> value = as_integer(*node, lowest, highest);
  if (!value) return wrong(key, fmt::format("an integer from {} to {}", lowest, highest));
  out = *value;
  return {};
}

Result<void> JsonSection::number_into(std::string_view key, float lowest, float highest, float& out) const {
  const json* node = find(key);
  if (node == nullptr) return {};
  // Checked before it is narrowed: what rounds to 0 must not take on the meaning of 0.
  const double exact = node->is_number() ? node->get<double>() : NAN;
  const bool inside = exact >= static_cast<double>(lowest) && exact <= static_cast<double>(highest);
  if (!inside || (exact != 0 && static_cast<float>(exact) == 0)) {
    return wrong(key, fmt::format("a number from {} to {}", lowest, highest));
  }
  out = static_cast<float>(exact);
  return {};
}

Result<void> JsonSection::bool_into(std::string_view key, bool& out) const {
  const json* node = find(key);
  if (node == nullptr) return {};
  if (!node->is_boolean()) return wrong(key, "true or false");
  out = node->get<bool>();
  return {};
}

Result<void> JsonSection::text_into(std::string_view key, std::string& out) const {
  const json* node = find(key);
  if (node == nullptr) return {};
  const auto* value = node->get_ptr<const std::string*>();
  if (value == nullptr || value->empty() || value->size() > kMaxNameBytes || value->find('\0') != std::string::npos) {
    return wrong(key, fmt::format("a text of 1 to {} bytes without NUL", kMaxNameBytes));
  }
  out = *value;
  return {};
}

Result<void> JsonSection::id_into(std::string_view key, int32_t vocab, std::optional<int32_t>& out) const {
  if (find(key) == nullptr) return {};
  QUERN_TRY(out, integer(key, 0, vocab - 1));
  return {};
}

Result<void> JsonSection::ids_into(std::string_view key, int32_t vocab, std::vector<int32_t>& out) const {
  const json* node = find(key);
  if (node == nullptr) return {};
  const json one = node->is_array() ? json() : json::array({*node});
  const json& list = node->is_array() ? *node : one;
  bool fits = !list.empty() && list.size() <= kMaxIds;
  std::vector<int32_t> ids;
  for (size_t i = 0; fits && i < list.size(); ++i) {
    const std::optional<int64_t> id = as_integer(list[i], 0, vocab - 1);
    fits = id.has_value();
    if (fits) ids.push_back(static_cast<int32_t>(*id));
  }
  if (!fits) {
    return wrong(key, fmt::format("an integer from 0 to {}, or a list of 1 to {} of them", vocab - 1, kMaxIds));
  }
  out = std::move(ids);
  return {};
}

Result<void> JsonSection::id_list_into(std::string_view key, int32_t vocab, std::vector<int32_t>& out) const {
  const json* node = find(key);
  if (node == nullptr) return {};
  bool fits = node->is_array() && node->size() <= static_cast<size_t>(vocab);
  std::vector<int32_t> ids;
  for (size_t i = 0; fits && i < node->size(); ++i) {
    const std::optional<int64_t> id = as_integer((*node)[i], 0, vocab - 1);
    fits = id.has_value();
    if (fits) ids.push_back(static_cast<int32_t>(*id));
  }
  if (!fits) return wrong(key, fmt::format("a list of up to {0} integers from 0 to {1}", vocab, vocab - 1));
  out = std::move(ids);
  return {};
}

Result<void> JsonSection::texts_into(std::string_view key, std::vector<std::string>& out) const {
  const json* node = find(key);
  if (node == nullptr) return {};
  const json one = node->is_array() ? json() : json::array({*node});
  const json& list = node->is_array() ? *node : one;
  bool fits = list.size() <= kMaxTexts;
  std::vector<std::string> texts;
  for (size_t i = 0; fits && i < list.size(); ++i) {
    const auto* text = list[i].get_ptr<const std::string*>();
    fits = text != nullptr && !text->empty();
    if (fits) texts.push_back(*text);
  }
  if (!fits) return wrong(key, fmt::format("a text that is not empty, or a list of up to {} of them", kMaxTexts));
  out = std::move(texts);
  return {};
}

std::optional<int64_t> JsonSection::as_integer(const json& node, int64_t lowest, int64_t highest) {
  if (!node.is_number_integer()) return std::nullopt;
  // Unsigned values above the signed range would wrap.
  if (node.is_number_unsigned() && node.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  const auto value = node.get<int64_t>();
  if (value < lowest || value > highest) return std::nullopt;
  return value;
}

}  // namespace quern::formats
