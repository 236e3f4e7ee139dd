// SPDX-License-Identifier: Apache-2.0
// Any text as generation_config.json: it is read or refused, and what is read keeps the promises of the header.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "formats/generation_config.h"

namespace {

constexpr int32_t kVocab = 1000;

bool in_vocabulary(std::span<const int32_t> ids) {
  return std::ranges::all_of(ids, [](int32_t id) { return id >= 0 && id < kVocab; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using quern::formats::GenerationConfig;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const quern::Result<GenerationConfig> config = GenerationConfig::parse(text, kVocab, "fuzz");
  if (!config.ok()) {
    if (config.error().what.empty() || config.error().where.empty()) std::abort();
    return 0;
  }
  const GenerationConfig& c = *config;
  const bool kept = c.temperature >= 0 && c.top_k >= 0 && c.top_p >= 0 && c.top_p <= 1 && c.min_p >= 0 &&
                    c.min_p <= 1 && c.repetition_penalty > 0 && in_vocabulary(c.eos_token_ids) &&
                    in_vocabulary(c.suppress_tokens);
  if (!kept) std::abort();
  return 0;
}
