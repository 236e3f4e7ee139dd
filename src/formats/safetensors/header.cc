// SPDX-License-Identifier: Apache-2.0
// Reading a header in one pass of events, then proving where every payload lies, so that handing it out cannot fail.
#include "formats/safetensors/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/quote_name.h"
#include "formats/safetensors/events.h"

namespace quern::formats {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::pair<std::string_view, DType> kTypes[] = {
    {"BF16", DType::bf16},       {"F16", DType::f16},     {"F32", DType::f32}, {"F64", DType::f64},
    {"F8_E4M3", DType::f8_e4m3}, {"I64", DType::i64},     {"I32", DType::i32}, {"I16", DType::i16},
    {"I8", DType::i8},           {"U64", DType::u64},     {"U32", DType::u32}, {"U16", DType::u16},
    {"U8", DType::u8},           {"BOOL", DType::boolean}};

std::string type_names() {
  std::string text;
  for (const auto& [name, type] : kTypes) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return text;
}

// A tensor as the header states it; the texts and extents lie in the growing storage, hence positions.
struct Stated {
  size_t name = 0, name_bytes = 0;
  size_t shape = 0, rank = 0;
  DType dtype = DType::f32;
  uint64_t begin = 0, end = 0;  // in the payload part
};

class HeaderEvents final : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != Field::dtype) return unexpected("a text");
    const auto* type =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.first == value; });
    if (type == std::end(kTypes)) {
      return fail(unsupported(
          fmt::format("{}: {}", where(), next_value()),
          fmt::format("the element type is {}, those that quern has are {}", quote_name(value), type_names())));
    }
    tensors.back().dtype = type->second;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return unexpected("a number");
    Stated& tensor = tensors.back();
    if (field_ == Field::offsets) {
      if (numbers_ == 2) return fail_here("holds more than two numbers");
      (numbers_++ == 0 ? tensor.begin : tensor.end) = value;
      return true;
    }
    if (tensor.rank == kMaxSafetensorsRank) {
      return fail_here(fmt::format("has more than {} extents, which is the limit", kMaxSafetensorsRank));
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) return fail_here(fmt::format("the extent {} is too large", value));
    extents.push_back(static_cast<int64_t>(value));
    ++tensor.rank;
    return true;
  }

  bool start_object(size_t) override {
    const bool wanted = depth_ == 0 || depth_ == 1;
    if (!wanted) return unexpected("an object");
    ++depth_;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == Field::dtype) return unexpected("a list");
    ++depth_;
    numbers_ = 0;
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ == 1) return start_entry(key);
    if (in_metadata_) return true;
    const auto* known = std::find(std::begin(kFields), std::end(kFields), key);
    if (known == std::end(kFields)) {
      return fail_entry(fmt::format("has the unknown field {}", quote_name(key)));
    }
    field_ = static_cast<Field>(known - std::begin(kFields));
    const unsigned bit = 1u << static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) return fail_here("is there twice");
    seen_ |= bit;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      for (size_t i = 0; i < std::size(kFields); ++i) {
        if ((seen_ & 1u << i) == 0) {
          return fail_entry(fmt::format("the field {} is missing", kFields[i]));
        }
      }
    }
    return true;
  }

  bool end_array() override {
    --depth_;
    if (field_ == Field::offsets && numbers_ != 2) return fail_here("does not hold two numbers");
    return true;
  }

  std::vector<char> names;
  std::vector<int64_t> extents;
  std::vector<Stated> tensors;

 private:
  enum class Field : uint8_t { dtype, shape, offsets };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};

  bool start_entry(const std::string& key) {
    in_metadata_ = key == kMetadata;
    if (in_metadata_) {
      return !std::exchange(has_metadata_, true) || fail_entry("the key is there twice");
    }
    tensors.push_back({.name = names.size(), .name_bytes = key.size(), .shape = extents.size()});
    names.insert(names.end(), key.begin(), key.end());
    seen_ = 0;
    return true;
  }

  bool fail_entry(std::string what) {
    return fail(bad_model(fmt::format("{}: {}", where(), entry()), std::move(what)));
  }
  bool fail_here(std::string what) {
    return fail(bad_model(fmt::format("{}: {}", where(), next_value()), std::move(what)));
  }

  std::string entry() const {
    if (in_metadata_ || tensors.empty()) return std::string(kMetadata);
    const Stated& t = tensors.back();
    return fmt::format("tensor {}", quote_name({names.data() + t.name, t.name_bytes}));
  }
  std::string next_value() const override {
    if (depth_ == 0) return "header";
    if (depth_ == 1 || in_metadata_) return entry();
    return fmt::format("{}: {}", entry(), kFields[static_cast<size_t>(field_)]);
  }
  std::string expected() const override {
    if (depth_ <= 1) return "an object";
    if (in_metadata_) return "a text";
    if (depth_ == 3) return "a whole number from 0 on";
    return field_ == Field::dtype ? "a text" : "a list of whole numbers";
  }

  int depth_ = 0;
  bool has_metadata_ = false;
  bool in_metadata_ = false;
  Field field_ = Field::dtype;
  unsigned seen_ = 0;     // fields of the current tensor, one bit each
  unsigned numbers_ = 0;  // of the current data_offsets
};

