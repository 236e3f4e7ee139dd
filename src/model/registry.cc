// SPDX-License-Identifier: Apache-2.0
// Owns the registry from model types to model lines, and how a folder is recognised. A line that the build leaves out
// stays in the table by name, so that its models are recognised and the option to rebuild with can be named.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "base/model_part.h"
#include "base/quote_name.h"
#include "formats/json_section.h"
#include "model/line.h"
#ifdef QUERN_LINE_QWEN3
#include "model/qwen3.h"
#endif
#ifdef QUERN_LINE_QWEN4_EXP
#include "model/qwen4_exp.h"
#endif

namespace quern::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenaiConfig = "genai_config.json";
constexpr const char* kHfConfig = "config.json";

enum class Format : uint8_t { onnx, safetensors };

using OpenFunction = Result<std::unique_ptr<Line>> (*)(const fs::path& folder, const OpenOptions& options);

struct LineEntry {
  std::string_view model_type;
  std::string_view line;  // what QUERN_MODEL_LINES calls it
  Format format;
  bool built;         // this program has the line
  OpenFunction open;  // null where quern does not run this format
};

#ifdef QUERN_LINE_QWEN3
constexpr bool kQwen3Built = true;
constexpr OpenFunction kOpenQwen3 = &open_qwen3;
#else
constexpr bool kQwen3Built = false;
constexpr OpenFunction kOpenQwen3 = nullptr;
#endif
#ifdef QUERN_LINE_QWEN4_EXP
constexpr bool kQwen4ExpBuilt = true;
constexpr OpenFunction kOpenQwen4Exp = &open_qwen4_exp;
#else
constexpr bool kQwen4ExpBuilt = false;
constexpr OpenFunction kOpenQwen4Exp = nullptr;
#endif

constexpr LineEntry kLines[] = {
    {"qwen3", "qwen3", Format::onnx, kQwen3Built, kOpenQwen3},
    {"qwen3", "qwen3", Format::safetensors, kQwen3Built, nullptr},
    {"qwen4_exp", "qwen4_exp", Format::safetensors, kQwen4ExpBuilt, kOpenQwen4Exp},
    {"qwen4_exp_text", "qwen4_exp", Format::safetensors, kQwen4ExpBuilt, kOpenQwen4Exp},
    // The same model under the names of re-releases.
    {"qwen3_8_flash_next", "qwen4_exp", Format::safetensors, kQwen4ExpBuilt, kOpenQwen4Exp},
    {"qwen3_8_flash_next_text", "qwen4_exp", Format::safetensors, kQwen4ExpBuilt, kOpenQwen4Exp},
};

std::string known_types(Format format) {
  std::string text;
  for (const LineEntry& entry : kLines) {
    if (entry.format != format) continue;
    if (!text.empty()) text += ", ";
    text += entry.model_type;
  }
  return text;
}

// The string at `field`, a dotted JSON path. The rest of the file is not looked at: a line checks its own
// configuration.
Result<std::string> read_type(const fs::path& path, std::string_view field) {
  QUERN_TRY(const nlohmann::json json, formats::load_json(path));
  const std::string where = fmt::format("{}: {}", path.string(), field);
  std::string pointer = fmt::format("/{}", field);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  const nlohmann::json::json_pointer at(pointer);
  if (!json.is_object() || !json.contains(at)) return bad_model(where, "is missing, so the kind of model is unknown");
  const auto& value = json.at(at);
  if (!value.is_string()) return bad_model(where, fmt::format("is of type {}, expected a string", value.type_name()));
  return value.get<std::string>();
}

struct Found {
  Identity identity;
  const LineEntry* entry = nullptr;
};

// The table's entry for a type, or the refusal that fits what the table knows about it.
Result<Found> look_up(std::string type, const fs::path& config, std::string_view field, Format format) {
  const std::string where = fmt::format("{}: {}", config.string(), field);
  const LineEntry* entry = std::find_if(std::begin(kLines), std::end(kLines),
                                        [&](const LineEntry& e) { return e.format == format && e.model_type == type; });
  if (entry == std::end(kLines)) {
    return unsupported(where, fmt::format("model type {} is not one of those that quern runs in this format: {}",
                                          quote_name(type), known_types(format)));
  }
  if (!entry->built) {
    return unsupported(where, fmt::format("model type '{0}' needs the model line {1}, which this program was built "
                                          "without; rebuild with -DQUERN_MODEL_LINES containing {1}",
                                          type, entry->line));
  }
  if (entry->open == nullptr) {
    return unsupported(where,
                       "qwen3 checkpoints in safetensors are not run directly; export the model to ONNX "
                       "(genai_config.json and model.onnx, precision int4, provider cpu)");
  }
  return Found{{std::move(type), config}, entry};
}

Result<Found> find_line(const fs::path& folder) {
  QUERN_TRY_VOID(check_folder(folder));
  if (has_part(folder / kGenaiConfig)) {
    QUERN_TRY(std::string type, read_type(folder / kGenaiConfig, "model.type"));
    return look_up(std::move(type), folder / kGenaiConfig, "model.type", Format::onnx);
  }
  if (has_part(folder / kHfConfig)) {
    QUERN_TRY(std::string type, read_type(folder / kHfConfig, "model_type"));
    return look_up(std::move(type), folder / kHfConfig, "model_type", Format::safetensors);
  }
  return bad_model(folder.string(),
                   "holds no model: genai_config.json (for ONNX) or config.json (for safetensors) is missing");
}

}  // namespace

Result<Identity> identify(const fs::path& folder) {
  QUERN_TRY(Found found, find_line(folder));
  return std::move(found.identity);
}

Result<std::unique_ptr<Line>> open_line(const fs::path& folder, const OpenOptions& options) {
  QUERN_CHECK(options.pool != nullptr, "a line computes on a pool");
  QUERN_TRY(const Found found, find_line(folder));
  return found.entry->open(folder, options);
}

}  // namespace quern::model
