// SPDX-License-Identifier: Apache-2.0
// The protobuf wire format, read with every length checked against the message that holds it.
#include "formats/onnx/wire.h"

#include <fmt/format.h>

#include <limits>

namespace quern::formats {
namespace {

constexpr int kMaxVarintBytes = 10;  // ceil(64 / 7)

// Advances `at` past a varint. Says what is wrong, or null.
const char* read_varint(const std::byte*& at, const std::byte* end, uint64_t& value) {
  value = 0;
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    if (at == end) return "the file ends inside a number";
    const auto byte = static_cast<uint64_t>(*at++);
    // The tenth byte holds bit 63 alone.
    if (i == kMaxVarintBytes - 1 && byte > 1) return "a number has more than 64 bits";
    value |= (byte & 127) << (7 * i);
    if (byte < 128) return nullptr;
  }
  return "a number has more than 64 bits";
}

const char* read_fixed(const std::byte*& at, const std::byte* end, size_t bytes, uint64_t& value) {
  if (static_cast<size_t>(end - at) < bytes) return "the file ends inside a number";
  value = 0;
  std::memcpy(&value, at, bytes);
  at += bytes;
  return nullptr;
}

}  // namespace

Error WireSource::damaged(const std::byte* at, std::string what) const {
  return bad_model(fmt::format("{}@{}", name, at - begin), std::move(what));
}

Result<uint64_t> WireReader::varint() {
  const std::byte* start = at_;
  uint64_t value = 0;
  if (const char* what = read_varint(at_, end_, value)) return source_->damaged(start, what);
  return value;
}

Result<uint64_t> WireReader::little_endian(size_t bytes) {
  const std::byte* start = at_;
  uint64_t value = 0;
  if (const char* what = read_fixed(at_, end_, bytes, value)) return source_->damaged(start, what);
  return value;
}

Result<bool> WireReader::next(WireField& field) {
  if (at_ == end_) return false;
  field = WireField{};
  field.begin = at_;
  QUERN_TRY(const uint64_t tag, varint());
  if (tag > std::numeric_limits<uint32_t>::max() || tag >> 3 == 0) {
    return source_->damaged(field.begin, fmt::format("field tag {} is not one of the protobuf format", tag));
  }
  field.number = static_cast<uint32_t>(tag >> 3);
  const auto type = static_cast<uint32_t>(tag & 7);
  switch (type) {
    case 0: {
      QUERN_TRY(field.value, varint());
      break;
    }
    case 1: {
      QUERN_TRY(field.value, little_endian(8));
      break;
    }
    case 2: {
      QUERN_TRY(const uint64_t size, varint());
      const auto left = static_cast<size_t>(end_ - at_);
      if (size > left) {
        return source_->damaged(
            field.begin, fmt::format("field {} needs {} bytes, but its message has {} left", field.number, size, left));
      }
      field.payload = {at_, static_cast<size_t>(size)};
      at_ += size;
      break;
    }
    case 5: {
      QUERN_TRY(field.value, little_endian(4));
      break;
    }
    default:
      return source_->damaged(field.begin,
                              fmt::format("field {} has wire type {}, allowed are 0, 1, 2 and 5", field.number, type));
  }
  field.type = static_cast<WireType>(type);
  return true;
}

Error wire_type_error(const WireField& field, const WireSource& source) {
  return source.damaged(field.begin, fmt::format("field {} has wire type {}, which does not fit its schema",
                                                 field.number, static_cast<int>(field.type)));
}

Result<int64_t> wire_int64(const WireField& field, const WireSource& source) {
  if (field.type != WireType::kVarint) return wire_type_error(field, source);
  return static_cast<int64_t>(field.value);
}

Result<int32_t> wire_int32(const WireField& field, const WireSource& source) {
  QUERN_TRY(const int64_t value, wire_int64(field, source));
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    return source.damaged(field.begin, fmt::format("field {} is {}, which is outside of 32 bits", field.number, value));
  }
  return static_cast<int32_t>(value);
}

Result<float> wire_float(const WireField& field, const WireSource& source) {
  if (field.type != WireType::kFixed32) return wire_type_error(field, source);
  return std::bit_cast<float>(static_cast<uint32_t>(field.value));
}

Result<std::string_view> wire_text(const WireField& field, const WireSource& source) {
  QUERN_TRY(const std::span<const std::byte> bytes, wire_payload(field, source));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::span<const std::byte>> wire_payload(const WireField& field, const WireSource& source) {
  if (field.type != WireType::kPayload) return wire_type_error(field, source);
  return field.payload;
}

Result<uint64_t> wire_take_number(std::span<const std::byte>& rest, WireType element, const WireSource& source) {
  const std::byte* at = rest.data();
  const std::byte* end = at + rest.size();
  uint64_t value = 0;
  const char* what = element == WireType::kVarint ? read_varint(at, end, value)
                                                  : read_fixed(at, end, element == WireType::kFixed32 ? 4 : 8, value);
  if (what != nullptr) return source.damaged(rest.data(), what);
  rest = {at, static_cast<size_t>(end - at)};
  return value;
}

}  // namespace quern::formats
