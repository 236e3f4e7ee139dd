// SPDX-License-Identifier: Apache-2.0
// Owns the mapping between the numbers that ONNX gives to element types and the types that tensors have inside quern.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace quern::formats {

// Nothing for a type that quern does not have.
std::optional<DType> dtype_from_onnx(int32_t number);
int32_t dtype_to_onnx(DType type);

// For error texts, also about types that quern does not have: "float32", "float8e4m3fn", "type 99".
std::string onnx_type_name(int32_t number);

}  // namespace quern::formats
