// SPDX-License-Identifier: Apache-2.0
// Owns the checked picture of a genai_config.json: how an exported ONNX decoder is to be fed and how text is generated.
// Does not own the agreement of these numbers with the graph (model/) nor which search settings quern carries out
// (engine/).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::formats {

// Names of the graph's inputs and outputs. A template holds exactly one %d, which stands for the layer number.
struct GenaiInputs {
  std::string input_ids = "input_ids";
  std::string attention_mask = "attention_mask";
  std::string past_key_names = "past_key_values.%d.key";
  std::string past_value_names = "past_key_values.%d.value";
};

struct GenaiOutputs {
  std::string logits = "logits";
  std::string present_key_names = "present.%d.key";
  std::string present_value_names = "present.%d.value";
};

struct GenaiDecoder {
  std::string filename;  // relative to the folder of the configuration, never leaving it
  int32_t head_size = 0;
  int32_t hidden_size = 0;
  int32_t num_attention_heads = 0;
  int32_t num_hidden_layers = 0;
  int32_t num_key_value_heads = 0;  // divides num_attention_heads
  GenaiInputs inputs;
  GenaiOutputs outputs;
};

// Defaults for a caller who asks for nothing else. Where the file is silent, the values are those below.
struct GenaiSearch {
  bool do_sample = false;
  float temperature = 1.0f;  // >= 0
  int32_t top_k = 0;         // 0: no limit
  float top_p = 0.0f;        // 0 <= p <= 1; 1: no limit; 0: none beside a top_k, else the most likely token alone
  float repetition_penalty = 1.0f;
  int32_t min_length = 0;
  int32_t max_length = 0;  // the context length where the file is silent
  int32_t num_beams = 1;
  int32_t num_return_sequences = 1;
  int32_t no_repeat_ngram_size = 0;
  float length_penalty = 1.0f;
  float diversity_penalty = 0.0f;
  bool early_stopping = true;
  bool past_present_share_buffer = false;
  std::vector<std::string> other;  // members that may change the text and are none of the above, as "name value"
};

struct GenaiConfig {
  std::string type;  // model.type, for example "qwen3"
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  std::vector<int32_t> eos_token_ids;  // at least one; the file may hold a number or a list
  int32_t context_length = 0;
  int32_t vocab_size = 0;
  GenaiDecoder decoder;
  GenaiSearch search;

  // Reads the file at `path`. Errors: bad_model and unsupported with "<path>: <JSON path>" as the place, io.
  static Result<GenaiConfig> load(const std::filesystem::path& path);
  // The same from text; `where` heads the places.
  static Result<GenaiConfig> parse(std::string_view json, std::string_view where);
};

// The template with %d replaced: layer_value_name("present.%d.key", 3) is "present.3.key".
std::string layer_value_name(std::string_view name_template, int32_t layer);

}  // namespace quern::formats
