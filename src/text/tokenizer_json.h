// SPDX-License-Identifier: Apache-2.0
// Owns the one pass over the bytes of tokenizer.json: the two big parts go straight into flat storage, the rest becomes
// a small JSON tree. Does not judge the tree (tokenizer_file.cc).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/bpe.h"

namespace quern::text {

struct TokenizerJson {
  nlohmann::json tree;  // an object; without model.vocab and model.merges
  BpeModel model;       // vocabulary complete, merges added
};

// Errors: bad_model (not JSON, a key twice, nested too deeply, a wrong type in the big parts, and what BpeModel
// refuses).
Result<TokenizerJson> parse_tokenizer_json(std::string_view json);

}  // namespace quern::text
