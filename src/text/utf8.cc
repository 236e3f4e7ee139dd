// SPDX-License-Identifier: Apache-2.0
// One classifier of the sequence at a position serves validation, lossy decoding and streaming.
#include "text/utf8.h"

#include <cstring>

namespace quern::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Form : uint8_t { valid, invalid, incomplete };

struct Sequence {
  Form form;
  size_t bytes;  // valid: its length; invalid: the maximal ill-formed part; incomplete: all that is left
};

// The first continuation byte is restricted for four lead bytes (Unicode, table 3-7): that excludes overlong forms,
// surrogates and code points above U+10FFFF.
Sequence sequence_at(std::string_view bytes, size_t at) {
  const auto lead = static_cast<unsigned char>(bytes[at]);
  if (lead < 0x80) return {Form::valid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Form::invalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == bytes.size()) return {Form::incomplete, i};
    const auto byte = static_cast<unsigned char>(bytes[at + i]);
    if (byte < low || byte > high) return {Form::invalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Form::valid, length};
}

// The end of the ASCII run that starts at `at`.
size_t skip_ascii(std::string_view bytes, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  while (at + sizeof(uint64_t) <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    if ((word & kHighBits) != 0) break;
    at += sizeof(word);
  }
  while (at < bytes.size() && static_cast<unsigned char>(bytes[at]) < 0x80) ++at;
  return at;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view bytes) {
  for (size_t at = skip_ascii(bytes, 0); at < bytes.size(); at = skip_ascii(bytes, at)) {
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.form != Form::valid) return at;
    at += sequence.bytes;
  }
  return std::nullopt;
}

size_t append_lossy(std::string_view bytes, std::string& out) {
  size_t kept_from = 0;
  size_t at = 0;
  while (at < bytes.size()) {
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.form == Form::incomplete) break;
    if (sequence.form == Form::invalid) {
      out.append(bytes.substr(kept_from, at - kept_from));
      out.append(kReplacement);
      kept_from = at + sequence.bytes;
    }
    at += sequence.bytes;
  }
  out.append(bytes.substr(kept_from, at - kept_from));
  return at;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (append_lossy(bytes, out) < bytes.size()) out.append(kReplacement);
  return out;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace quern::text
