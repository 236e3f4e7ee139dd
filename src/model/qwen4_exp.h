// SPDX-License-Identifier: Apache-2.0
// Owns the qwen4_exp line: the text model of a safetensors checkpoint, whose forward pass calls the operator rooms
// directly. Does not own the arithmetic of any room.
#pragma once

#include <filesystem>
#include <memory>

#include "model/line.h"

namespace quern::model {

// `folder` holds config.json, the weights that it describes and, if its authors wrote one, generation_config.json.
// Weights stay in the mapped files: opening reads their headers and the constants of the n-gram hash. Errors: bad_model
// (damaged files, or configuration and weights disagree), unsupported (a field of the configuration or a form of the
// weights that quern does not run, by name), no_memory, io.
Result<std::unique_ptr<Line>> open_qwen4_exp(const std::filesystem::path& folder, const OpenOptions& options);

}  // namespace quern::model
