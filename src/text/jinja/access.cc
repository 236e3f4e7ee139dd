// SPDX-License-Identifier: Apache-2.0
// How templates reach into values: attributes, items and slices, with what Python's own types answer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/quote_name.h"
#include "text/jinja/python_text.h"
#include "text/jinja/value.h"

namespace quern::text::jinja {
namespace {

// The public attributes of Python's types: such a name finds a method there, never an undefined value.
constexpr std::array<std::string_view, 47> kTextMethods = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};
constexpr std::array<std::string_view, 11> kListMethods = {"append", "clear", "copy",   "count",   "extend", "index",
                                                           "insert", "pop",   "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 2> kTupleMethods = {"count", "index"};
constexpr std::array<std::string_view, 11> kMappingMethods = {
    "clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"};
constexpr std::array<std::string_view, 13> kNumberAttributes = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "fromhex", "hex", "imag",
    "is_integer",       "numerator", "real",       "to_bytes"};

constexpr std::array<std::string_view, 8> kStreamAttributes = {"close",        "gi_code",      "gi_frame", "gi_running",
                                                               "gi_suspended", "gi_yieldfrom", "send",     "throw"};

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_method(const Value& value, std::string_view name) {
  if (value.utf8() != nullptr) return is_one_of(kTextMethods, name);
  if (value.mapping() != nullptr) return is_one_of(kMappingMethods, name);
  const Sequence* sequence = value.sequence();
  if (sequence == nullptr) return false;
  return sequence->form == Form::list ? is_one_of(kListMethods, name) : is_one_of(kTupleMethods, name);
}

Result<Value> method_or_undefined(const Value& value, std::string_view name) {
  // Python's types have attributes of this form, too; the sandbox hides some of them.
  if (name.starts_with("__")) return refuse(fmt::format("the attribute {} is not supported", quote_name(name)));
  if (has_method(value, name)) return Value(Opaque{"a method that is not called"});
  const Sequence* sequence = value.sequence();
  const bool known = value.utf8() != nullptr || value.mapping() != nullptr || value.is_none() ||
                     (sequence != nullptr && sequence->form != Form::view) ||
                     (value.number() && !is_one_of(kNumberAttributes, name)) ||
                     (value.stream() != nullptr && !is_one_of(kStreamAttributes, name));
  if (!known) return refuse(fmt::format("the attribute {} of {} is not supported", quote_name(name), kind_name(value)));
  return Value::undefined(fmt::format("{} has no attribute {}", kind_name(value), quote_name(name)));
}

Result<Value> not_there(const Value& value, const Value& key) {
  const std::string place = key.integer() ? fmt::format("element {}", *key.integer()) : "such element";
  return Value::undefined(fmt::format("{} has no {}", kind_name(value), place));
}

// The place that a Python index means, or nothing when it is outside.
std::optional<size_t> place_of(int64_t index, size_t count) {
  const auto size = static_cast<int64_t>(count);
  if (index < -size || index >= size) return std::nullopt;
  return static_cast<size_t>(index < 0 ? index + size : index);
}

Error undefined_error(const Value& value, std::string_view wanted) {
  const auto& why = value.as<Undefined>()->why;
  return refuse(fmt::format("{}, so it has no {}", why ? *why : "the value is undefined", wanted));
}

}  // namespace

Result<Value> attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) return undefined_error(value, quote_name(name));
  if (const auto* space = value.as<Namespace*>()) {
    const Value* found = (*space)->attributes.find(name);
    return found != nullptr ? *found : Value::undefined(fmt::format("the namespace has no {}", quote_name(name)));
  }
  if (const Mapping* mapping = value.mapping(); mapping != nullptr && !has_method(value, name)) {
    if (const Value* found = mapping->find(name)) return *found;
  }
  return method_or_undefined(value, name);
}