// The text of the header inside of the file.
Result<std::string_view> header_text(std::span<const std::byte> file, std::string_view where) {
  const std::string place(where);
  if (file.size() < kLengthBytes) {
    return bad_model(
        place, fmt::format("the file has {} bytes; a safetensors file has at least {}", file.size(), kLengthBytes));
  }
  static_assert(std::endian::native == std::endian::little, "the length is little-endian");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxSafetensorsHeaderBytes) {
    return bad_model(place + "@0",
                     fmt::format("the header claims {} bytes, allowed are {}", length, kMaxSafetensorsHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    return bad_model(place + "@0", fmt::format("the header claims {} bytes, but behind its length the file has {}",
                                               length, file.size() - kLengthBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<size_t>(length));
  if (text.empty() || text.front() != '{') return bad_model(place + "@8", "the header does not start with '{'");
  return text;
}

// The payloads fill `payload_bytes` bytes one behind the other. Tensors of no bytes may lie at any border.
Result<void> check_places(const SafetensorsHeader& header, std::span<const std::byte> payload, std::string_view where) {
  const auto place = [&](const SafetensorsTensor& t) {
    return fmt::format("{}: tensor {}", where, quote_name(t.name));
  };
  std::vector<const SafetensorsTensor*> order;
  order.reserve(header.tensors.size());
  for (const SafetensorsTensor& t : header.tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
    return std::pair(a->bytes.data(), a->bytes.size()) < std::pair(b->bytes.data(), b->bytes.size());
  });
  const std::byte* filled = payload.data();
  for (size_t i = 0; i < order.size(); ++i) {
    const SafetensorsTensor& t = *order[i];
    const auto begin = t.bytes.data() - payload.data();
    const auto expected = filled - payload.data();
    if (begin < expected) {
      return bad_model(place(t), fmt::format("its bytes from {} on overlap those of tensor {}, which end at {}", begin,
                                             quote_name(order[i - 1]->name), expected));
    }
    if (begin > expected) {
      return bad_model(place(t), fmt::format("its bytes start at {}, but no tensor has the bytes from {} to there",
                                             begin, expected));
    }
    filled += t.bytes.size();
  }
  const auto end = filled - payload.data();
  if (static_cast<size_t>(end) != payload.size()) {
    return bad_model(std::string(where),
                     fmt::format("the tensors end at byte {} of {} behind the header", end, payload.size()));
  }
  return {};
}

// The bytes of a tensor, from its statement.
Result<std::span<const std::byte>> bytes_of(const Stated& stated, const SafetensorsTensor& tensor,
                                            std::span<const std::byte> payload, std::string_view where) {
  const std::string place = fmt::format("{}: tensor {}", where, quote_name(tensor.name));
  if (stated.begin > stated.end || stated.end > payload.size()) {
    return bad_model(place, fmt::format("data_offsets are {} and {}, allowed are two ascending numbers up to {}",
                                        stated.begin, stated.end, payload.size()));
  }
  // An extent of 0 makes any product 0, but only after extents that overflow were refused: order must not matter.
  std::optional<int64_t> elements = 1;
  for (const int64_t extent : tensor.shape)
    elements = elements ? checked_mul(*elements, std::max<int64_t>(extent, 1)) : elements;
  if (elements && std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) elements = 0;
  const std::optional<size_t> need = elements ? storage_bytes(tensor.dtype, *elements) : std::nullopt;
  if (!need) {
    return bad_model(place, fmt::format("the shape [{}] has too many elements", fmt::join(tensor.shape, ", ")));
  }
  if (*need != stated.end - stated.begin) {
    return bad_model(place,
                     fmt::format("data_offsets span {} bytes, but {} of shape [{}] needs {}", stated.end - stated.begin,
                                 dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "), *need));
  }
  return payload.subspan(static_cast<size_t>(stated.begin), *need);
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, std::string_view where) {
  QUERN_TRY(const std::string_view text, header_text(file, where));
  HeaderEvents events(where);
  QUERN_TRY_VOID(events.parse(text));
  SafetensorsHeader header;
  header.names = std::move(events.names);
  header.extents = std::move(events.extents);
  header.tensors.reserve(events.tensors.size());
  const std::span<const std::byte> payload = file.subspan(kLengthBytes + text.size());
  for (const Stated& stated : events.tensors) {
    SafetensorsTensor tensor;
    tensor.name = {header.names.data() + stated.name, stated.name_bytes};
    tensor.dtype = stated.dtype;
    tensor.shape = {header.extents.data() + stated.shape, stated.rank};
    QUERN_TRY(tensor.bytes, bytes_of(stated, tensor, payload, where));
    header.tensors.push_back(tensor);
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(header.tensors.begin(), header.tensors.end(),
                         [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name == b.name; });
  if (twice != header.tensors.end()) {
    return bad_model(fmt::format("{}: tensor {}", where, quote_name(twice->name)), "the key is there twice");
  }
  QUERN_TRY_VOID(check_places(header, payload, where));
  return header;
}

const SafetensorsTensor* find_tensor(std::span<const SafetensorsTensor> tensors, std::string_view name) {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const SafetensorsTensor& t, std::string_view n) { return t.name < n; });
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

}  // namespace quern::formats
