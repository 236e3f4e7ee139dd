// SPDX-License-Identifier: Apache-2.0
// Owns how the files of a model's text side are opened: bounded, and with errors that name file and place. Does not own
// what is in them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file_map.h"

namespace quern::text {

// Errors: bad_model (missing, not a regular file, larger than any published one), io.
Result<FileMap> open_bounded(const std::filesystem::path& path);

inline std::string_view text_of_map(const FileMap& map) {
  return {reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()};
}

// Errors: bad_model, with the byte offset: not JSON, or JSON that is not an object.
Result<nlohmann::json> parse_json_object(std::string_view bytes);

// A value as JSON in ASCII, for error texts: cut where it is long.
std::string quoted_json(const nlohmann::json& value);

// A token of a configuration: a string, or an object with the string as "content"; null and absent mean none.
// Errors: bad_model, with the key.
Result<std::optional<std::string>> token_text(const nlohmann::json& config, const std::string& key);

// The place of an error becomes "file: place".
Error in_file(Error error, const std::string& file);

}  // namespace quern::text
