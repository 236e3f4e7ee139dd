// SPDX-License-Identifier: Apache-2.0
// Owns one rendering: the variables of the scopes, and the walk over statements and expressions.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/syntax.h"

namespace quern::text::jinja {

struct Scope {
  Scope* around = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;
  bool kept = false;  // a macro was made here and looks its variables up later

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

struct Macro {
  const MacroStatement* statement = nullptr;
  Scope* made_in = nullptr;
};

class Evaluator {
 public:
  // `variables` must outlive the evaluator.
  Evaluator(const Mapping& variables, size_t work) : budget_(work) {
    for (const auto& [name, value] : variables.entries()) given_.variables.emplace_back(name, value);
  }

  Result<std::string> render(const ScopedBody& whole);

 private:
  // One run of a loop. Elements are fetched one by one, because the condition may look at what the body changes.
  struct Loop {
    Loop(const ForStatement& of, Scope& in, std::vector<Value> all)
        : statement(of), around(in), elements(std::move(all)), conditional(of.condition != nullptr) {}

    const ForStatement& statement;
    Scope& around;
    std::vector<Value> elements;
    size_t next = 0;
    bool conditional;  // the rest of the elements still has to pass the condition
    int64_t index0 = -1;
    Value before, current;
    bool peeked = false;
    std::optional<Value> after;     // once peeked
    std::optional<int64_t> length;  // once counted
  };

  // Counts how deep the walk is.
  class Deeper {
   public:
    explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) { ++evaluator_.depth_; }
    ~Deeper() { --evaluator_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Result<void> check() const;

   private:
    Evaluator& evaluator_;
  };

  Result<Value> evaluate(const Expression& expression, Scope& scope);
  Result<Value> evaluate_at(const Expression& expression, Scope& scope);
  Result<std::vector<Value>> evaluate_all(const std::vector<ExpressionPtr>& expressions, Scope& scope);
  Result<std::optional<Value>> evaluate_optional(const ExpressionPtr& expression, Scope& scope);
  Result<Value> look_up(const std::string& name, const Scope& scope);
  Result<Value> mapping(const Expression& expression, Scope& scope);
  Result<Value> slice_of(const Expression& expression, Scope& scope);
  Result<Value> loop_attribute(const std::string& name);
  Result<Value> call_macro(const Expression& expression, Scope& scope);
  Result<Value> run_macro(const Macro& macro, std::vector<std::optional<Value>> arguments);
  Result<Value> make_namespace(const Expression& expression, Scope& scope);
  // All operands but the first.
  Result<std::vector<std::optional<Value>>> evaluate_arguments(const Expression& expression, Scope& scope);
  Result<Value> call_builtin(const Expression& expression, Scope& scope);
  Result<Value> map_or_select(const Expression& expression, Scope& scope);
  Result<Value> logical(const Expression& expression, Scope& scope);
  Result<Value> compare_all(const Expression& expression, Scope& scope);
  Result<Value> join(const Expression& expression, Scope& scope);

  Result<Jump> run(const Body& statements, Scope& scope, std::string& out);
  Result<Jump> run_scoped(const ScopedBody& body, Scope& scope, std::string& out);
  Result<Jump> run_statement(const Statement& statement, Scope& scope, std::string& out);
  Result<Jump> run_if(const IfStatement& statement, Scope& scope, std::string& out);
  Result<Jump> run_for(const ForStatement& statement, Scope& scope, std::string& out);
  Result<void> write(const Target& target, Value value, Scope& scope);
  Result<void> define_macro(const MacroStatement& statement, Scope& scope);

  // The next element that the condition of the loop lets through.
  Result<std::optional<Value>> fetch(Loop& loop);
  Result<void> peek(Loop& loop);
  Result<int64_t> count(Loop& loop);

  Scope& open(Scope& around);
  void close(Scope& scope);

  Budget budget_;
  Scope given_;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  std::deque<Namespace> namespaces_;
  std::deque<Macro> macros_;
  std::vector<Loop*> loops_;
  int depth_ = 0;
};

}  // namespace quern::text::jinja