Result<Value> item(const Value& value, const Value& key, Budget& budget) {
  if (value.is_undefined()) return undefined_error(value, "elements");
  if (const std::string* name = key.utf8()) {
    const Mapping* mapping = value.mapping();
    if (mapping != nullptr) {
      if (const Value* found = mapping->find(*name)) return *found;
    }
    if (value.as<Namespace*>() != nullptr) return attribute(value, *name);
    return method_or_undefined(value, *name);
  }
  const auto index = key.integer();
  if (const Sequence* sequence = value.sequence()) {
    if (sequence->form == Form::view) return refuse("an element of a view is not supported");
    const auto place = index ? place_of(*index, sequence->items.size()) : std::nullopt;
    return place ? Result<Value>(sequence->items[*place]) : not_there(value, key);
  }
  if (const std::string* text = value.utf8()) {
    if (!index) return not_there(value, key);
    QUERN_TRY_VOID(budget.spend_text(text->size()));
    const CodePoints points(*text);
    const auto place = place_of(*index, points.size());
    return place ? Result<Value>(Value::text(std::string(points.part(*place, *place + 1)))) : not_there(value, key);
  }
  if (value.mapping() != nullptr || value.is_none() || value.number()) return not_there(value, key);
  return refuse(fmt::format("an element of {} is not supported", kind_name(value)));
}

Result<Value> attribute_path(const Value& value, const Value& path, Budget& budget) {
  if (path.integer()) return item(value, path, budget);
  QUERN_TRY_VOID(budget.spend(1));
  if (path.utf8() == nullptr) return refuse(fmt::format("{} cannot be the name of an attribute", kind_name(path)));
  Value at = value;
  for (const std::string_view part : split(*path.utf8(), ".", -1)) {
    int64_t place = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), place);
    const bool number = !part.empty() && part[0] != '-' && error == std::errc() && end == part.data() + part.size();
    QUERN_TRY(at, item(at, number ? Value(place) : Value::text(std::string(part)), budget));
  }
  return at;
}

namespace {

struct Stride {
  int64_t start, step;
  size_t count;
};

// The places that start:stop:step means over `count` elements, as Python clamps them.
Result<Stride> stride_of(const Value& start, const Value& stop, const Value& step, size_t count) {
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->is_none() && !bound->integer()) {
      return refuse(fmt::format("{} cannot be the bound of a slice", kind_name(*bound)));
    }
  }
  const int64_t by = step.integer().value_or(1);
  if (by == 0) return refuse("the step of a slice cannot be 0");
  const auto size = static_cast<int64_t>(count);
  const int64_t low = by > 0 ? 0 : -1;
  const int64_t high = by > 0 ? size : size - 1;
  const auto clamp = [&](const Value& bound, int64_t absent) {
    if (bound.is_none()) return absent;
    const int64_t at = *bound.integer();
    if (at < 0) return at < low - size ? low : std::max(at + size, low);
    return std::min(at, high);
  };
  const int64_t first = clamp(start, by > 0 ? low : high);
  const int64_t last = clamp(stop, by > 0 ? high : low);
  Stride stride{first, by, 0};
  // Counted without forming the place behind the last one, which may not fit.
  if (by > 0 && first < last) stride.count = static_cast<size_t>((last - first - 1) / by + 1);
  if (by < 0 && first > last) stride.count = static_cast<size_t>((first - last - 1) / -std::max(by, -INT64_MAX) + 1);
  return stride;
}

}  // namespace

Result<Value> slice(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  if (value.is_undefined()) return undefined_error(value, "elements");
  if (const Sequence* sequence = value.sequence(); sequence != nullptr && sequence->form != Form::view) {
    QUERN_TRY(const Stride stride, stride_of(start, stop, step, sequence->items.size()));
    QUERN_TRY_VOID(budget.spend(stride.count));
    std::vector<Value> items;
    items.reserve(stride.count);
    for (size_t i = 0; i < stride.count; ++i) {
      items.push_back(sequence->items[static_cast<size_t>(stride.start + static_cast<int64_t>(i) * stride.step)]);
    }
    return make_sequence(std::move(items), sequence->form);
  }
  if (const std::string* text = value.utf8()) {
    QUERN_TRY_VOID(budget.spend_text(text->size()));
    const CodePoints points(*text);
    QUERN_TRY(const Stride stride, stride_of(start, stop, step, points.size()));
    std::string out;
    for (size_t i = 0; i < stride.count; ++i) {
      const auto at = static_cast<size_t>(stride.start + static_cast<int64_t>(i) * stride.step);
      out += points.part(at, at + 1);
    }
    return Value::text(std::move(out), value.as<Text>()->safe);
  }
  return refuse(fmt::format("a slice of {} is not supported", kind_name(value)));
}

}  // namespace quern::text::jinja
