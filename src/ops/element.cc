// SPDX-License-Identifier: Apache-2.0
// The refusal of other element types.
#include "ops/element.h"

#include <fmt/format.h>

namespace quern::ops {

Result<void> check_float_or_brain(DType type, std::string_view where) {
  if (is_float_or_brain(type)) return {};
  return unsupported(std::string(where),
                     fmt::format("elements of type {} are not supported (float32 or bfloat16)", dtype_name(type)));
}

}  // namespace quern::ops
