// SPDX-License-Identifier: Apache-2.0
// Any text as genai_config.json: it is read or refused, and what is read keeps the promises of the header.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "formats/genai_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quern::formats;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const quern::Result<GenaiConfig> config = GenaiConfig::parse(text, "fuzz");
  if (!config.ok()) {
    if (config.error().what.empty() || config.error().where.empty()) std::abort();
    return 0;
  }
  const GenaiDecoder& d = config->decoder;
  const bool kept = !config->eos_token_ids.empty() && config->context_length > 0 && config->search.max_length > 0 &&
                    config->search.max_length <= config->context_length && d.num_key_value_heads > 0 &&
                    d.num_attention_heads % d.num_key_value_heads == 0 && !d.filename.empty() && d.filename[0] != '/' &&
                    layer_value_name(d.inputs.past_key_names, 7).find('%') == std::string::npos;
  if (!kept) std::abort();
  return 0;
}
