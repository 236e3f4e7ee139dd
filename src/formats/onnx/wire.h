// SPDX-License-Identifier: Apache-2.0
// Owns reading of the protobuf wire format: fields of one message, one after the other, over bytes that stay in place.
// Does not own any message type (model_proto.cc); messages nest only as deep as the caller asks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quern::formats {

static_assert(std::endian::native == std::endian::little, "payloads are used in place, and files are little-endian");

// The bytes that offsets are counted from and the name that heads error locations ("<name>@<offset>").
struct WireSource {
  std::string_view name;
  const std::byte* begin = nullptr;

  Error damaged(const std::byte* at, std::string what) const;
};

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kPayload = 2, kFixed32 = 5 };

struct WireField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;                  // kVarint, kFixed32, kFixed64: the bits
  std::span<const std::byte> payload;  // kPayload: text, a message or packed numbers; not looked into
  const std::byte* begin = nullptr;    // where the field's tag lies
};

// Varints may be written longer than needed, up to the ten bytes that 64 bits take. Groups, field number 0 and lengths
// past the end of the message are errors. Reading never leaves the message.
class WireReader {
 public:
  WireReader(std::span<const std::byte> message, const WireSource& source)
      : at_(message.data()), end_(message.data() + message.size()), source_(&source) {}

  // Fills `field` with the next one and says true, or says false at the end of the message.
  Result<bool> next(WireField& field);

 private:
  Result<uint64_t> varint();
  Result<uint64_t> little_endian(size_t bytes);

  const std::byte* at_;
  const std::byte* end_;
  const WireSource* source_;
};

// The field's value as the type that the schema gives it; another wire type is bad_model.
Result<int64_t> wire_int64(const WireField& field, const WireSource& source);
Result<int32_t> wire_int32(const WireField& field, const WireSource& source);
Result<float> wire_float(const WireField& field, const WireSource& source);
Result<std::string_view> wire_text(const WireField& field, const WireSource& source);
Result<std::span<const std::byte>> wire_payload(const WireField& field, const WireSource& source);

// Calls `use(const WireField&)` for every field of a message. `use` returns Result<void>; its error ends the walk.
template <class Use>
Result<void> wire_fields(std::span<const std::byte> message, const WireSource& source, Use&& use) {
  WireReader reader(message, source);
  for (WireField field;;) {
    QUERN_TRY(const bool more, reader.next(field));
    if (!more) return {};
    QUERN_TRY_VOID(use(field));
  }
}

// Calls `use(uint64_t bits)` for every number of a repeated field, which holds one number or a packed run of them. The
// numbers are `element`: kVarint, kFixed32 or kFixed64. `use` returns Result<void>; its error ends the walk.
template <class Use>
Result<void> wire_numbers(const WireField& field, WireType element, const WireSource& source, Use&& use);

// One packed number off the front of `rest`.
Result<uint64_t> wire_take_number(std::span<const std::byte>& rest, WireType element, const WireSource& source);
Error wire_type_error(const WireField& field, const WireSource& source);

template <class Use>
Result<void> wire_numbers(const WireField& field, WireType element, const WireSource& source, Use&& use) {
  if (field.type == element) return use(field.value);
  if (field.type != WireType::kPayload) return wire_type_error(field, source);
  std::span<const std::byte> rest = field.payload;
  while (!rest.empty()) {
    QUERN_TRY(const uint64_t bits, wire_take_number(rest, element, source));
    QUERN_TRY_VOID(use(bits));
  }
  return {};
}

}  // namespace quern::formats
