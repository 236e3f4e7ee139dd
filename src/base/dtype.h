// SPDX-License-Identifier: Apache-2.0
// Owns the element types that tensors can have inside quern and their storage sizes.
// Does not own any file format's numbering of them (formats/ maps those).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/checked.h"

namespace quern {

enum class DType : uint8_t { f32, f64, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean, f8_e4m3, u4, i4 };

// Bits one element takes; the packed 4-bit types put the element with the lower index into the low nibble.
constexpr int bits_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
    case DType::u64: return 64;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 32;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
    case DType::u16: return 16;
    case DType::i8:
    case DType::u8:
    case DType::boolean:
    case DType::f8_e4m3: return 8;
    case DType::u4:
    case DType::i4: return 4;
  }
  return 0;
}

// Bytes that `elements` elements take, 4-bit types rounded up to a byte; nothing on overflow or a negative count.
constexpr std::optional<size_t> storage_bytes(DType t, int64_t elements) {
  if (elements < 0) return std::nullopt;
  const auto bits = static_cast<size_t>(bits_of(t));
  if (bits == 4) return (static_cast<size_t>(elements) + 1) / 2;
  return checked_mul(static_cast<size_t>(elements), bits / 8);
}

constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "float32";
    case DType::f64: return "float64";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::i16: return "int16";
    case DType::i8: return "int8";
    case DType::u64: return "uint64";
    case DType::u32: return "uint32";
    case DType::u16: return "uint16";
    case DType::u8: return "uint8";
    case DType::boolean: return "bool";
    case DType::f8_e4m3: return "float8_e4m3fn";
    case DType::u4: return "uint4";
    case DType::i4: return "int4";
  }
  return "?";
}

}  // namespace quern
