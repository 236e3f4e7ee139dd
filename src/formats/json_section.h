// SPDX-License-Identifier: Apache-2.0
// Owns reading JSON configurations: a bounded parse, and typed members of objects whose refusals name the path, the
// value seen and the values allowed. Does not own what any configuration means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quern::formats {

// Real configurations have a few KiB and nest a handful of levels.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;
inline constexpr int kMaxJsonDepth = 64;

// Errors: bad_model (too large, nested too deeply, not JSON: then with "<where>@<byte>" as the place).
Result<nlohmann::json> parse_json(std::string_view text, std::string_view where, size_t max_bytes = kMaxConfigBytes);
// The same from the file at `path`. Errors: also io.
Result<nlohmann::json> load_json(const std::filesystem::path& path, size_t max_bytes = kMaxConfigBytes);

// One object of a document and its path. A member that is null counts as absent. Must not outlive the document.
class JsonSection {
 public:
  JsonSection(const nlohmann::json& object, std::string where, std::string path)
      : object_(&object), where_(std::move(where)), path_(std::move(path)) {}

  // The whole document. Errors: bad_model when it is not an object.
  static Result<JsonSection> root(const nlohmann::json& document, std::string_view where);

  std::string path_of(std::string_view key) const;
  std::string place(std::string_view key) const;  // of a member, for errors

  // Null when absent.
  const nlohmann::json* find(std::string_view key) const;

  // A member that is there, as JSON in ASCII; cut where it is long.
  std::string shown(std::string_view key) const;

  Error missing(std::string_view key) const;
  Error wrong(std::string_view key, std::string_view allowed) const;  // of a member that is there
  Error not_supported(std::string_view key, std::string_view allowed) const;
  // Errors: unsupported when the member is there.
  Result<void> refuse(std::string_view key, std::string_view feature) const;

  // Errors: bad_model when the member is absent or is no object.
  Result<JsonSection> section(std::string_view key) const;

  // Those ending in _into leave `out` as it is when the member is absent. Errors: bad_model for another type or range.
  Result<void> integer_into(std::string_view key, int32_t lowest, int32_t highest, int32_t& out) const;
  Result<int32_t> integer(std::string_view key, int32_t lowest, int32_t highest) const;
  Result<void> long_into(std::string_view key, int64_t lowest, int64_t highest, int64_t& out) const;
  Result<void> number_into(std::string_view key, float lowest, float highest, float& out) const;
  Result<void> bool_into(std::string_view key, bool& out) const;
  Result<void> text_into(std::string_view key, std::string& out) const;  // not empty, at most 1 KiB, without NUL
  // A token id below `vocab`.
  Result<void> id_into(std::string_view key, int32_t vocab, std::optional<int32_t>& out) const;
  // One of them, or a list of 1 to 1024.
  Result<void> ids_into(std::string_view key, int32_t vocab, std::vector<int32_t>& out) const;
  // A list of any length up to `vocab`.
  Result<void> id_list_into(std::string_view key, int32_t vocab, std::vector<int32_t>& out) const;
  // A text that is not empty, or a list of up to 1024 of them.
  Result<void> texts_into(std::string_view key, std::vector<std::string>& out) const;

  static std::optional<int64_t> as_integer(const nlohmann::json& node, int64_t lowest, int64_t highest);

 private:
  const nlohmann::json* object_;
  std::string where_;
  std::string path_;
};

}  // namespace quern::formats
