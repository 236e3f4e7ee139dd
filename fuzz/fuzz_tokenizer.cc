// SPDX-License-Identifier: Apache-2.0
// Any bytes as tokenizer.json: read or refused, and what is read encodes and decodes without a fault. Any bytes as text
// and as ids on a small fixed tokenizer: encoding is refused exactly for invalid UTF-8, comes back as the same text
// where NFC changes nothing, and streaming agrees with decoding. The first byte chooses which of the two.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/small_tokenizer.h"
#include "text/detokenizer.h"
#include "text/nfc.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using quern::text::StreamDetokenizer;
using quern::text::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_ids(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip_special : {false, true}) {
    StreamDetokenizer stream(tokenizer, skip_special);
    std::string text;
    for (const int32_t id : ids) text += stream.push(id);
    text += stream.finish();
    require(text == tokenizer.decode(ids, skip_special));
    require(!quern::text::find_invalid_utf8(text));
  }
}

void check_file(std::string_view json) {
  const auto tokenizer = Tokenizer::from_json(json, "fuzz");
  if (!tokenizer.ok()) {
    require(!tokenizer.error().what.empty() && !tokenizer.error().where.empty());
    return;
  }
  const auto ids = tokenizer->encode("It's 12 o'clock,  \u00E9 e\u0301 \u4F60\n\n<|im_start|> aaaa");
  if (ids.ok()) check_ids(*tokenizer, *ids);
}

const Tokenizer& fixed_tokenizer() {
  static const Tokenizer tokenizer = [] {
    auto file = quern::test::small_tokenizer({{"a", "b"},
                                              {"\u0120", "a"},
                                              {"ab", "ab"},
                                              {"1", "2"},
                                              {"\u00C3", "\u00A9"},
                                              {"b", "\u0120"},
                                              {"\u010A", "\u010A"}});
    file["added_tokens"] = {quern::test::added_token(263, "<s>", true), quern::test::added_token(264, "<s", false)};
    return Tokenizer::from_json(file.dump(), "fixed").value();
  }();
  return tokenizer;
}

void check_text(std::string_view bytes) {
  const Tokenizer& tokenizer = fixed_tokenizer();
  const auto ids = tokenizer.encode(bytes);
  require(ids.ok() == !quern::text::find_invalid_utf8(bytes));
  if (ids.ok()) {
    std::string storage;
    const bool normalized = quern::text::to_nfc(bytes, storage) == bytes;
    if (normalized) require(tokenizer.decode(*ids) == bytes);
    check_ids(tokenizer, *ids);
  }
  std::vector<int32_t> any_ids(bytes.size() / sizeof(int16_t));
  for (size_t i = 0; i < any_ids.size(); ++i) {
    int16_t id = 0;
    std::memcpy(&id, bytes.data() + i * sizeof(id), sizeof(id));
    any_ids[i] = id % 300;
  }
  check_ids(tokenizer, any_ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  // '{' is the start of every file: seeds are plain tokenizer.json files.
  if (data[0] == '{') {
    check_file({reinterpret_cast<const char*>(data), size});
  } else {
    check_text(rest);
  }
  return 0;
}
