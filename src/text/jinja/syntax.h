// SPDX-License-Identifier: Apache-2.0
// Owns the shape of a parsed template: expressions and statements as the evaluator walks them. Every name of a filter,
// test, function or method is already resolved here; what quern lacks never gets this far.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace quern::text::jinja {

struct Builtin;
struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Operation : uint8_t {
  constant,        // constant
  name,            // name
  list,            // elements
  tuple,           // elements
  mapping,         // key, value, key, value ...
  attribute,       // of operand 0: name
  item,            // container, key
  slice,           // container, start, stop, step; null where left out
  loop_attribute,  // of the innermost loop: name
  call_macro,      // macro, arguments by place, arguments by keyword (the last ones; keywords)
  make_namespace,  // arguments by keyword (keywords)
  call,            // builtin of operand 0 (null for functions), then its arguments; null where left out
  map_attribute,   // elements, attribute, default or null
  map_filter,      // elements, arguments of builtin
  select,          // elements, arguments of builtin (null: truth)
  reject,
  select_by_attribute,  // elements, attribute, arguments of builtin (null: truth)
  reject_by_attribute,
  plus,
  minus,
  logical_not,
  logical_and,
  logical_or,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  join,         // operands as texts, one behind the other
  compare,      // first, second ...; comparisons between
  conditional,  // condition, value, other value or null
};

enum class Comparison : uint8_t { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

struct Expression {
  Operation operation = Operation::constant;
  int line = 1;
  int depth = 1;  // of the tree below
  Value constant;
  std::string name;
  const Builtin* builtin = nullptr;
  std::vector<ExpressionPtr> operands;
  std::vector<std::string> keywords;
  std::vector<Comparison> comparisons;
};

// What an assignment or a loop writes to: a name, an attribute of a namespace, or several of them.
struct Target {
  int line = 1;
  std::string name;
  std::string attribute;      // not empty: of the namespace `name`
  std::vector<Target> parts;  // not empty: an unpacked tuple
};

struct Statement;
using Body = std::vector<Statement>;

// The variables of a stretch of template. jinja2 decides before rendering where a name is looked up: one that a scope
// writes before it reads it is never taken from the conversation, not even by a part that runs before the write.
// `hidden` are these names; they start undefined.
struct ScopedBody {
  Body statements;
  std::vector<std::string> hidden;
};

struct TextStatement {
  std::string text;
};
struct OutputStatement {
  ExpressionPtr expression;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct ForStatement {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr condition;  // may be null
  ScopedBody body;
  ScopedBody otherwise;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
struct SetBlockStatement {
  Target target;
  ScopedBody body;
};
struct MacroStatement {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // the default may be null
  ScopedBody body;
};
// {% generation %}: marks what the model wrote; for rendering it is a scope.
struct RegionStatement {
  ScopedBody body;
};
enum class Jump : uint8_t { none, to_next, out };
struct JumpStatement {
  Jump jump;
};

struct Statement {
  int line = 1;
  std::variant<TextStatement, OutputStatement, IfStatement, ForStatement, SetStatement, SetBlockStatement,
               MacroStatement, RegionStatement, JumpStatement>
      form;
};

}  // namespace quern::text::jinja
