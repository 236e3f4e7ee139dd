// SPDX-License-Identifier: Apache-2.0
// The global functions, and the methods of texts and mappings. namespace() is a form of the grammar (parser.cc).
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"
#include "text/jinja/value_text.h"

namespace quern::text::jinja {
namespace {

// The sandbox of jinja2 has the same bound.
constexpr int64_t kMaxRange = 100'000;

Result<Value> range(const Value&, Arguments arguments, Budget& budget) {
  for (const auto& argument : arguments) {
    if (argument && !argument->integer())
      return refuse(fmt::format("a range of {} is not supported", kind_name(*argument)));
  }
  const bool from_zero = !arguments[1];
  const int64_t start = from_zero ? 0 : *arguments[0]->integer();
  const int64_t stop = from_zero ? *arguments[0]->integer() : *arguments[1]->integer();
  const int64_t step = arguments[2] ? *arguments[2]->integer() : 1;
  if (step == 0) return refuse("the step of a range cannot be 0");
  std::vector<Value> items;
  for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      return refuse(fmt::format("a range of more than {} integers is refused", kMaxRange));
    }
    QUERN_TRY_VOID(budget.spend(1));
    items.push_back(Value(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return make_sequence(std::move(items), Form::view);
}

Result<Value> raise_exception(const Value&, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string message, to_text(*arguments[0], budget));
  return refuse(fmt::format("the template refuses this conversation: {}", message));
}

// The local date and time by strftime of the C library, as Python has it.
Result<Value> strftime_now(const Value&, Arguments arguments, Budget&) {
  const std::string* format = arguments[0]->utf8();
  // An empty result and one that does not fit look the same to strftime: one character more tells them apart.
  const std::string wanted = format == nullptr ? "" : *format + "!";
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[1024];
  const size_t written = std::strftime(buffer, sizeof(buffer), wanted.c_str(), &local);
  if (format == nullptr || written == 0 || wanted.find('\0') != std::string::npos) {
    return refuse("strftime_now needs a text whose result has less than 1,000 bytes");
  }
  return Value::text(std::string(buffer, written - 1));
}

// The text that a method is called on. A text marked as safe has methods of its own that escape.
Result<std::string_view> receiver(const Value& subject) {
  const Text* text = subject.as<Text>();
  if (text == nullptr) return refuse(fmt::format("{} has no such method", kind_name(subject)));
  if (text->safe) return refuse("a method of a text marked as safe is not supported");
  return std::string_view(*text->utf8);
}

Result<std::string_view> text_argument(const Value& value) {
  if (value.utf8() == nullptr) return refuse(fmt::format("the method needs a text, not {}", kind_name(value)));
  return std::string_view(*value.utf8());
}

Result<std::optional<std::string_view>> optional_text(const std::optional<Value>& value) {
  if (!value || value->is_none()) return std::optional<std::string_view>();
  QUERN_TRY(const std::string_view text, text_argument(*value));
  return std::optional<std::string_view>(text);
}

Result<int64_t> integer_or(const std::optional<Value>& value, int64_t otherwise) {
  if (!value) return otherwise;
  if (!value->integer()) return refuse(fmt::format("the method needs an integer, not {}", kind_name(*value)));
  return *value->integer();
}

template <Side side>
Result<Value> strip_method(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string_view text, receiver(subject));
  QUERN_TRY(const auto characters, optional_text(arguments[0]));
  QUERN_TRY_VOID(budget.spend_text(text.size()));
  if (characters) {
    QUERN_TRY_VOID(budget.spend_strip(text.size(), characters->size()));
  }
  return Value::text(std::string(strip(text, side, characters)));
}

template <Case wanted>
Result<Value> case_method(const Value& subject, Arguments, Budget& budget) {
  QUERN_TRY(const std::string_view text, receiver(subject));
  QUERN_TRY_VOID(budget.spend_text(text.size()));
  QUERN_TRY(std::string changed, change_case(text, wanted));
  return Value::text(std::move(changed));
}

Result<Value> split_method(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string_view text, receiver(subject));
  QUERN_TRY(const auto separator, optional_text(arguments[0]));
  QUERN_TRY(const int64_t most, integer_or(arguments[1], -1));
  if (separator && separator->empty()) return refuse("a text cannot be split at an empty one");
  QUERN_TRY_VOID(budget.spend_search(text.size(), separator ? separator->size() : 1));
  std::vector<Value> parts;
  for (const std::string_view part : split(text, separator, most)) {
    QUERN_TRY_VOID(budget.spend(1));
    parts.push_back(Value::text(std::string(part)));
  }
  return make_sequence(std::move(parts), Form::list);
}

