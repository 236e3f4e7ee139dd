// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"
#include "text/jinja/builtins.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operators.h"
#include "text/jinja/value_text.h"

namespace quern::text::jinja {

Result<Value> Evaluator::evaluate(const Expression& expression, Scope& scope) {
  const Deeper deeper(*this);
  Result<void> may = deeper.check();
  if (may.ok()) may = budget_.spend(1);
  Result<Value> value = may.ok() ? evaluate_at(expression, scope) : Result<Value>(std::move(may).error());
  if (value.ok() || !value.error().where.empty()) return value;
  Error error = std::move(value).error();
  error.where = at_line(expression.line);
  return error;
}

Result<Value> Evaluator::evaluate_at(const Expression& expression, Scope& scope) {
  const auto& operands = expression.operands;
  switch (expression.operation) {
    case Operation::constant: return expression.constant;
    case Operation::name: return look_up(expression.name, scope);
    case Operation::list:
    case Operation::tuple: {
      QUERN_TRY(std::vector<Value> items, evaluate_all(operands, scope));
      return make_sequence(std::move(items), expression.operation == Operation::list ? Form::list : Form::tuple);
    }
    case Operation::mapping: return mapping(expression, scope);
    case Operation::attribute: {
      QUERN_TRY(const Value subject, evaluate(*operands[0], scope));
      return attribute(subject, expression.name);
    }
    case Operation::item: {
      QUERN_TRY(const Value subject, evaluate(*operands[0], scope));
      QUERN_TRY(const Value key, evaluate(*operands[1], scope));
      return item(subject, key, budget_);
    }
    case Operation::slice: return slice_of(expression, scope);
    case Operation::loop_attribute: return loop_attribute(expression.name);
    case Operation::call_macro: return call_macro(expression, scope);
    case Operation::make_namespace: return make_namespace(expression, scope);
    case Operation::call: return call_builtin(expression, scope);
    case Operation::map_attribute:
    case Operation::map_filter:
    case Operation::select:
    case Operation::reject:
    case Operation::select_by_attribute:
    case Operation::reject_by_attribute: return map_or_select(expression, scope);
    case Operation::plus:
    case Operation::minus: {
      QUERN_TRY(const Value value, evaluate(*operands[0], scope));
      return signed_value(expression.operation, value);
    }
    case Operation::logical_not:
    case Operation::logical_and:
    case Operation::logical_or:
    case Operation::conditional: return logical(expression, scope);
    case Operation::add:
    case Operation::subtract:
    case Operation::multiply:
    case Operation::divide:
    case Operation::floor_divide:
    case Operation::modulo: {
      QUERN_TRY(const Value left, evaluate(*operands[0], scope));
      QUERN_TRY(const Value right, evaluate(*operands[1], scope));
      return calculate(expression.operation, left, right, budget_);
    }
    case Operation::join: return join(expression, scope);
    case Operation::compare: return compare_all(expression, scope);
  }
  return refuse("an operation is missing");
}

Result<std::vector<Value>> Evaluator::evaluate_all(const std::vector<ExpressionPtr>& expressions, Scope& scope) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) {
    QUERN_TRY(Value value, evaluate(*expression, scope));
    values.push_back(std::move(value));
  }
  return values;
}

Result<std::optional<Value>> Evaluator::evaluate_optional(const ExpressionPtr& expression, Scope& scope) {
  if (!expression) return std::optional<Value>();
  QUERN_TRY(Value value, evaluate(*expression, scope));
  return std::optional<Value>(std::move(value));
}

Result<Value> Evaluator::look_up(const std::string& name, const Scope& scope) {
  size_t names = 0;
  for (const Scope* at = &scope; at != nullptr; at = at->around) names += at->variables.size();
  QUERN_TRY_VOID(budget_.spend_names(names));
  if (const Value* found = scope.find(name)) return *found;
  if (name == "namespace" || find_function(name) != nullptr) return Value(Opaque{"a function that is not called"});
  return Value::undefined(fmt::format("{} is undefined", quote_name(name)));
}

