// SPDX-License-Identifier: Apache-2.0
// The table of element types, numbered as TensorProto.DataType.
#include "formats/onnx/element_type.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <string_view>

namespace quern::formats {
namespace {

struct TypeRow {
  int32_t number;
  DType dtype;
};
constexpr std::array kTypes = {
    TypeRow{1, DType::f32},   TypeRow{2, DType::u8},   TypeRow{3, DType::i8},   TypeRow{4, DType::u16},
    TypeRow{5, DType::i16},   TypeRow{6, DType::i32},  TypeRow{7, DType::i64},  TypeRow{9, DType::boolean},
    TypeRow{10, DType::f16},  TypeRow{11, DType::f64}, TypeRow{12, DType::u32}, TypeRow{13, DType::u64},
    TypeRow{16, DType::bf16}, TypeRow{21, DType::u4},  TypeRow{22, DType::i4},
};

// Indexed by number; those with a DType are named by it.
constexpr std::array<std::string_view, 29> kOtherTypeNames = {"undefined",
                                                              "",
                                                              "",
                                                              "",
                                                              "",
                                                              "",
                                                              "",
                                                              "",
                                                              "string",
                                                              "",
                                                              "",
                                                              "",
                                                              "",
                                                              "",
                                                              "complex64",
                                                              "complex128",
                                                              "",
                                                              "float8e4m3fn",
                                                              "float8e4m3fnuz",
                                                              "float8e5m2",
                                                              "float8e5m2fnuz",
                                                              "",
                                                              "",
                                                              "float4e2m1",
                                                              "float8e8m0",
                                                              "uint2",
                                                              "int2",
                                                              "float6e2m3",
                                                              "float6e3m2"};

}  // namespace

std::optional<DType> dtype_from_onnx(int32_t number) {
  for (const TypeRow& row : kTypes) {
    if (row.number == number) return row.dtype;
  }
  return std::nullopt;
}

int32_t dtype_to_onnx(DType type) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == type) return row.number;
  }
  return 0;
}

std::string onnx_type_name(int32_t number) {
  if (const std::optional<DType> type = dtype_from_onnx(number)) return std::string(dtype_name(*type));
  if (number >= 0 && number < std::ssize(kOtherTypeNames))
    return std::string(kOtherTypeNames[static_cast<size_t>(number)]);
  return fmt::format("type {}", number);
}

}  // namespace quern::formats
