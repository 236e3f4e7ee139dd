// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/expression_nodes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"
#include "text/jinja/lexer.h"

namespace quern::text::jinja {
namespace {

// Expressions are walked and destroyed by recursion. Published templates need less than 20.
constexpr int kMaxDepth = 150;

}  // namespace

Result<ExpressionPtr> make_node(Operation operation, int line, std::vector<ExpressionPtr> operands) {
  auto made = std::make_unique<Expression>();
  made->operation = operation;
  made->line = line;
  for (const ExpressionPtr& operand : operands) {
    if (operand) made->depth = std::max(made->depth, operand->depth + 1);
  }
  if (made->depth > kMaxDepth) {
    return unsupported(at_line(line),
                       fmt::format("expressions of more than {} steps in each other are not supported", kMaxDepth));
  }
  made->operands = std::move(operands);
  return made;
}

ExpressionPtr make_constant(Value value, int line) {
  auto made = std::make_unique<Expression>();
  made->line = line;
  made->constant = std::move(value);
  return made;
}

Error lacks(int line, const char* kind, std::string_view name) {
  return unsupported(at_line(line), fmt::format("the {} {} is not supported", kind, quote_name(name)));
}

}  // namespace quern::text::jinja
