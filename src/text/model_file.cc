// SPDX-License-Identifier: Apache-2.0
#include "text/model_file.h"

#include <fmt/format.h>

#include "base/model_part.h"
#include "base/quote_name.h"
#include "formats/json_fault.h"

namespace quern::text {
namespace {

// Published files have 7 to 20 MB.
constexpr size_t kMaxFileBytes = size_t{256} << 20;

}  // namespace

Result<FileMap> open_bounded(const std::filesystem::path& path) {
  QUERN_TRY_VOID(check_part(path));
  QUERN_TRY(FileMap map, FileMap::open(path));
  if (map.bytes().size() > kMaxFileBytes) {
    return bad_model(path.string(),
                     fmt::format("the file has {} bytes; at most {} are read", map.bytes().size(), kMaxFileBytes));
  }
  return map;
}

Result<nlohmann::json> parse_json_object(std::string_view bytes) {
  formats::JsonFault fault;
  nlohmann::json parsed = formats::parse_text(bytes, fault);
  if (parsed.is_discarded()) return bad_model(fmt::format("byte {}", fault.byte), std::string(fault.what));
  if (!parsed.is_object()) return bad_model("byte 0", "the file is not a JSON object");
  return parsed;
}

std::string quoted_json(const nlohmann::json& value) {
  constexpr size_t kMaxShown = 60;
  return formats::show_json(value, kMaxShown);
}

Result<std::optional<std::string>> token_text(const nlohmann::json& config, const std::string& key) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return std::optional<std::string>();
  const nlohmann::json* text = &*it;
  if (it->is_object() && it->contains("content")) text = &it->at("content");
  if (!text->is_string()) return bad_model(path_name(key), "a string, or an object with a string 'content', is needed");
  return std::optional<std::string>(text->get<std::string>());
}

Error in_file(Error error, const std::string& file) {
  error.where = error.where.empty() ? file : file + ": " + error.where;
  return error;
}

}  // namespace quern::text
