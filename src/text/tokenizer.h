// SPDX-License-Identifier: Apache-2.0
// Owns the tokenizer of a model folder: text to ids and back, exactly as Hugging Face `tokenizers` does it for
// byte-level BPE. Does not own the rendering of chat templates, and nothing of a text is ever cut.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::text {

// What tokenizer_config.json adds. Absent is not an error. Its chat template is read by text/chat_template.h.
struct TokenizerSettings {
  std::optional<int32_t> bos_id, eos_id, pad_id;
};

// A handle to an immutable tokenizer: cheap to copy, usable from several threads at once.
class Tokenizer {
 public:
  // Reads tokenizer.json and, where there, tokenizer_config.json.
  // Errors: bad_model (missing or damaged), unsupported (well-formed but not implemented), each with file and JSON
  // path.
  static Result<Tokenizer> load(const std::filesystem::path& folder);
  // `json` is the content of a tokenizer.json; `where` names it in errors.
  static Result<Tokenizer> from_json(std::string_view json, const std::string& where);

  // No id is added in front or behind. Without `parse_special`, the texts of special tokens are ordinary text (other
  // added tokens are still found). Errors: bad_request (not UTF-8, with the byte offset), too_long (2 GiB and more),
  // unsupported (the pre-tokenizer's pattern needs too many steps).
  Result<std::vector<int32_t>> encode(std::string_view utf8, bool parse_special = true) const;

  // Ids without text give nothing. Bytes that are not UTF-8 become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The vocabulary's own spelling: the byte-level alphabet for ordinary tokens, plain text for added ones.
  std::optional<int32_t> id_of(std::string_view text) const;
  std::optional<std::string_view> text_of(int32_t id) const;
  // The bytes that decoding an id gives; may be part of a character. Empty for ids without text.
  std::string_view bytes_of(int32_t id) const;

  bool is_special(int32_t id) const;
  // The number of ids with text, and the largest of them plus 1: different only if the file leaves ids out.
  int32_t vocab_size() const;
  int32_t id_limit() const;

  const TokenizerSettings& settings() const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  static Result<std::shared_ptr<Parts>> build(std::string_view json);

  std::shared_ptr<const Parts> parts_;
};

}  // namespace quern::text