// The argument is a text or a tuple of texts.
template <bool (*matches)(std::string_view, std::string_view)>
Result<Value> edge_method(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string_view text, receiver(subject));
  const Sequence* choices = arguments[0]->sequence();
  if (choices == nullptr || choices->form != Form::tuple) {
    QUERN_TRY(const std::string_view edge, text_argument(*arguments[0]));
    return Value(matches(text, edge));
  }
  for (const Value& choice : choices->items) {
    QUERN_TRY_VOID(budget.spend(1));
    QUERN_TRY(const std::string_view edge, text_argument(choice));
    if (matches(text, edge)) return Value(true);
  }
  return Value(false);
}
bool starts(std::string_view text, std::string_view edge) { return text.starts_with(edge); }
bool ends(std::string_view text, std::string_view edge) { return text.ends_with(edge); }

Result<Value> replace_method(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string_view text, receiver(subject));
  QUERN_TRY(const std::string_view from, text_argument(*arguments[0]));
  QUERN_TRY(const std::string_view to, text_argument(*arguments[1]));
  QUERN_TRY(const int64_t most, integer_or(arguments[2], -1));
  QUERN_TRY(std::string out, replace(text, from, to, most, budget));
  return Value::text(std::move(out));
}

Result<Value> find_method_of_text(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string_view text, receiver(subject));
  QUERN_TRY(const std::string_view part, text_argument(*arguments[0]));
  QUERN_TRY_VOID(budget.spend_search(text.size(), part.size()));
  const size_t at = text.find(part);
  return Value(at == std::string_view::npos ? int64_t{-1} : code_point_count(text.substr(0, at)));
}

Result<Value> join_method(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string_view separator, receiver(subject));
  QUERN_TRY(const std::vector<Value> items, elements(*arguments[0], budget));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    QUERN_TRY(const std::string_view part, text_argument(items[i]));
    QUERN_TRY_VOID(budget.spend_text(part.size() + separator.size()));
    if (i > 0) out += separator;
    out += part;
  }
  return Value::text(std::move(out));
}

Result<const Mapping*> mapping_receiver(const Value& subject) {
  if (subject.mapping() == nullptr) return refuse(fmt::format("{} has no such method", kind_name(subject)));
  return subject.mapping();
}

Result<Value> get(const Value& subject, Arguments arguments, Budget&) {
  QUERN_TRY(const Mapping* mapping, mapping_receiver(subject));
  const Value& key = *arguments[0];
  if (key.sequence() != nullptr || key.mapping() != nullptr)
    return refuse(fmt::format("{} cannot be a key", kind_name(key)));
  if (const Value* found = key.utf8() == nullptr ? nullptr : mapping->find(*key.utf8())) return *found;
  return arguments[1] ? *arguments[1] : Value(None{});
}

enum class Part : uint8_t { keys, values, items };
template <Part part>
Result<Value> view_of(const Value& subject, Arguments, Budget& budget) {
  QUERN_TRY(const Mapping* mapping, mapping_receiver(subject));
  std::vector<Value> out;
  for (const auto& [key, value] : mapping->entries()) {
    QUERN_TRY_VOID(budget.spend_text(key.size()));
    if (part == Part::keys) {
      out.push_back(Value::text(key));
    } else if (part == Part::values) {
      out.push_back(value);
    } else {
      QUERN_TRY(Value pair, make_sequence({Value::text(key), value}, Form::tuple));
      out.push_back(std::move(pair));
    }
  }
  return make_sequence(std::move(out), Form::view);
}

}  // namespace

std::span<const Builtin> functions() {
  static const Builtin list[] = {
      {"raise_exception", {"message"}, 1, raise_exception},
      {"range", {"start", "stop", "step"}, 1, range, false},
      {"strftime_now", {"format"}, 1, strftime_now},
  };
  return list;
}

std::span<const Builtin> methods() {
  static const Builtin list[] = {
      {"capitalize", {}, 0, case_method<Case::capitalized>, false},
      {"endswith", {"suffix"}, 1, edge_method<ends>, false},
      {"find", {"part"}, 1, find_method_of_text, false},
      {"get", {"key", "default"}, 1, get, false},
      {"items", {}, 0, view_of<Part::items>, false},
      {"join", {"parts"}, 1, join_method, false},
      {"keys", {}, 0, view_of<Part::keys>, false},
      {"lower", {}, 0, case_method<Case::lower>, false},
      {"lstrip", {"characters"}, 0, strip_method<Side::left>, false},
      {"replace", {"old", "new", "count"}, 2, replace_method, false},
      {"rstrip", {"characters"}, 0, strip_method<Side::right>, false},
      {"split", {"sep", "maxsplit"}, 0, split_method},
      {"startswith", {"prefix"}, 1, edge_method<starts>, false},
      {"strip", {"characters"}, 0, strip_method<Side::both>, false},
      {"upper", {}, 0, case_method<Case::upper>, false},
      {"values", {}, 0, view_of<Part::values>, false},
  };
  return list;
}

}  // namespace quern::text::jinja
