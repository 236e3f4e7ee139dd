// SPDX-License-Identifier: Apache-2.0
// Owns what a path of a model must be before it is read: the folder, and the files in it. One place, so that a part
// that is missing, is no file or cannot be reached is called the same whoever reads it. Does not own what is in the
// files.
#pragma once

#include <filesystem>

#include "base/error.h"

namespace quern {

// Errors: bad_model (missing, not a folder, links in a circle), io (cannot be looked at).
Result<void> check_folder(const std::filesystem::path& folder);

// Something has this name, if only a link that leads nowhere. For parts that a model may do without: what is there has
// to be in order.
bool has_part(const std::filesystem::path& path);

// Errors: bad_model (missing, not a regular file, links in a circle), io (cannot be looked at).
Result<void> check_part(const std::filesystem::path& path);

}  // namespace quern
