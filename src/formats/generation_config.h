// SPDX-License-Identifier: Apache-2.0
// Owns the checked picture of a generation_config.json beside a safetensors checkpoint: how its authors want text to be
// generated. Does not own which of these settings quern carries out (engine/).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::formats {

// Where the file is silent or says null, or is not there at all, the values are those below, which are the ones that
// transformers 5.17 fills in.
struct GenerationConfig {
  bool do_sample = false;
  float temperature = 1.0f;              // >= 0
  int32_t top_k = 50;                    // 0: no limit
  float top_p = 1.0f;                    // 0 <= p <= 1; 0: the most likely token alone; 1: no limit
  float min_p = 0.0f;                    // 0 <= p <= 1; 0: no limit
  float repetition_penalty = 1.0f;       // > 0; 1: none
  std::vector<int32_t> eos_token_ids;    // may be empty
  std::vector<int32_t> suppress_tokens;  // ids that never come out
  std::vector<std::string> stop_strings;
  // Settings that may change the text and are none of the above, as "name value"; those that are not known among them.
  std::vector<std::string> other;

  // Reads the file at `path`. Token ids are below `vocab`. Errors: bad_model with "<path>: <JSON path>" as the place,
  // io.
  static Result<GenerationConfig> load(const std::filesystem::path& path, int32_t vocab);
  // The same from text; `where` heads the places.
  static Result<GenerationConfig> parse(std::string_view json, int32_t vocab, std::string_view where);
};

}  // namespace quern::formats