Result<Value> Evaluator::mapping(const Expression& expression, Scope& scope) {
  QUERN_TRY(std::vector<Value> parts, evaluate_all(expression.operands, scope));
  Mapping made;
  for (size_t i = 0; i < parts.size(); i += 2) {
    if (parts[i].utf8() == nullptr) {
      return refuse(fmt::format("{} as the key of a mapping is not supported", kind_name(parts[i])));
    }
    QUERN_TRY_VOID(budget_.spend_names(made.entries().size()));
    made.set(*parts[i].utf8(), std::move(parts[i + 1]));
  }
  return make_mapping(std::move(made));
}

Result<Value> Evaluator::slice_of(const Expression& expression, Scope& scope) {
  QUERN_TRY(const Value subject, evaluate(*expression.operands[0], scope));
  Value bounds[3] = {None{}, None{}, None{}};
  for (size_t i = 0; i < 3; ++i) {
    QUERN_TRY(std::optional<Value> bound, evaluate_optional(expression.operands[i + 1], scope));
    if (bound) bounds[i] = std::move(*bound);
  }
  return slice(subject, bounds[0], bounds[1], bounds[2], budget_);
}

Result<Value> Evaluator::loop_attribute(const std::string& name) {
  Loop& loop = *loops_.back();
  if (name == "index0") return Value(loop.index0);
  if (name == "index") return Value(loop.index0 + 1);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "previtem")
    return loop.index0 > 0 ? loop.before : Value::undefined("there is no element before the first");
  if (name == "last" || name == "nextitem") {
    QUERN_TRY_VOID(peek(loop));
    if (name == "last") return Value(!loop.after.has_value());
    return loop.after ? *loop.after : Value::undefined("there is no element behind the last");
  }
  QUERN_TRY(const int64_t length, count(loop));
  if (name == "length") return Value(length);
  return Value(length - loop.index0 - (name == "revindex0" ? 1 : 0));
}

Result<Value> Evaluator::call_macro(const Expression& expression, Scope& scope) {
  QUERN_TRY(const Value callee, evaluate(*expression.operands[0], scope));
  const auto* found = callee.as<const Macro*>();
  if (found == nullptr) {
    return refuse(
        fmt::format("{} is {} and cannot be called", quote_name(expression.operands[0]->name), kind_name(callee)));
  }
  const auto& parameters = (*found)->statement->parameters;
  std::vector<std::optional<Value>> arguments(parameters.size());
  const size_t by_place = expression.operands.size() - 1 - expression.keywords.size();
  if (by_place > parameters.size()) {
    return refuse(fmt::format("the macro {} takes {} arguments, not {}", quote_name((*found)->statement->name),
                              parameters.size(), by_place));
  }
  for (size_t i = 0; i < by_place; ++i) {
    QUERN_TRY(arguments[i], evaluate_optional(expression.operands[1 + i], scope));
  }
  for (size_t i = 0; i < expression.keywords.size(); ++i) {
    const std::string& keyword = expression.keywords[i];
    const auto place = std::find_if(parameters.begin() + static_cast<std::ptrdiff_t>(by_place), parameters.end(),
                                    [&](const auto& parameter) { return parameter.first == keyword; });
    if (place == parameters.end()) {
      return refuse(fmt::format("the macro {} has no argument {} to give here", quote_name((*found)->statement->name),
                                quote_name(keyword)));
    }
    QUERN_TRY(arguments[static_cast<size_t>(place - parameters.begin())],
              evaluate_optional(expression.operands[1 + by_place + i], scope));
  }
  return run_macro(**found, std::move(arguments));
}

Result<Value> Evaluator::make_namespace(const Expression& expression, Scope& scope) {
  QUERN_TRY_VOID(budget_.spend(1));
  QUERN_TRY(std::vector<Value> values, evaluate_all(expression.operands, scope));
  namespaces_.emplace_back();
  for (size_t i = 0; i < values.size(); ++i)
    namespaces_.back().attributes.set(expression.keywords[i], std::move(values[i]));
  return Value(&namespaces_.back());
}

