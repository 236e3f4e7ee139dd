// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/scopes.h"
#include "text/utf8.h"

namespace quern::text::jinja {
namespace {

// Published templates have 3 to 20 KB.
constexpr size_t kMaxSourceBytes = size_t{1} << 20;
// Names are looked for one by one. Published templates have less than 10.
constexpr size_t kMaxParameters = 100;

using EndNames = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : cursor_(std::move(tokens)), expressions_(cursor_) {}

  Result<Body> run() {
    QUERN_TRY(Body statements, body({}));
    return statements;
  }

 private:
  // Keeps a setting of the parser for a stretch of template.
  template <class T>
  class Kept {
   public:
    explicit Kept(T& setting) : setting_(setting), old_(setting) {}
    Kept(T& setting, T now) : Kept(setting) { setting = now; }
    ~Kept() { setting_ = old_; }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

   private:
    T& setting_;
    T old_;
  };

  // Statements up to one of the tags, and onto its name. Without names: up to the end.
  Result<Body> body(EndNames ends) {
    const ExpressionParser::Nesting nesting(expressions_);
    QUERN_TRY_VOID(nesting.check());
    const int line = cursor_.line();
    Body statements;
    while (!cursor_.is(TokenKind::end)) {
      const int at = cursor_.line();
      if (cursor_.is(TokenKind::text)) {
        statements.push_back({at, TextStatement{cursor_.next().text}});
      } else if (cursor_.is(TokenKind::output_begin)) {
        cursor_.next();
        QUERN_TRY(ExpressionPtr expression, expressions_.expression_list());
        QUERN_TRY_VOID(cursor_.expect(TokenKind::output_end));
        statements.push_back({at, OutputStatement{std::move(expression)}});
      } else {
        QUERN_TRY_VOID(cursor_.expect(TokenKind::tag_begin));
        if (cursor_.is_name_of(ends)) return statements;
        QUERN_TRY(Statement statement, tag());
        QUERN_TRY_VOID(cursor_.expect(TokenKind::tag_end));
        statements.push_back(std::move(statement));
      }
    }
    if (ends.size() == 0) return statements;
    return bad_model(at_line(line),
                     fmt::format("the block that starts here is not closed by {}", quote_name(*ends.begin())));
  }

  // The rest of an opening tag, and what it holds.
  Result<Body> block(EndNames ends) {
    cursor_.skip_sign(":");
    QUERN_TRY_VOID(cursor_.expect(TokenKind::tag_end));
    return body(ends);
  }

  Result<Statement> tag() {
    const int line = cursor_.line();
    QUERN_TRY(const std::string name, cursor_.expect_any_name());
    Statement statement;
    statement.line = line;
    if (name == "if") {
      QUERN_TRY(statement.form, if_tag());
    } else if (name == "for") {
      QUERN_TRY(statement.form, for_tag());
    } else if (name == "set") {
      return set_tag(line);
    } else if (name == "macro") {
      QUERN_TRY(statement.form, macro_tag());
    } else if (name == "generation") {
      const Kept breakable(breakable_, false);
      RegionStatement region;
      QUERN_TRY(region.body.statements, block({"endgeneration"}));
      cursor_.next();
      statement.form = std::move(region);
    } else if (name == "break" || name == "continue") {
      if (!breakable_)
        return unsupported(at_line(line), fmt::format("the tag {} is not supported here", quote_name(name)));
      statement.form = JumpStatement{name == "break" ? Jump::out : Jump::to_next};
    } else if (name == "else" || name == "elif" || name.starts_with("end")) {
      return bad_model(at_line(line),
                       fmt::format("the tag {} closes or continues nothing that is open here", quote_name(name)));
    } else {
      return unsupported(at_line(line), fmt::format("the tag {} is not supported", quote_name(name)));
    }
    return statement;
  }

  Result<IfStatement> if_tag() {
    IfStatement made;
    for (;;) {
      QUERN_TRY(ExpressionPtr condition, expressions_.expression_list(false));
      QUERN_TRY(Body statements, block({"endif", "elif", "else"}));
      made.branches.emplace_back(std::move(condition), std::move(statements));
      const std::string& end = cursor_.next().text;
      if (end == "endif") return made;
      if (end == "else") break;
    }
    QUERN_TRY(made.otherwise, block({"endif"}));
    cursor_.next();
    return made;
  }

  Result<ForStatement> for_tag() {
    ForStatement made;
    QUERN_TRY(made.target, target(false));
    QUERN_TRY_VOID(cursor_.expect_name("in"));
    QUERN_TRY(made.iterable, expressions_.expression_list(false, "recursive"));
    const LoopAccess outside = expressions_.loop_access;
    const Kept access(expressions_.loop_access);
    if (cursor_.skip_name("if")) {
      expressions_.loop_access = LoopAccess::refused;
      QUERN_TRY(made.condition, expressions_.expression());
    }
    if (cursor_.is_name("recursive")) return unsupported(at_line(cursor_.line()), "recursive loops are not supported");
    expressions_.loop_access = LoopAccess::loop;
    {
      const Kept breakable(breakable_, true);
      QUERN_TRY(made.body.statements, block({"endfor", "else"}));
    }
    if (cursor_.next().text == "endfor") return made;
    expressions_.loop_access = outside == LoopAccess::ordinary ? LoopAccess::ordinary : LoopAccess::refused;
    QUERN_TRY(made.otherwise.statements, block({"endfor"}));
    cursor_.next();
    return made;
  }

