// SPDX-License-Identifier: Apache-2.0
// Owns reading tokenizer.json: bytes in, checked parts out. Everything the file may ask for is either represented here
// or refused by its JSON path. Does not own what the parts do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace quern::text {

struct SplitStage {
  std::string pattern;
  std::string where;  // JSON path
};

struct TokenizerFile {
  BpeModel model;
  std::vector<AddedToken> added_tokens;  // in the order of the file; ids checked against the model
  bool nfc = false;
  std::vector<SplitStage> stages;
};

// Errors: bad_model or unsupported, with the JSON path (or the byte offset) in `where`.
Result<TokenizerFile> read_tokenizer_file(std::string_view json);

}  // namespace quern::text
