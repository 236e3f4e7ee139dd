// SPDX-License-Identifier: Apache-2.0
// The questions are asked before a file is opened: opening a FIFO or a device may already have an effect.
#include "base/model_part.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <system_error>

namespace quern {
namespace {

namespace fs = std::filesystem;

std::string_view kind(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory: return "a folder";
    case fs::file_type::regular: return "a file";
    case fs::file_type::fifo: return "a FIFO";
    case fs::file_type::socket: return "a socket";
    case fs::file_type::block:
    case fs::file_type::character: return "a device";
    default: return "of an unknown kind";
  }
}

// The kind of what `path` leads to.
Result<fs::file_type> type_of(const fs::path& path, const std::string& where, std::string_view missing) {
  std::error_code failure;
  const fs::file_type type = fs::status(path, failure).type();
  if (type == fs::file_type::not_found) return bad_model(where, std::string(missing));
  if (failure == std::errc::too_many_symbolic_link_levels) {
    return bad_model(where, "is a symbolic link that leads to itself");
  }
  if (failure) return Error{Errc::io, fmt::format("cannot be looked at: {}", failure.message()), where};
  return type;
}

}  // namespace

Result<void> check_folder(const fs::path& folder) {
  const std::string where = folder.empty() ? "model folder ''" : folder.string();
  QUERN_TRY(const fs::file_type type, type_of(folder, where, "there is no such model folder"));
  if (type == fs::file_type::directory) return {};
  return bad_model(where,
                   fmt::format("is {}; a model is the folder that holds genai_config.json and model.onnx", kind(type)));
}

bool has_part(const fs::path& path) {
  std::error_code failure;
  return fs::symlink_status(path, failure).type() != fs::file_type::not_found;
}

Result<void> check_part(const fs::path& path) {
  QUERN_TRY(const fs::file_type type, type_of(path, path.string(), "the file is missing"));
  if (type == fs::file_type::regular) return {};
  return bad_model(path.string(), fmt::format("is not a regular file but {}", kind(type)));
}

}  // namespace quern
