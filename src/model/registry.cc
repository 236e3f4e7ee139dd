// SPDX-License-Identifier: Apache-2.0
// Owns the registry from model types to model lines, and how a folder is recognised. A line that the build leaves out
// stays in the table by name, so that its models are recognised and the option to rebuild with can be named.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "base/file_map.h"
#include "base/model_part.h"
#include "base/quote_name.h"
#include "model/line.h"
#ifdef QUERN_LINE_QWEN3
#include "model/qwen3.h"
#endif

namespace quern::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenaiConfig = "genai_config.json";
constexpr const char* kHfConfig = "config.json";
// Real configurations have a few kilobytes; a larger file is something else.
constexpr size_t kLargestConfigBytes = size_t{16} << 20;

enum class Format : uint8_t { onnx, safetensors };

using OpenFunction = Result<std::unique_ptr<Line>> (*)(const fs::path& folder, const OpenOptions& options);

struct LineEntry {
  std::string_view model_type;
  std::string_view line;  // what QUERN_MODEL_LINES calls it
  Format format;
  bool built;         // this program has the line
  OpenFunction open;  // null where quern has no implementation of this format yet
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
#else
constexpr bool kQwen4ExpBuilt = false;
#endif

constexpr LineEntry kLines[] = {
    {"qwen3", "qwen3", Format::onnx, kQwen3Built, kOpenQwen3},
    {"qwen3", "qwen3", Format::safetensors, kQwen3Built, nullptr},
    {"qwen4_exp", "qwen4_exp", Format::safetensors, kQwen4ExpBuilt, nullptr},
    {"qwen4_exp_text", "qwen4_exp", Format::safetensors, kQwen4ExpBuilt, nullptr},
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
  QUERN_TRY_VOID(check_part(path));
  QUERN_TRY(const FileMap map, FileMap::open(path));
  if (map.bytes().size() > kLargestConfigBytes) {
    return bad_model(path.string(), fmt::format("has {} bytes, a configuration has at most {}", map.bytes().size(),
                                                kLargestConfigBytes));
  }
  const auto* text = reinterpret_cast<const char*>(map.bytes().data());
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text, text + map.bytes().size());
  } catch (const nlohmann::json::parse_error& e) {
    // The parser counts the byte that does not fit, too.
    return bad_model(fmt::format("{}@{}", path.string(), e.byte > 0 ? e.byte - 1 : 0),
                     "the file is not JSON from here on");
  } catch (const nlohmann::json::exception& e) {
    return bad_model(path.string(), fmt::format("the file cannot be read as JSON: {}", e.what()));
  }
  const std::string where = fmt::format("{}: {}", path.string(), field);
  std::string pointer = fmt::format("/{}", field);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  const nlohmann::json::json_pointer at(pointer);
  if (!json.is_object() || !json.contains(at)) return bad_model(where, "is missing, so the kind of model is unknown");
  const auto& value = json.at(at);
  if (!value.is_string()) return bad_model(where, fmt::format("is of type {}, expected a string", value.type_name()));
  return value.get<std::string>();
}

bool has_safetensors(const fs::path& folder) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() == ".safetensors" || it->path().filename() == "model.safetensors.index.json")
      return true;
  }
  return false;
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
  if (entry->open == nullptr && type == "qwen3") {
    return unsupported(where,
                       "qwen3 checkpoints in safetensors are not run directly; export the model to ONNX "
                       "(genai_config.json and model.onnx, precision int4, provider cpu)");
  }
  if (entry->open == nullptr) {
    return unsupported(where, fmt::format("model type '{}' is recognised, but this version of quern does not run its "
                                          "safetensors checkpoints yet",
                                          type));
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
    const bool known =
        std::any_of(std::begin(kLines), std::end(kLines), [&](const LineEntry& e) { return e.model_type == type; });
    if (known && !has_safetensors(folder)) {
      return bad_model(folder.string(),
                       fmt::format("has config.json (model type '{}') but neither genai_config.json nor "
                                   "any .safetensors file",
                                   type));
    }
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
