// SPDX-License-Identifier: Apache-2.0
// The part of the expression grammar that names something: calls, filters and tests, resolved here or refused.
#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"
#include "text/jinja/expression_nodes.h"
#include "text/jinja/expression_parser.h"

namespace quern::text::jinja {
namespace {

// Names are looked for one by one. Published templates have less than 10.
constexpr size_t kMaxArguments = 100;

const std::string* constant_text(const ExpressionPtr& expression) {
  return expression->operation == Operation::constant ? expression->constant.utf8() : nullptr;
}

}  // namespace

Result<ExpressionParser::CallArguments> ExpressionParser::call_arguments() {
  const int line = cursor_.line();
  QUERN_TRY_VOID(cursor_.expect_sign("("));
  CallArguments arguments;
  while (!cursor_.is_sign(")")) {
    if (arguments.positional.size() + arguments.keywords.size() == kMaxArguments) {
      return unsupported(at_line(line), fmt::format("more than {} arguments are not supported", kMaxArguments));
    }
    if (cursor_.is_sign("*") || cursor_.is_sign("**")) {
      return unsupported(at_line(line), "arguments unpacked by * or ** are not supported");
    }
    if (cursor_.is(TokenKind::name) && cursor_.is_sign("=", 1)) {
      std::string keyword = cursor_.next().text;
      cursor_.next();
      QUERN_TRY(ExpressionPtr value, expression());
      const bool twice = std::any_of(arguments.keywords.begin(), arguments.keywords.end(),
                                     [&](const auto& k) { return k.first == keyword; });
      if (twice) return bad_model(at_line(line), fmt::format("the argument {} is there twice", quote_name(keyword)));
      arguments.keywords.emplace_back(std::move(keyword), std::move(value));
    } else {
      if (!arguments.keywords.empty()) {
        return bad_model(at_line(line), "an argument by place stands behind one by keyword");
      }
      QUERN_TRY(ExpressionPtr value, expression());
      arguments.positional.push_back(std::move(value));
    }
    if (!cursor_.skip_sign(",")) break;
  }
  QUERN_TRY_VOID(cursor_.expect_sign(")"));
  return arguments;
}

Result<ExpressionPtr> ExpressionParser::apply(Operation operation, const Builtin& builtin, const char* kind,
                                              std::vector<ExpressionPtr> leading, CallArguments arguments, int line) {
  const size_t first = leading.size();
  const size_t count = builtin.parameters.size();
  const auto refused = [&](std::string_view what) {
    return unsupported(at_line(line), fmt::format("the {} {} {}", kind, quote_name(builtin.name), what));
  };
  if (arguments.positional.size() > count) return refused(fmt::format("takes at most {} arguments here", count));
  for (ExpressionPtr& argument : arguments.positional) leading.push_back(std::move(argument));
  leading.resize(first + count);
  for (auto& [keyword, value] : arguments.keywords) {
    const auto place = std::find(builtin.parameters.begin(), builtin.parameters.end(), keyword);
    if (!builtin.by_keyword || place == builtin.parameters.end()) {
      return refused(fmt::format("has no argument {} here", quote_name(keyword)));
    }
    ExpressionPtr& argument = leading[first + static_cast<size_t>(place - builtin.parameters.begin())];
    if (argument) return refused(fmt::format("has the argument {} twice", quote_name(keyword)));
    argument = std::move(value);
  }
  for (size_t i = 0; i < builtin.required; ++i) {
    if (!leading[first + i]) return refused(fmt::format("needs the argument {}", quote_name(builtin.parameters[i])));
  }
  QUERN_TRY(ExpressionPtr made, make_node(operation, line, std::move(leading)));
  made->builtin = &builtin;
  return made;
}

Result<ExpressionPtr> ExpressionParser::call(ExpressionPtr callee) {
  const int line = cursor_.line();
  QUERN_TRY(CallArguments arguments, call_arguments());
  std::vector<ExpressionPtr> operands;
  if (callee->operation == Operation::attribute) {
    const Builtin* method = find_method(callee->name);
    if (method == nullptr) return lacks(line, "method", callee->name);
    operands.push_back(std::move(callee->operands[0]));
    return apply(Operation::call, *method, "method", std::move(operands), std::move(arguments), line);
  }
  if (callee->operation == Operation::loop_attribute) return lacks(line, "method", "loop." + callee->name);
  if (callee->operation != Operation::name)
    return unsupported(at_line(line), "calling this expression is not supported");
  if (const Builtin* function = find_function(callee->name)) {
    operands.emplace_back();
    return apply(Operation::call, *function, "function", std::move(operands), std::move(arguments), line);
  }
  const bool is_namespace = callee->name == "namespace";
  if (is_namespace && !arguments.positional.empty()) {
    return unsupported(at_line(line), "a namespace from a mapping is not supported");
  }
  if (!is_namespace) operands.push_back(std::move(callee));
  for (ExpressionPtr& argument : arguments.positional) operands.push_back(std::move(argument));
  std::vector<std::string> keywords;
  for (auto& [keyword, value] : arguments.keywords) {
    keywords.push_back(std::move(keyword));
    operands.push_back(std::move(value));
  }
  QUERN_TRY(ExpressionPtr made,
            make_node(is_namespace ? Operation::make_namespace : Operation::call_macro, line, std::move(operands)));
  made->keywords = std::move(keywords);
  return made;
}

Result<ExpressionPtr> ExpressionParser::filter(ExpressionPtr subject) {
  const int line = cursor_.next().line;
  QUERN_TRY(const std::string name, cursor_.expect_any_name());
  CallArguments arguments;
  if (cursor_.is_sign("(")) {
    QUERN_TRY(arguments, call_arguments());
  }
  if (name == "map") return map(std::move(subject), std::move(arguments), line);
  static constexpr std::pair<std::string_view, Operation> kSelections[] = {
      {"select", Operation::select},
      {"reject", Operation::reject},
      {"selectattr", Operation::select_by_attribute},
      {"rejectattr", Operation::reject_by_attribute}};
  for (const auto& [selection, operation] : kSelections) {
    if (name == selection) return select(operation, std::move(subject), std::move(arguments), line);
  }
  const Builtin* builtin = find_filter(name);
  if (builtin == nullptr) return lacks(line, "filter", name);
  std::vector<ExpressionPtr> operands;
  operands.push_back(std::move(subject));
  return apply(Operation::call, *builtin, "filter", std::move(operands), std::move(arguments), line);
}

// map(attribute=name, default=value), or map("filter", its arguments ...).
Result<ExpressionPtr> ExpressionParser::map(ExpressionPtr subject, CallArguments arguments, int line) {
  std::vector<ExpressionPtr> operands;
  operands.push_back(std::move(subject));
  if (arguments.positional.empty()) {
    static const Builtin kByAttribute{"map", {"attribute", "default"}, 1};
    return apply(Operation::map_attribute, kByAttribute, "filter", std::move(operands), std::move(arguments), line);
  }
  const std::string* name = constant_text(arguments.positional.front());
  if (name == nullptr) return unsupported(at_line(line), "the filter 'map' needs the name of a filter as a string");
  const Builtin* builtin = find_filter(*name);
  if (builtin == nullptr) return lacks(line, "filter", *name);
  arguments.positional.erase(arguments.positional.begin());
  return apply(Operation::map_filter, *builtin, "filter", std::move(operands), std::move(arguments), line);
}

// select("test", its arguments ...), and selectattr(attribute, "test", its arguments ...); without a test, truth
// counts.
Result<ExpressionPtr> ExpressionParser::select(Operation operation, ExpressionPtr subject, CallArguments arguments,
                                               int line) {
  std::vector<ExpressionPtr> operands;
  operands.push_back(std::move(subject));
  auto& given = arguments.positional;
  if (operation == Operation::select_by_attribute || operation == Operation::reject_by_attribute) {
    if (given.empty()) return unsupported(at_line(line), "selecting by attribute needs the name of the attribute");
    operands.push_back(std::move(given.front()));
    given.erase(given.begin());
  }
  if (given.empty()) {
    static const Builtin kTruth{"select", {}, 0};
    QUERN_TRY(ExpressionPtr made, apply(operation, kTruth, "filter", std::move(operands), std::move(arguments), line));
    made->builtin = nullptr;
    return made;
  }
  const std::string* name = constant_text(given.front());
  if (name == nullptr) return unsupported(at_line(line), "selecting needs the name of a test as a string");
  const Builtin* builtin = find_test(*name);
  if (builtin == nullptr) return lacks(line, "test", *name);
  given.erase(given.begin());
  return apply(operation, *builtin, "test", std::move(operands), std::move(arguments), line);
}

// An argument may stand without brackets: "is divisibleby 3".
Result<ExpressionPtr> ExpressionParser::test(ExpressionPtr subject) {
  const int line = cursor_.next().line;
  const bool negated = cursor_.skip_name("not");
  QUERN_TRY(const std::string name, cursor_.expect_any_name());
  const Builtin* builtin = find_test(name);
  if (builtin == nullptr) return lacks(line, "test", name);
  CallArguments arguments;
  const bool starts_argument = cursor_.is(TokenKind::name) || cursor_.is(TokenKind::string) ||
                               cursor_.is(TokenKind::integer) || cursor_.is(TokenKind::real) || cursor_.is_sign("[") ||
                               cursor_.is_sign("{");
  if (cursor_.is_sign("(")) {
    QUERN_TRY(arguments, call_arguments());
  } else if (starts_argument && !cursor_.is_name_of({"else", "or", "and"})) {
    QUERN_TRY(ExpressionPtr first, primary());
    QUERN_TRY(ExpressionPtr argument, postfix(std::move(first), false));
    arguments.positional.push_back(std::move(argument));
  }
  std::vector<ExpressionPtr> operands;
  operands.push_back(std::move(subject));
  QUERN_TRY(ExpressionPtr made,
            apply(Operation::call, *builtin, "test", std::move(operands), std::move(arguments), line));
  return negated ? make_node_of(Operation::logical_not, line, std::move(made)) : std::move(made);
}

}  // namespace quern::text::jinja
