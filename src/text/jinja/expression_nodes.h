// SPDX-License-Identifier: Apache-2.0
// Owns making the nodes of expressions, with the bound on how deep they stand in each other. Used by the two files of
// the expression grammar.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/syntax.h"

namespace quern::text::jinja {

// Errors: unsupported, when the tree gets too deep to be walked.
Result<ExpressionPtr> make_node(Operation operation, int line, std::vector<ExpressionPtr> operands);

template <class... Operands>
Result<ExpressionPtr> make_node_of(Operation operation, int line, Operands... operands) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(operands)), ...);
  return make_node(operation, line, std::move(list));
}

ExpressionPtr make_constant(Value value, int line);

// "the filter 'x' is not supported".
Error lacks(int line, const char* kind, std::string_view name);

}  // namespace quern::text::jinja
