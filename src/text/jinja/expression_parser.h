// SPDX-License-Identifier: Apache-2.0
// Owns the grammar of expressions: operators, calls, filters and tests. Whatever has a name that quern does not know is
// refused here, with the line.
#pragma once

#include "text/jinja/builtins.h"
#include "text/jinja/syntax.h"
#include "text/jinja/token_cursor.h"

namespace quern::text::jinja {

// What the name `loop` means where an expression stands.
enum class LoopAccess : uint8_t {
  ordinary,  // outside of loops: a variable like any other
  loop,      // the innermost loop
  refused,   // jinja2 has rules of its own there, which quern lacks
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor& cursor) : cursor_(cursor) {}

  LoopAccess loop_access = LoopAccess::ordinary;
  bool in_macro = false;

  // Errors: bad_model (grammar), unsupported (what quern lacks), both with the line.
  Result<ExpressionPtr> expression(bool with_conditional = true);
  // An expression, or several with commas between: a tuple. Ends before `end_name`, too.
  Result<ExpressionPtr> expression_list(bool with_conditional = true, std::string_view end_name = {});

  // How deep brackets, operators and blocks may stand in each other.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    Result<void> check() const;

   private:
    ExpressionParser& parser_;
  };

 private:
  struct CallArguments {
    std::vector<ExpressionPtr> positional;
    std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  };

  Result<ExpressionPtr> conditional();
  Result<ExpressionPtr> disjunction();
  Result<ExpressionPtr> conjunction();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> concatenation();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> factor();
  Result<ExpressionPtr> unary(bool with_filters);
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> name();
  Result<ExpressionPtr> loop_attribute(int line);
  Result<ExpressionPtr> string();
  Result<ExpressionPtr> parenthesized();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> mapping();
  Result<ExpressionPtr> postfix(ExpressionPtr subject, bool with_filters);
  Result<ExpressionPtr> attribute(ExpressionPtr subject);
  Result<ExpressionPtr> subscript(ExpressionPtr subject);
  Result<CallArguments> call_arguments();
  Result<ExpressionPtr> call(ExpressionPtr callee);
  Result<ExpressionPtr> filter(ExpressionPtr subject);
  Result<ExpressionPtr> test(ExpressionPtr subject);
  Result<ExpressionPtr> map(ExpressionPtr subject, CallArguments arguments, int line);
  Result<ExpressionPtr> select(Operation operation, ExpressionPtr subject, CallArguments arguments, int line);

  using Level = Result<ExpressionPtr> (ExpressionParser::*)();
  using SignOperations = std::initializer_list<std::pair<std::string_view, Operation>>;
  Result<ExpressionPtr> left_to_right(Level operand, SignOperations signs);

  // Subject, then the arguments in the order of the builtin's parameters.
  Result<ExpressionPtr> apply(Operation operation, const Builtin& builtin, const char* kind,
                              std::vector<ExpressionPtr> leading, CallArguments arguments, int line);

  TokenCursor& cursor_;
  int nesting_ = 0;
};

}  // namespace quern::text::jinja