Result<std::vector<std::optional<Value>>> Evaluator::evaluate_arguments(const Expression& expression, Scope& scope) {
  std::vector<std::optional<Value>> arguments;
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    QUERN_TRY(std::optional<Value> argument, evaluate_optional(expression.operands[i], scope));
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

Result<Value> Evaluator::call_builtin(const Expression& expression, Scope& scope) {
  QUERN_TRY(const std::optional<Value> subject, evaluate_optional(expression.operands[0], scope));
  QUERN_TRY(const std::vector<std::optional<Value>> arguments, evaluate_arguments(expression, scope));
  return expression.builtin->run(subject.value_or(Value()), arguments, budget_);
}

// The forms that go over elements. What they give is a stream.
Result<Value> Evaluator::map_or_select(const Expression& expression, Scope& scope) {
  const Operation operation = expression.operation;
  QUERN_TRY(const Value subject, evaluate(*expression.operands[0], scope));
  QUERN_TRY(const std::vector<std::optional<Value>> arguments, evaluate_arguments(expression, scope));
  std::vector<Value> items;
  if (is_true(subject)) {  // none has no elements here, either
    QUERN_TRY(items, elements(subject, budget_));
  }
  const bool by_attribute = operation == Operation::select_by_attribute || operation == Operation::reject_by_attribute;
  const bool wanted = operation == Operation::select || operation == Operation::select_by_attribute;
  const Arguments given = Arguments(arguments).subspan(by_attribute ? 1 : 0);
  std::vector<Value> out;
  for (const Value& element : items) {
    if (operation == Operation::map_attribute) {
      QUERN_TRY(Value part, attribute_path(element, *arguments[0], budget_));
      out.push_back(part.is_undefined() && arguments[1] ? *arguments[1] : std::move(part));
      continue;
    }
    if (operation == Operation::map_filter) {
      QUERN_TRY(Value filtered, expression.builtin->run(element, given, budget_));
      out.push_back(std::move(filtered));
      continue;
    }
    Value tested = element;
    if (by_attribute) {
      QUERN_TRY(tested, attribute_path(element, *arguments[0], budget_));
    }
    if (expression.builtin != nullptr) {
      QUERN_TRY(tested, expression.builtin->run(tested, given, budget_));
    }
    if (is_true(tested) == wanted) out.push_back(element);
  }
  return make_stream(std::move(out));
}

Result<Value> Evaluator::logical(const Expression& expression, Scope& scope) {
  const auto& operands = expression.operands;
  QUERN_TRY(Value first, evaluate(*operands[0], scope));
  const bool truth = is_true(first);
  switch (expression.operation) {
    case Operation::logical_not: return Value(!truth);
    case Operation::logical_and: return truth ? evaluate(*operands[1], scope) : Result<Value>(std::move(first));
    case Operation::logical_or: return truth ? Result<Value>(std::move(first)) : evaluate(*operands[1], scope);
    default: break;
  }
  if (truth) return evaluate(*operands[1], scope);
  if (operands[2]) return evaluate(*operands[2], scope);
  return Value::undefined("the condition is false and there is no else");
}

Result<Value> Evaluator::compare_all(const Expression& expression, Scope& scope) {
  QUERN_TRY(Value left, evaluate(*expression.operands[0], scope));
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    QUERN_TRY(Value right, evaluate(*expression.operands[i + 1], scope));
    QUERN_TRY(const bool holds, compare(expression.comparisons[i], left, right, budget_));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::join(const Expression& expression, Scope& scope) {
  QUERN_TRY(const std::vector<Value> parts, evaluate_all(expression.operands, scope));
  std::string out;
  for (const Value& part : parts) QUERN_TRY_VOID(append_text(part, out, budget_));
  return Value::text(std::move(out));
}

}  // namespace quern::text::jinja
