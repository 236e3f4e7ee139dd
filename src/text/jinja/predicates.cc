// SPDX-License-Identifier: Apache-2.0
// The tests that stand behind `is`.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"

namespace quern::text::jinja {
namespace {

template <bool (*holds)(const Value&)>
Result<Value> simple(const Value& subject, Arguments, Budget&) {
  return Value(holds(subject));
}

template <Comparison comparison>
Result<Value> compared(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const bool holds, compare(comparison, subject, *arguments[0], budget));
  return Value(holds);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.as<bool>() != nullptr; }
bool is_exactly_true(const Value& value) { return value.as<bool>() != nullptr && *value.as<bool>(); }
bool is_exactly_false(const Value& value) { return value.as<bool>() != nullptr && !*value.as<bool>(); }
bool is_integer(const Value& value) { return value.as<int64_t>() != nullptr; }
bool is_real(const Value& value) { return value.as<double>() != nullptr; }
bool is_number(const Value& value) { return value.number().has_value(); }
bool is_string(const Value& value) { return value.utf8() != nullptr; }
bool is_mapping(const Value& value) { return value.mapping() != nullptr; }
bool is_iterable(const Value& value) {
  return value.is_undefined() || value.utf8() != nullptr || value.sequence() != nullptr || value.mapping() != nullptr ||
         value.stream() != nullptr;
}

// Python: has a length and can be asked for an element; so texts, mappings and undefined values are sequences.
Result<Value> is_sequence(const Value& subject, Arguments, Budget&) {
  const Sequence* sequence = subject.sequence();
  if (sequence != nullptr && sequence->form == Form::view) return refuse("asking what a view is, is not supported");
  return Value(is_iterable(subject) && subject.stream() == nullptr);
}

Result<int64_t> remainder_of(const Value& value, const Value& divisor) {
  if (!value.integer() || !divisor.integer()) {
    return refuse(fmt::format("{} cannot be divided by {} here", kind_name(value), kind_name(divisor)));
  }
  if (*divisor.integer() == 0) return refuse("division by 0");
  return *divisor.integer() == -1 ? 0 : *value.integer() % *divisor.integer();
}
Result<Value> divisible(const Value& subject, Arguments arguments, Budget&) {
  QUERN_TRY(const int64_t rest, remainder_of(subject, *arguments[0]));
  return Value(rest == 0);
}
Result<Value> even(const Value& subject, Arguments, Budget&) {
  QUERN_TRY(const int64_t rest, remainder_of(subject, Value(int64_t{2})));
  return Value(rest == 0);
}
Result<Value> odd(const Value& subject, Arguments, Budget&) {
  QUERN_TRY(const int64_t rest, remainder_of(subject, Value(int64_t{2})));
  return Value(rest != 0);
}

}  // namespace

std::span<const Builtin> tests() {
  static const Builtin list[] = {
      {"boolean", {}, 0, simple<is_boolean>},
      {"defined", {}, 0, simple<is_defined>},
      {"divisibleby", {"num"}, 1, divisible},
      {"even", {}, 0, even},
      {"false", {}, 0, simple<is_exactly_false>},
      {"float", {}, 0, simple<is_real>},
      {"in", {"seq"}, 1, compared<Comparison::in>},
      {"integer", {}, 0, simple<is_integer>},
      {"iterable", {}, 0, simple<is_iterable>},
      {"mapping", {}, 0, simple<is_mapping>},
      {"none", {}, 0, simple<is_none>},
      {"number", {}, 0, simple<is_number>},
      {"odd", {}, 0, odd},
      {"sequence", {}, 0, is_sequence},
      {"string", {}, 0, simple<is_string>},
      {"true", {}, 0, simple<is_exactly_true>},
      {"undefined", {}, 0, simple<is_undefined>},
      {"==", {"other"}, 1, compared<Comparison::equal>, false},
      {"eq", {"other"}, 1, compared<Comparison::equal>, false},
      {"equalto", {"other"}, 1, compared<Comparison::equal>, false},
      {"!=", {"other"}, 1, compared<Comparison::not_equal>, false},
      {"ne", {"other"}, 1, compared<Comparison::not_equal>, false},
      {"<", {"other"}, 1, compared<Comparison::less>, false},
      {"lt", {"other"}, 1, compared<Comparison::less>, false},
      {"lessthan", {"other"}, 1, compared<Comparison::less>, false},
      {"<=", {"other"}, 1, compared<Comparison::less_equal>, false},
      {"le", {"other"}, 1, compared<Comparison::less_equal>, false},
      {">", {"other"}, 1, compared<Comparison::greater>, false},
      {"gt", {"other"}, 1, compared<Comparison::greater>, false},
      {"greaterthan", {"other"}, 1, compared<Comparison::greater>, false},
      {">=", {"other"}, 1, compared<Comparison::greater_equal>, false},
      {"ge", {"other"}, 1, compared<Comparison::greater_equal>, false},
  };
  return list;
}

}  // namespace quern::text::jinja
