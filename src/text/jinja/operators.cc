// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/operators.h"

#include <fmt/format.h>

#include <cmath>
#include <compare>

namespace quern::text::jinja {
namespace {

const char* sign_of(Operation operation) {
  switch (operation) {
    case Operation::add: return "+";
    case Operation::subtract: return "-";
    case Operation::multiply: return "*";
    case Operation::divide: return "/";
    case Operation::floor_divide: return "//";
    default: return "%";
  }
}

Error overflow(Operation operation) {
  return refuse(fmt::format("the result of {} does not fit into 64 bits", sign_of(operation)));
}

Result<Value> calculate_integers(Operation operation, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (operation) {
    case Operation::add:
      if (__builtin_add_overflow(a, b, &result)) return overflow(operation);
      return Value(result);
    case Operation::subtract:
      if (__builtin_sub_overflow(a, b, &result)) return overflow(operation);
      return Value(result);
    case Operation::multiply:
      if (__builtin_mul_overflow(a, b, &result)) return overflow(operation);
      return Value(result);
    default: break;
  }
  if (b == 0) return refuse("division by 0");
  if (operation == Operation::divide) {
    // Python divides exactly and rounds once; below 2^53 doubles do the same.
    constexpr int64_t kExact = int64_t{1} << 53;
    if (a > kExact || a < -kExact || b > kExact || b < -kExact) return overflow(operation);
    return Value(static_cast<double>(a) / static_cast<double>(b));
  }
  if (a == INT64_MIN && b == -1) {
    return operation == Operation::modulo ? Result<Value>(Value(int64_t{0})) : overflow(operation);
  }
  // Python rounds towards minus infinity, C++ towards 0.
  const bool adjust = a % b != 0 && (a % b < 0) != (b < 0);
  if (operation == Operation::modulo) return Value(a % b + (adjust ? b : 0));
  return Value(a / b - (adjust ? 1 : 0));
}

Result<Value> calculate_reals(Operation operation, double a, double b) {
  switch (operation) {
    case Operation::add: return Value(a + b);
    case Operation::subtract: return Value(a - b);
    case Operation::multiply: return Value(a * b);
    case Operation::divide:
      if (b == 0) return refuse("division by 0");
      return Value(a / b);
    default: return refuse(fmt::format("{} of floating-point numbers is not supported", sign_of(operation)));
  }
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

// A text marked as safe escapes what is not when the two are put together.
Result<Value> join_texts(const Text& a, const Text& b, Budget& budget) {
  QUERN_TRY_VOID(budget.spend_text(a.utf8->size() + b.utf8->size()));
  const bool safe = a.safe || b.safe;
  std::string out = safe && !a.safe ? escaped(*a.utf8) : *a.utf8;
  out += safe && !b.safe ? escaped(*b.utf8) : *b.utf8;
  return Value::text(std::move(out), safe);
}

Result<Value> join_sequences(const Sequence& a, const Sequence& b, Budget& budget) {
  QUERN_TRY_VOID(budget.spend(a.items.size() + b.items.size()));
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return make_sequence(std::move(items), a.form);
}

Result<Value> repeat(const Text& text, int64_t times, Budget& budget) {
  const size_t bytes = text.utf8->size();
  size_t total = 0;
  if (times <= 0 || bytes == 0) return Value::text("", text.safe);
  if (__builtin_mul_overflow(bytes, static_cast<size_t>(times), &total)) return overflow(Operation::multiply);
  QUERN_TRY_VOID(budget.spend_text(total));
  std::string out;
  out.reserve(total);
  for (int64_t i = 0; i < times; ++i) out += *text.utf8;
  return Value::text(std::move(out), text.safe);
}

}  // namespace

Result<Value> calculate(Operation operation, const Value& a, const Value& b, Budget& budget) {
  if (const auto x = a.integer(), y = b.integer(); x && y) return calculate_integers(operation, *x, *y);
  if (const auto x = a.number(), y = b.number(); x && y) return calculate_reals(operation, *x, *y);
  const Text* left = a.as<Text>();
  const Text* right = b.as<Text>();
  if (operation == Operation::add && left != nullptr && right != nullptr) return join_texts(*left, *right, budget);
  if (operation == Operation::add && a.sequence() != nullptr && b.sequence() != nullptr &&
      a.sequence()->form == b.sequence()->form && a.sequence()->form != Form::view) {
    return join_sequences(*a.sequence(), *b.sequence(), budget);
  }
  if (operation == Operation::multiply && left != nullptr && b.integer()) return repeat(*left, *b.integer(), budget);
  if (operation == Operation::multiply && right != nullptr && a.integer()) return repeat(*right, *a.integer(), budget);
  for (const Value* value : {&a, &b}) {
    if (const auto* undefined = value->as<Undefined>(); undefined != nullptr && undefined->why) {
      return refuse(fmt::format("{}, so {} has nothing to work with", *undefined->why, sign_of(operation)));
    }
  }
  return refuse(fmt::format("{} {} {} is not supported", kind_name(a), sign_of(operation), kind_name(b)));
}

Result<Value> signed_value(Operation operation, const Value& value) {
  if (const auto integer = value.integer()) {
    return operation == Operation::plus ? Result<Value>(*integer)
                                        : calculate_integers(Operation::subtract, 0, *integer);
  }
  if (const auto* number = value.as<double>()) return Value(operation == Operation::plus ? *number : -*number);
  return refuse(fmt::format("{} has no sign", kind_name(value)));
}

namespace {

bool holds(Comparison comparison, std::partial_ordering order) {
  switch (comparison) {
    case Comparison::less: return order < 0;
    case Comparison::less_equal: return order <= 0;
    case Comparison::greater: return order > 0;
    default: return order >= 0;
  }
}

}  // namespace

Result<bool> compare(Comparison comparison, const Value& a, const Value& b, Budget& budget) {
  if (comparison == Comparison::equal || comparison == Comparison::not_equal) {
    QUERN_TRY(const bool same, equal(a, b, budget));
    return same == (comparison == Comparison::equal);
  }
  if (comparison == Comparison::in || comparison == Comparison::not_in) {
    QUERN_TRY(const bool inside, contains(b, a, budget));
    return inside == (comparison == Comparison::in);
  }
  if (const auto order = Value::order_of_numbers(a, b)) return holds(comparison, *order);
  // The order of UTF-8 bytes is the order of code points.
  if (a.utf8() != nullptr && b.utf8() != nullptr) {
    QUERN_TRY_VOID(budget.spend_text(a.utf8()->size()));
    return holds(comparison, *a.utf8() <=> *b.utf8());
  }
  return refuse(fmt::format("{} and {} have no order", kind_name(a), kind_name(b)));
}

}  // namespace quern::text::jinja
