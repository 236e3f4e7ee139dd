// SPDX-License-Identifier: Apache-2.0
// Owns the Qwen3 line: a dense Qwen3 decoder as an ONNX folder, run node by node on graph/.
// Does not own any arithmetic; a folder of another kind or an architecture of another kind is refused.
#pragma once

#include <filesystem>
#include <memory>

#include "model/line.h"

namespace quern::model {

// `folder` holds genai_config.json and the ONNX file that it names. Everything that the configuration says about the
// graph is checked against the graph. Errors: bad_model (damaged files, or configuration and graph disagree, with both
// numbers), unsupported (a form of the graph that quern does not run), no_memory, io.
Result<std::unique_ptr<Line>> open_qwen3(const std::filesystem::path& folder, const OpenOptions& options);

}  // namespace quern::model