  Result<Statement> set_tag(int line) {
    QUERN_TRY(Target to, target(true));
    if (cursor_.skip_sign("=")) {
      QUERN_TRY(ExpressionPtr value, expressions_.expression_list());
      return Statement{line, SetStatement{std::move(to), std::move(value)}};
    }
    if (cursor_.is_sign("|")) return unsupported(at_line(line), "a filter on a set block is not supported");
    const Kept breakable(breakable_, false);
    SetBlockStatement made{std::move(to), {}};
    QUERN_TRY(made.body.statements, block({"endset"}));
    cursor_.next();
    return Statement{line, std::move(made)};
  }

  Result<MacroStatement> macro_tag() {
    MacroStatement made;
    const Kept breakable(breakable_, false);
    const bool in_loop = expressions_.loop_access != LoopAccess::ordinary;
    const Kept access(expressions_.loop_access, in_loop ? LoopAccess::refused : LoopAccess::ordinary);
    const Kept in_macro(expressions_.in_macro, true);
    QUERN_TRY(made.name, plain_name());
    QUERN_TRY_VOID(cursor_.expect_sign("("));
    while (!cursor_.is_sign(")")) {
      const int line = cursor_.line();
      if (made.parameters.size() == kMaxParameters) {
        return unsupported(at_line(line), fmt::format("more than {} parameters are not supported", kMaxParameters));
      }
      QUERN_TRY(std::string name, plain_name());
      const bool twice =
          std::any_of(made.parameters.begin(), made.parameters.end(), [&](const auto& p) { return p.first == name; });
      if (twice) return bad_model(at_line(line), fmt::format("the parameter {} is there twice", quote_name(name)));
      ExpressionPtr otherwise;
      if (cursor_.skip_sign("=")) {
        QUERN_TRY(otherwise, expressions_.expression());
      } else if (!made.parameters.empty() && made.parameters.back().second) {
        return bad_model(at_line(line), fmt::format("the parameter {} needs a default, as the one before it has one",
                                                    quote_name(name)));
      }
      made.parameters.emplace_back(std::move(name), std::move(otherwise));
      if (!cursor_.skip_sign(",")) break;
    }
    QUERN_TRY_VOID(cursor_.expect_sign(")"));
    QUERN_TRY(made.body.statements, block({"endmacro"}));
    cursor_.next();
    return made;
  }

  // A name that can be written to.
  Result<std::string> plain_name() {
    const int line = cursor_.line();
    QUERN_TRY(std::string name, cursor_.expect_any_name());
    for (const char* const constant : {"true", "True", "false", "False", "none", "None"}) {
      if (name == constant) return bad_model(at_line(line), fmt::format("{} cannot be written to", quote_name(name)));
    }
    for (const char* const special : {"loop", "caller", "varargs", "kwargs", "self", "super", "namespace"}) {
      if (name == special)
        return unsupported(at_line(line), fmt::format("writing to {} is not supported", quote_name(name)));
    }
    if (find_function(name) != nullptr) {
      return unsupported(at_line(line),
                         fmt::format("a variable with the name of the function {} is not supported", quote_name(name)));
    }
    return name;
  }

  Result<Target> target(bool with_namespace) {
    Target whole;
    whole.line = cursor_.line();
    do {
      if (!whole.parts.empty() && !cursor_.is(TokenKind::name)) break;  // a comma at the end
      Target part;
      part.line = cursor_.line();
      if (cursor_.is_sign("(")) return unsupported(at_line(part.line), "unpacking in brackets is not supported");
      const bool to_namespace = with_namespace && cursor_.is_sign(".", 1);
      QUERN_TRY(part.name, plain_name());
      if (to_namespace) {
        cursor_.next();
        QUERN_TRY(part.attribute, cursor_.expect_any_name());
      }
      whole.parts.push_back(std::move(part));
      if (whole.parts.size() == 1 && !cursor_.is_sign(",")) return std::move(whole.parts.front());
    } while (cursor_.skip_sign(","));
    return whole;
  }

  TokenCursor cursor_;
  ExpressionParser expressions_;
  bool breakable_ = false;  // break and continue have a loop to act on
};

}  // namespace

Result<ScopedBody> parse_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return bad_model(at_line(1),
                     fmt::format("the template has {} bytes; at most {} are read", source.size(), kMaxSourceBytes));
  }
  if (const auto offset = find_invalid_utf8(source)) {
    const auto line = 1 + std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(*offset), '\n');
    return bad_model(at_line(static_cast<int>(line)), "the template is not valid UTF-8");
  }
  QUERN_TRY(std::vector<Token> tokens, tokenize(source));
  ScopedBody whole;
  QUERN_TRY(whole.statements, Parser(std::move(tokens)).run());
  QUERN_TRY_VOID(resolve_scopes(whole));
  return whole;
}

}  // namespace quern::text::jinja
