// SPDX-License-Identifier: Apache-2.0
// Statements, scopes, loops and macros; expressions are in evaluate_expression.cc.
#include "text/jinja/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"
#include "text/jinja/lexer.h"
#include "text/jinja/value_text.h"

namespace quern::text::jinja {
namespace {

// Steps in each other. Published templates need less than 50; each takes up to 2 KB of the stack.
constexpr int kMaxDepth = 400;

}  // namespace

Result<void> Evaluator::Deeper::check() const {
  if (evaluator_.depth_ <= kMaxDepth) return {};
  return refuse(fmt::format("more than {} steps in each other are not supported", kMaxDepth));
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->around) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Scope& Evaluator::open(Scope& around) {
  if (free_scopes_.empty()) {
    scopes_.emplace_back();
    free_scopes_.push_back(&scopes_.back());
  }
  Scope& scope = *free_scopes_.back();
  free_scopes_.pop_back();
  scope.around = &around;
  return scope;
}

void Evaluator::close(Scope& scope) {
  if (scope.kept) return;
  scope.variables.clear();
  free_scopes_.push_back(&scope);
}

Result<std::string> Evaluator::render(const ScopedBody& whole) {
  std::string out;
  QUERN_TRY_VOID(run_scoped(whole, open(given_), out));
  return out;
}

Result<Jump> Evaluator::run_scoped(const ScopedBody& body, Scope& scope, std::string& out) {
  for (const std::string& name : body.hidden) {
    QUERN_TRY_VOID(budget_.spend(1));
    QUERN_TRY_VOID(budget_.spend_names(scope.variables.size()));
    scope.set(name, Value::undefined(fmt::format("{} is undefined", quote_name(name))));
  }
  return run(body.statements, scope, out);
}

Result<Jump> Evaluator::run(const Body& statements, Scope& scope, std::string& out) {
  const Deeper deeper(*this);
  QUERN_TRY_VOID(deeper.check());
  for (const Statement& statement : statements) {
    Result<Jump> done = run_statement(statement, scope, out);
    if (!done.ok()) {
      Error error = std::move(done).error();
      if (error.where.empty()) error.where = at_line(statement.line);
      return error;
    }
    if (*done != Jump::none) return *done;
  }
  return Jump::none;
}

Result<Jump> Evaluator::run_statement(const Statement& statement, Scope& scope, std::string& out) {
  QUERN_TRY_VOID(budget_.spend(1));
  if (const auto* text = std::get_if<TextStatement>(&statement.form)) {
    QUERN_TRY_VOID(budget_.spend_text(text->text.size()));
    out += text->text;
  } else if (const auto* output = std::get_if<OutputStatement>(&statement.form)) {
    QUERN_TRY(const Value value, evaluate(*output->expression, scope));
    QUERN_TRY_VOID(append_text(value, out, budget_));
  } else if (const auto* condition = std::get_if<IfStatement>(&statement.form)) {
    return run_if(*condition, scope, out);
  } else if (const auto* loop = std::get_if<ForStatement>(&statement.form)) {
    return run_for(*loop, scope, out);
  } else if (const auto* set = std::get_if<SetStatement>(&statement.form)) {
    QUERN_TRY(Value value, evaluate(*set->value, scope));
    QUERN_TRY_VOID(write(set->target, std::move(value), scope));
  } else if (const auto* block = std::get_if<SetBlockStatement>(&statement.form)) {
    std::string captured;
    Scope& inner = open(scope);
    QUERN_TRY_VOID(run_scoped(block->body, inner, captured));
    close(inner);
    QUERN_TRY_VOID(write(block->target, Value::text(std::move(captured)), scope));
  } else if (const auto* macro = std::get_if<MacroStatement>(&statement.form)) {
    QUERN_TRY_VOID(define_macro(*macro, scope));
  } else if (const auto* region = std::get_if<RegionStatement>(&statement.form)) {
    Scope& inner = open(scope);
    QUERN_TRY_VOID(run_scoped(region->body, inner, out));
    close(inner);
  } else {
    return std::get<JumpStatement>(statement.form).jump;
  }
  return Jump::none;
}

Result<Jump> Evaluator::run_if(const IfStatement& statement, Scope& scope, std::string& out) {
  for (const auto& [condition, body] : statement.branches) {
    QUERN_TRY(const Value value, evaluate(*condition, scope));
    if (is_true(value)) return run(body, scope, out);
  }
  return run(statement.otherwise, scope, out);
}

Result<Jump> Evaluator::run_for(const ForStatement& statement, Scope& scope, std::string& out) {
  QUERN_TRY(const Value iterable, evaluate(*statement.iterable, scope));
  QUERN_TRY(std::vector<Value> items, elements(iterable, budget_));
  Loop loop(statement, scope, std::move(items));
  // As in jinja2, `else` also follows when every pass was left early.
  bool passed = false;
  for (;;) {
    if (!std::exchange(loop.peeked, false)) {
      QUERN_TRY(loop.after, fetch(loop));
    }
    if (!loop.after) break;
    loop.before = std::move(loop.current);
    loop.current = *std::exchange(loop.after, std::nullopt);
    ++loop.index0;
    Scope& inner = open(scope);
    QUERN_TRY_VOID(write(statement.target, loop.current, inner));
    loops_.push_back(&loop);
    const Result<Jump> jump = run_scoped(statement.body, inner, out);
    loops_.pop_back();
    QUERN_TRY(const Jump left, jump);
    close(inner);
    if (left == Jump::out) break;
    passed = passed || left == Jump::none;
  }
  if (!passed) {
    Scope& inner = open(scope);
    QUERN_TRY(const Jump left, run_scoped(statement.otherwise, inner, out));
    close(inner);
    return left;
  }
  return Jump::none;
}

Result<std::optional<Value>> Evaluator::fetch(Loop& loop) {
  while (loop.next < loop.elements.size()) {
    Value element = loop.elements[loop.next++];
    if (!loop.conditional) return std::optional<Value>(std::move(element));
    Scope& inner = open(loop.around);
    QUERN_TRY_VOID(write(loop.statement.target, element, inner));
    QUERN_TRY(const Value verdict, evaluate(*loop.statement.condition, inner));
    close(inner);
    if (is_true(verdict)) return std::optional<Value>(std::move(element));
  }
  return std::optional<Value>();
}

Result<void> Evaluator::peek(Loop& loop) {
  if (loop.peeked) return {};
  QUERN_TRY(loop.after, fetch(loop));
  loop.peeked = true;
  return {};
}

Result<int64_t> Evaluator::count(Loop& loop) {
  if (loop.length) return *loop.length;
  if (!loop.conditional) {
    loop.length = static_cast<int64_t>(loop.elements.size());
    return *loop.length;
  }
  std::vector<Value> rest;
  for (;;) {
    QUERN_TRY(std::optional<Value> element, fetch(loop));
    if (!element) break;
    rest.push_back(std::move(*element));
  }
  loop.length = loop.index0 + 1 + (loop.after ? 1 : 0) + static_cast<int64_t>(rest.size());
  loop.elements = std::move(rest);
  loop.next = 0;
  loop.conditional = false;
  return *loop.length;
}

Result<void> Evaluator::write(const Target& target, Value value, Scope& scope) {
  if (!target.parts.empty()) {
    QUERN_TRY(std::vector<Value> items, elements(value, budget_));
    if (items.size() != target.parts.size()) {
      return refuse(fmt::format("{} elements cannot be unpacked into {} names", items.size(), target.parts.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) QUERN_TRY_VOID(write(target.parts[i], std::move(items[i]), scope));
    return {};
  }
  QUERN_TRY_VOID(budget_.spend_names(scope.variables.size()));
  if (target.attribute.empty()) {
    scope.set(target.name, std::move(value));
    return {};
  }
  QUERN_TRY(const Value space, look_up(target.name, scope));
  const auto* found = space.as<Namespace*>();
  if (found == nullptr) {
    return refuse(fmt::format("{} is {}, and only a namespace has attributes that can be written",
                              quote_name(target.name), kind_name(space)));
  }
  (*found)->attributes.set(target.attribute, std::move(value));
  return {};
}

Result<void> Evaluator::define_macro(const MacroStatement& statement, Scope& scope) {
  QUERN_TRY_VOID(budget_.spend(1));
  for (Scope* at = &scope; at != nullptr; at = at->around) at->kept = true;
  macros_.push_back({&statement, &scope});
  scope.set(statement.name, Value(static_cast<const Macro*>(&macros_.back())));
  return {};
}

Result<Value> Evaluator::run_macro(const Macro& macro, std::vector<std::optional<Value>> arguments) {
  const auto& parameters = macro.statement->parameters;
  Scope& scope = open(*macro.made_in);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, otherwise] = parameters[i];
    if (!arguments[i]) {
      QUERN_TRY(arguments[i], evaluate_optional(otherwise, scope));
    }
    if (!arguments[i]) {
      arguments[i] = Value::undefined(fmt::format("the parameter {} of the macro was not given", quote_name(name)));
    }
    scope.set(name, std::move(*arguments[i]));
  }
  std::string out;
  QUERN_TRY_VOID(run_scoped(macro.statement->body, scope, out));
  close(scope);
  return Value::text(std::move(out));
}

}  // namespace quern::text::jinja
