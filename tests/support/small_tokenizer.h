// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json small enough to reason about: the 256 bytes as ids 0 to 255 in byte order, then one entry per merge.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/bpe.h"

namespace quern::test {

// Merges are given in the byte-level alphabet ("\u0120" is the blank); entry 256 + i is the i-th merge.
inline nlohmann::json small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  using nlohmann::json;
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[text::entry_of_byte(static_cast<uint8_t>(byte))] = byte;
  json list = json::array();
  for (const auto& [left, right] : merges) {
    vocabulary.emplace(left + right, vocabulary.size());
    list.push_back({left, right});
  }
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const json split = {
      {"type", "Split"},
      {"pattern",
       {{"Regex", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
                  R"(|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", json::array()},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", list}}}};
}

inline nlohmann::json added_token(int32_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace quern::test
