// SPDX-License-Identifier: Apache-2.0
// jinja2 turns a template into functions whose variables it declares in advance. A scope that first writes a name gets
// a variable of its own for all of its text, also for the parts before the write, unless the write stands under a
// condition or the name belongs to a scope around it. Only then is the conversation not asked.
#include "text/jinja/scopes.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "base/quote_name.h"
#include "text/jinja/lexer.h"

namespace quern::text::jinja {
namespace {

struct Scope {
  const Scope* around = nullptr;
  std::set<std::string_view> known;  // read or written here

  bool knows(std::string_view name) const { return known.contains(name) || (around != nullptr && around->knows(name)); }
};

class Resolver {
 public:
  Result<void> run(ScopedBody& whole) {
    resolve(whole, nullptr, {});
    for (const auto& [name, line] : calls_) {
      if (!written_.contains(name)) {
        return unsupported(at_line(line), fmt::format("the function {} is not supported", quote_name(name)));
      }
    }
    return {};
  }

 private:
  void resolve(ScopedBody& body, const Scope* around, std::set<std::string_view> parameters) {
    Scope scope{around, std::move(parameters)};
    visit(body.statements, scope, body.hidden, false);
    enter(body.statements, scope);
  }

  // What the scope itself reads and writes, in the order of the source.
  void visit(const Body& statements, Scope& scope, std::vector<std::string>& hidden, bool conditional) {
    for (const Statement& statement : statements) {
      if (const auto* output = std::get_if<OutputStatement>(&statement.form)) {
        read(output->expression, scope);
      } else if (const auto* condition = std::get_if<IfStatement>(&statement.form)) {
        // The first condition is always asked, the others are not; reading does not depend on that.
        for (const auto& [test, branch] : condition->branches) {
          read(test, scope);
          visit(branch, scope, hidden, true);
        }
        visit(condition->otherwise, scope, hidden, true);
      } else if (const auto* loop = std::get_if<ForStatement>(&statement.form)) {
        read(loop->iterable, scope);
      } else if (const auto* set = std::get_if<SetStatement>(&statement.form)) {
        read(set->value, scope);
        write(set->target, scope, hidden, conditional);
      } else if (const auto* block = std::get_if<SetBlockStatement>(&statement.form)) {
        write(block->target, scope, hidden, conditional);
      } else if (const auto* macro = std::get_if<MacroStatement>(&statement.form)) {
        write(macro->name, scope, hidden, conditional);
      }
    }
  }

  // The scopes inside.
  void enter(Body& statements, const Scope& scope) {
    for (Statement& statement : statements) {
      if (auto* condition = std::get_if<IfStatement>(&statement.form)) {
        for (auto& [test, branch] : condition->branches) enter(branch, scope);
        enter(condition->otherwise, scope);
      } else if (auto* loop = std::get_if<ForStatement>(&statement.form)) {
        std::set<std::string_view> targets;
        add_names(loop->target, targets);
        Scope test{&scope, targets};
        read(loop->condition, test);
        resolve(loop->body, &scope, std::move(targets));
        resolve(loop->otherwise, &scope, {});
      } else if (auto* block = std::get_if<SetBlockStatement>(&statement.form)) {
        resolve(block->body, &scope, {});
      } else if (auto* region = std::get_if<RegionStatement>(&statement.form)) {
        resolve(region->body, &scope, {});
      } else if (auto* macro = std::get_if<MacroStatement>(&statement.form)) {
        std::set<std::string_view> parameters;
        for (const auto& [name, otherwise] : macro->parameters) {
          parameters.insert(name);
          written_.insert(name);
        }
        Scope signature{&scope, parameters};
        for (const auto& [name, otherwise] : macro->parameters) read(otherwise, signature);
        resolve(macro->body, &scope, std::move(signature.known));
      }
    }
  }

  void add_names(const Target& target, std::set<std::string_view>& names) {
    for (const Target& part : target.parts) add_names(part, names);
    if (!target.parts.empty()) return;
    names.insert(target.name);
    written_.insert(target.name);
  }

  void read(const ExpressionPtr& expression, Scope& scope) {
    if (!expression) return;
    if (expression->operation == Operation::name && !scope.knows(expression->name))
      scope.known.insert(expression->name);
    if (expression->operation == Operation::call_macro)
      calls_.emplace_back(expression->operands[0]->name, expression->line);
    for (const ExpressionPtr& operand : expression->operands) read(operand, scope);
  }

  void write(const Target& target, Scope& scope, std::vector<std::string>& hidden, bool conditional) {
    for (const Target& part : target.parts) write(part, scope, hidden, conditional);
    if (!target.parts.empty()) return;
    if (target.attribute.empty()) {
      write(target.name, scope, hidden, conditional);
    } else if (!scope.knows(target.name)) {
      scope.known.insert(target.name);
    }
  }

  void write(const std::string& name, Scope& scope, std::vector<std::string>& hidden, bool conditional) {
    written_.insert(name);
    if (!conditional && !scope.knows(name)) hidden.push_back(name);
    scope.known.insert(name);
  }

  std::set<std::string_view> written_;
  std::vector<std::pair<std::string_view, int>> calls_;
};

}  // namespace

Result<void> resolve_scopes(ScopedBody& whole) { return Resolver().run(whole); }

}  // namespace quern::text::jinja
