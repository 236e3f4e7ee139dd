// SPDX-License-Identifier: Apache-2.0
// Operators, literals and names; calls, filters and tests are in parse_calls.cc.
#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/expression_nodes.h"

namespace quern::text::jinja {
namespace {

// Parsing goes by recursion. Published templates nest less than 20 deep.
constexpr int kMaxNesting = 100;

}  // namespace

Result<void> ExpressionParser::Nesting::check() const {
  if (parser_.nesting_ <= kMaxNesting) return {};
  return unsupported(at_line(parser_.cursor_.line()),
                     fmt::format("nesting of more than {} is not supported", kMaxNesting));
}

Result<ExpressionPtr> ExpressionParser::expression(bool with_conditional) {
  const Nesting nesting(*this);
  QUERN_TRY_VOID(nesting.check());
  return with_conditional ? conditional() : disjunction();
}

Result<ExpressionPtr> ExpressionParser::expression_list(bool with_conditional, std::string_view end_name) {
  const int line = cursor_.line();
  std::vector<ExpressionPtr> elements;
  bool tuple = false;
  do {
    const bool ends = cursor_.is(TokenKind::output_end) || cursor_.is(TokenKind::tag_end) || cursor_.is_sign(")") ||
                      (!end_name.empty() && cursor_.is_name(end_name));
    if (ends) {
      if (elements.empty()) return cursor_.unexpected("an expression");
      break;
    }
    QUERN_TRY(ExpressionPtr element, expression(with_conditional));
    elements.push_back(std::move(element));
    tuple = tuple || cursor_.is_sign(",");
  } while (cursor_.skip_sign(","));
  if (!tuple) return std::move(elements.front());
  return make_node(Operation::tuple, line, std::move(elements));
}

Result<ExpressionPtr> ExpressionParser::conditional() {
  const int line = cursor_.line();
  QUERN_TRY(ExpressionPtr value, disjunction());
  while (cursor_.skip_name("if")) {
    QUERN_TRY(ExpressionPtr condition, disjunction());
    ExpressionPtr otherwise;
    if (cursor_.skip_name("else")) {
      const Nesting nesting(*this);
      QUERN_TRY_VOID(nesting.check());
      QUERN_TRY(otherwise, conditional());
    }
    QUERN_TRY(value,
              make_node_of(Operation::conditional, line, std::move(condition), std::move(value), std::move(otherwise)));
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::disjunction() {
  QUERN_TRY(ExpressionPtr left, conjunction());
  while (cursor_.is_name("or")) {
    const int line = cursor_.next().line;
    QUERN_TRY(ExpressionPtr right, conjunction());
    QUERN_TRY(left, make_node_of(Operation::logical_or, line, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::conjunction() {
  QUERN_TRY(ExpressionPtr left, negation());
  while (cursor_.is_name("and")) {
    const int line = cursor_.next().line;
    QUERN_TRY(ExpressionPtr right, negation());
    QUERN_TRY(left, make_node_of(Operation::logical_and, line, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::negation() {
  if (!cursor_.is_name("not")) return comparison();
  const Nesting nesting(*this);
  QUERN_TRY_VOID(nesting.check());
  const int line = cursor_.next().line;
  QUERN_TRY(ExpressionPtr operand, negation());
  return make_node_of(Operation::logical_not, line, std::move(operand));
}

Result<ExpressionPtr> ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Comparison> kSigns[] = {
      {"==", Comparison::equal},      {"!=", Comparison::not_equal}, {"<", Comparison::less},
      {"<=", Comparison::less_equal}, {">", Comparison::greater},    {">=", Comparison::greater_equal}};
  const int line = cursor_.line();
  QUERN_TRY(ExpressionPtr first, sum());
  std::vector<ExpressionPtr> operands;
  operands.push_back(std::move(first));
  std::vector<Comparison> comparisons;
  for (;;) {
    const auto* const sign =
        std::find_if(std::begin(kSigns), std::end(kSigns), [&](const auto& s) { return cursor_.is_sign(s.first); });
    if (sign != std::end(kSigns)) {
      cursor_.next();
      comparisons.push_back(sign->second);
    } else if (cursor_.skip_name("in")) {
      comparisons.push_back(Comparison::in);
    } else if (cursor_.is_name("not") && cursor_.is_name("in", 1)) {
      cursor_.next();
      cursor_.next();
      comparisons.push_back(Comparison::not_in);
    } else {
      break;
    }
    QUERN_TRY(ExpressionPtr operand, sum());
    operands.push_back(std::move(operand));
  }
  if (comparisons.empty()) return std::move(operands.front());
  QUERN_TRY(ExpressionPtr made, make_node(Operation::compare, line, std::move(operands)));
  made->comparisons = std::move(comparisons);
  return made;
}

Result<ExpressionPtr> ExpressionParser::left_to_right(Level operand, SignOperations signs) {
  QUERN_TRY(ExpressionPtr left, (this->*operand)());
  for (;;) {
    const auto sign = std::find_if(signs.begin(), signs.end(), [&](const auto& s) { return cursor_.is_sign(s.first); });
    if (sign == signs.end()) return left;
    const int line = cursor_.next().line;
    QUERN_TRY(ExpressionPtr right, (this->*operand)());
    QUERN_TRY(left, make_node_of(sign->second, line, std::move(left), std::move(right)));
  }
}

Result<ExpressionPtr> ExpressionParser::sum() {
  return left_to_right(&ExpressionParser::concatenation, {{"+", Operation::add}, {"-", Operation::subtract}});
}

Result<ExpressionPtr> ExpressionParser::concatenation() {
  const int line = cursor_.line();
  std::vector<ExpressionPtr> operands;
  do {
    QUERN_TRY(ExpressionPtr operand, product());
    operands.push_back(std::move(operand));
  } while (cursor_.skip_sign("~"));
  if (operands.size() == 1) return std::move(operands.front());
  return make_node(Operation::join, line, std::move(operands));
}

Result<ExpressionPtr> ExpressionParser::product() {
  return left_to_right(&ExpressionParser::factor, {{"*", Operation::multiply},
                                                   {"/", Operation::divide},
                                                   {"//", Operation::floor_divide},
                                                   {"%", Operation::modulo}});
}

Result<ExpressionPtr> ExpressionParser::factor() {
  QUERN_TRY(ExpressionPtr operand, unary(true));
  if (cursor_.is_sign("**")) return lacks(cursor_.line(), "operator", "**");
  return operand;
}

Result<ExpressionPtr> ExpressionParser::unary(bool with_filters) {
  const int line = cursor_.line();
  const bool minus = cursor_.is_sign("-");
  if (!minus && !cursor_.is_sign("+")) {
    QUERN_TRY(ExpressionPtr subject, primary());
    return postfix(std::move(subject), with_filters);
  }
  const Nesting nesting(*this);
  QUERN_TRY_VOID(nesting.check());
  cursor_.next();
  QUERN_TRY(ExpressionPtr operand, unary(false));
  QUERN_TRY(ExpressionPtr made, make_node_of(minus ? Operation::minus : Operation::plus, line, std::move(operand)));
  return postfix(std::move(made), with_filters);
}

Result<ExpressionPtr> ExpressionParser::primary() {
  const Token& token = cursor_.peek();
  switch (token.kind) {
    case TokenKind::name: return name();
    case TokenKind::string: return string();
    case TokenKind::integer: return make_constant(Value(cursor_.next().integer), token.line);
    case TokenKind::real: return make_constant(Value(cursor_.next().real), token.line);
    default: break;
  }
  if (cursor_.is_sign("(")) return parenthesized();
  if (cursor_.is_sign("[")) return list();
  if (cursor_.is_sign("{")) return mapping();
  return cursor_.unexpected("an expression");
}

Result<ExpressionPtr> ExpressionParser::name() {
  const Token token = cursor_.next();
  const auto one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), token.text) != names.end();
  };
  if (one_of({"true", "True"})) return make_constant(Value(true), token.line);
  if (one_of({"false", "False"})) return make_constant(Value(false), token.line);
  if (one_of({"none", "None"})) return make_constant(Value(None{}), token.line);
  if (token.text == "loop" && loop_access != LoopAccess::ordinary) return loop_attribute(token.line);
  if (one_of({"self", "super", "cycler", "joiner", "lipsum", "dict"}) ||
      (in_macro && one_of({"caller", "varargs", "kwargs"}))) {
    return lacks(token.line, "name", token.text);
  }
  QUERN_TRY(ExpressionPtr made, make_node_of(Operation::name, token.line));
  made->name = token.text;
  return made;
}

Result<ExpressionPtr> ExpressionParser::loop_attribute(int line) {
  if (loop_access == LoopAccess::refused) {
    return unsupported(at_line(line),
                       "'loop' is not supported in the condition or the else of a loop, nor in a macro inside of one");
  }
  static constexpr std::string_view kKnown[] = {"first",    "index",    "index0",   "last",     "length",
                                                "nextitem", "previtem", "revindex", "revindex0"};
  if (!cursor_.is_sign(".") || cursor_.peek(1).kind != TokenKind::name) {
    return unsupported(at_line(line), "'loop' without an attribute is not supported");
  }
  cursor_.next();
  const std::string& attribute = cursor_.next().text;
  if (std::find(std::begin(kKnown), std::end(kKnown), attribute) == std::end(kKnown)) {
    return lacks(line, "attribute", "loop." + attribute);
  }
  QUERN_TRY(ExpressionPtr made, make_node_of(Operation::loop_attribute, line));
  made->name = attribute;
  return made;
}

// Strings that stand side by side are one.
Result<ExpressionPtr> ExpressionParser::string() {
  const int line = cursor_.line();
  std::string text;
  while (cursor_.is(TokenKind::string)) text += cursor_.next().text;
  return make_constant(Value::text(std::move(text)), line);
}

Result<ExpressionPtr> ExpressionParser::parenthesized() {
  const int line = cursor_.next().line;
  if (cursor_.skip_sign(")")) return make_node_of(Operation::tuple, line);
  QUERN_TRY(ExpressionPtr inner, expression_list());
  QUERN_TRY_VOID(cursor_.expect_sign(")"));
  return inner;
}

Result<ExpressionPtr> ExpressionParser::list() {
  const int line = cursor_.next().line;
  std::vector<ExpressionPtr> elements;
  while (!cursor_.is_sign("]")) {
    QUERN_TRY(ExpressionPtr element, expression());
    elements.push_back(std::move(element));
    if (!cursor_.skip_sign(",")) break;
  }
  QUERN_TRY_VOID(cursor_.expect_sign("]"));
  return make_node(Operation::list, line, std::move(elements));
}

Result<ExpressionPtr> ExpressionParser::mapping() {
  const int line = cursor_.next().line;
  std::vector<ExpressionPtr> pairs;
  while (!cursor_.is_sign("}")) {
    QUERN_TRY(ExpressionPtr key, expression());
    QUERN_TRY_VOID(cursor_.expect_sign(":"));
    QUERN_TRY(ExpressionPtr value, expression());
    pairs.push_back(std::move(key));
    pairs.push_back(std::move(value));
    if (!cursor_.skip_sign(",")) break;
  }
  QUERN_TRY_VOID(cursor_.expect_sign("}"));
  return make_node(Operation::mapping, line, std::move(pairs));
}

Result<ExpressionPtr> ExpressionParser::postfix(ExpressionPtr subject, bool with_filters) {
  bool filtered = false;  // behind the first filter or test only calls, filters and tests follow
  for (;;) {
    if (!filtered && cursor_.is_sign(".")) {
      QUERN_TRY(subject, attribute(std::move(subject)));
    } else if (!filtered && cursor_.is_sign("[")) {
      QUERN_TRY(subject, subscript(std::move(subject)));
    } else if (cursor_.is_sign("(")) {
      QUERN_TRY(subject, call(std::move(subject)));
    } else if (with_filters && cursor_.is_sign("|")) {
      QUERN_TRY(subject, filter(std::move(subject)));
      filtered = true;
    } else if (with_filters && cursor_.is_name("is")) {
      QUERN_TRY(subject, test(std::move(subject)));
      filtered = true;
    } else {
      return subject;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::attribute(ExpressionPtr subject) {
  const int line = cursor_.next().line;
  if (cursor_.is(TokenKind::integer)) {
    ExpressionPtr place = make_constant(Value(cursor_.next().integer), line);
    return make_node_of(Operation::item, line, std::move(subject), std::move(place));
  }
  QUERN_TRY(std::string name, cursor_.expect_any_name());
  if (name.starts_with("__")) return lacks(line, "attribute", name);
  QUERN_TRY(ExpressionPtr made, make_node_of(Operation::attribute, line, std::move(subject)));
  made->name = std::move(name);
  return made;
}

Result<ExpressionPtr> ExpressionParser::subscript(ExpressionPtr subject) {
  const int line = cursor_.next().line;
  ExpressionPtr bounds[3];
  bool is_slice = false;
  for (ExpressionPtr& bound : bounds) {
    if (!cursor_.is_sign(":") && !cursor_.is_sign("]")) {
      QUERN_TRY(bound, expression());
    }
    if (&bound == &bounds[2] || !cursor_.skip_sign(":")) break;
    is_slice = true;
  }
  if (cursor_.is_sign(",")) return unsupported(at_line(line), "an element by more than one key is not supported");
  if (!is_slice && !bounds[0]) return cursor_.unexpected("an expression");
  QUERN_TRY_VOID(cursor_.expect_sign("]"));
  if (!is_slice) return make_node_of(Operation::item, line, std::move(subject), std::move(bounds[0]));
  return make_node_of(Operation::slice, line, std::move(subject), std::move(bounds[0]), std::move(bounds[1]),
                      std::move(bounds[2]));
}

}  // namespace quern::text::jinja
