// SPDX-License-Identifier: Apache-2.0
// The filters. map, select and their kin take other filters and tests by name and are forms of the grammar (parser.cc).
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"
#include "text/jinja/value_text.h"

namespace quern::text::jinja {
namespace {

bool flag(const std::optional<Value>& argument) { return argument && is_true(*argument); }

// The text of a value, and whether it is marked as safe: filters of texts keep the mark.
struct SoftText {
  std::string utf8;
  bool safe = false;
};
Result<SoftText> soft_text(const Value& value, Budget& budget) {
  QUERN_TRY(std::string text, to_text(value, budget));
  const Text* marked = value.as<Text>();
  return SoftText{std::move(text), marked != nullptr && marked->safe};
}

Result<Value> with_case(const Value& subject, Case wanted, Budget& budget) {
  QUERN_TRY(const SoftText text, soft_text(subject, budget));
  QUERN_TRY(std::string changed, change_case(text.utf8, wanted));
  return Value::text(std::move(changed), text.safe);
}
Result<Value> upper(const Value& subject, Arguments, Budget& budget) { return with_case(subject, Case::upper, budget); }
Result<Value> lower(const Value& subject, Arguments, Budget& budget) { return with_case(subject, Case::lower, budget); }
Result<Value> capitalize(const Value& subject, Arguments, Budget& budget) {
  return with_case(subject, Case::capitalized, budget);
}

Result<Value> trim(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const SoftText text, soft_text(subject, budget));
  std::optional<std::string_view> characters;
  if (arguments[0] && !arguments[0]->is_none()) {
    const std::string* given = arguments[0]->utf8();
    if (given == nullptr) return refuse(fmt::format("the characters to trim cannot be {}", kind_name(*arguments[0])));
    characters = *given;
    QUERN_TRY_VOID(budget.spend_strip(text.utf8.size(), given->size()));
  }
  return Value::text(std::string(strip(text.utf8, Side::both, characters)), text.safe);
}

Result<Value> string(const Value& subject, Arguments, Budget& budget) {
  QUERN_TRY(SoftText text, soft_text(subject, budget));
  return Value::text(std::move(text.utf8), text.safe);
}

Result<Value> safe(const Value& subject, Arguments, Budget& budget) {
  QUERN_TRY(std::string text, to_text(subject, budget));
  return Value::text(std::move(text), true);
}

Result<Value> replaced(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::string text, to_text(subject, budget));
  QUERN_TRY(const std::string from, to_text(*arguments[0], budget));
  QUERN_TRY(const std::string to, to_text(*arguments[1], budget));
  int64_t most = -1;
  if (arguments[2] && !arguments[2]->is_none()) {
    if (!arguments[2]->integer()) return refuse(fmt::format("the count cannot be {}", kind_name(*arguments[2])));
    most = *arguments[2]->integer();
  }
  QUERN_TRY(std::string out, replace(text, from, to, most, budget));
  return Value::text(std::move(out));
}

Result<Value> defaulted(const Value& subject, Arguments arguments, Budget&) {
  if (subject.is_undefined() || (flag(arguments[1]) && !is_true(subject))) {
    return arguments[0] ? *arguments[0] : Value::text("");
  }
  return subject;
}

Result<Value> count(const Value& subject, Arguments, Budget& budget) {
  QUERN_TRY(const int64_t size, length(subject, budget));
  return Value(size);
}

Result<Value> first(const Value& subject, Arguments, Budget& budget) {
  if (Stream* stream = subject.stream(); stream != nullptr && stream->next < stream->items.size()) {
    return stream->items[stream->next++];
  }
  QUERN_TRY(std::vector<Value> items, elements(subject, budget));
  return items.empty() ? Value::undefined("the first of no elements is undefined") : std::move(items.front());
}

Result<Value> last(const Value& subject, Arguments, Budget& budget) {
  if (subject.stream() != nullptr) return refuse("the last element of the stream of a filter is not supported");
  QUERN_TRY(std::vector<Value> items, elements(subject, budget));
  return items.empty() ? Value::undefined("the last of no elements is undefined") : std::move(items.back());
}

Result<Value> reversed(const Value& subject, Arguments, Budget& budget) {
  QUERN_TRY(std::vector<Value> items, elements(subject, budget));
  std::reverse(items.begin(), items.end());
  if (subject.utf8() == nullptr)
    return subject.stream() ? make_sequence(std::move(items), Form::list) : make_stream(std::move(items));
  std::string text;
  for (const Value& character : items) text += *character.utf8();
  return Value::text(std::move(text));
}

Result<Value> list(const Value& subject, Arguments, Budget& budget) {
  QUERN_TRY(std::vector<Value> items, elements(subject, budget));
  return make_sequence(std::move(items), Form::list);
}

Result<Value> joined(const Value& subject, Arguments arguments, Budget& budget) {
  QUERN_TRY(const std::vector<Value> items, elements(subject, budget));
  std::string separator, out;
  if (arguments[0]) {
    QUERN_TRY(separator, to_text(*arguments[0], budget));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    QUERN_TRY_VOID(budget.spend_text(separator.size()));
    if (i > 0) out += separator;
    if (arguments[1] && !arguments[1]->is_none()) {
      QUERN_TRY(const Value part, attribute_path(items[i], *arguments[1], budget));
      QUERN_TRY_VOID(append_text(part, out, budget));
    } else {
      QUERN_TRY_VOID(append_text(items[i], out, budget));
    }
  }
  return Value::text(std::move(out));
}

Result<Value> pair_of(const Mapping::Entry& entry) {
  return make_sequence({Value::text(entry.first), entry.second}, Form::tuple);
}

Result<Value> items_of(const Value& subject, Arguments, Budget& budget) {
  if (subject.is_undefined()) return make_stream({});
  if (subject.mapping() == nullptr) return refuse(fmt::format("{} has no items", kind_name(subject)));
  std::vector<Value> pairs;
  for (const Mapping::Entry& entry : subject.mapping()->entries()) {
    QUERN_TRY_VOID(budget.spend_text(entry.first.size()));
    QUERN_TRY(Value pair, pair_of(entry));
    pairs.push_back(std::move(pair));
  }
  return make_stream(std::move(pairs));
}

// By key; letters of different case are equal unless asked for.
Result<Value> sorted_items(const Value& subject, Arguments arguments, Budget& budget) {
  if (subject.mapping() == nullptr) return refuse(fmt::format("{} has no items to sort", kind_name(subject)));
  std::vector<std::pair<std::string, const Mapping::Entry*>> order;
  for (const Mapping::Entry& entry : subject.mapping()->entries()) {
    QUERN_TRY_VOID(budget.spend_text(entry.first.size()));
    std::string key = entry.first;
    if (!flag(arguments[0])) {
      QUERN_TRY(key, change_case(entry.first, Case::lower));
    }
    order.emplace_back(std::move(key), &entry);
  }
  if (arguments[1] && (arguments[1]->utf8() == nullptr || *arguments[1]->utf8() != "key")) {
    return refuse("dictsort by anything but the key is not supported");
  }
  // Python's reverse order keeps equal keys in their places, too.
  const bool descending = flag(arguments[2]);
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto& a, const auto& b) { return descending ? a.first > b.first : a.first < b.first; });
  std::vector<Value> pairs;
  for (const auto& [key, entry] : order) {
    QUERN_TRY(Value pair, pair_of(*entry));
    pairs.push_back(std::move(pair));
  }
  return make_sequence(std::move(pairs), Form::list);
}

// json.dumps as transformers offers it: with indent, each element has its line and separators lose their blank.
Result<Value> tojson(const Value& subject, Arguments arguments, Budget& budget) {
  JsonStyle style;
  style.ascii_only = flag(arguments[0]);
  if (arguments[1] && !arguments[1]->is_none()) {
    style.item_separator.assign(1, ',');
    if (const auto width = arguments[1]->integer()) {
      QUERN_TRY_VOID(budget.spend_text(static_cast<size_t>(std::max<int64_t>(*width, 0))));
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(*width, 0)), ' ');
    } else if (const std::string* indent = arguments[1]->utf8()) {
      style.indent = *indent;
    } else {
      return refuse(fmt::format("the indent of JSON cannot be {}", kind_name(*arguments[1])));
    }
  }
  if (arguments[2] && !arguments[2]->is_none()) {
    const Sequence* pair = arguments[2]->sequence();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].utf8() == nullptr ||
        pair->items[1].utf8() == nullptr) {
      return refuse("the separators of JSON are a pair of texts");
    }
    style.item_separator = *pair->items[0].utf8();
    style.key_separator = *pair->items[1].utf8();
  }
  style.sorted = flag(arguments[3]);
  QUERN_TRY(std::string json, to_json(subject, style, budget));
  return Value::text(std::move(json));
}

}  // namespace

std::span<const Builtin> filters() {
  static const Builtin list_of_filters[] = {
      {"capitalize", {}, 0, capitalize},
      {"count", {}, 0, count},
      {"d", {"default_value", "boolean"}, 0, defaulted},
      {"default", {"default_value", "boolean"}, 0, defaulted},
      {"dictsort", {"case_sensitive", "by", "reverse"}, 0, sorted_items},
      {"first", {}, 0, first},
      {"items", {}, 0, items_of},
      {"join", {"d", "attribute"}, 0, joined},
      {"last", {}, 0, last},
      {"length", {}, 0, count},
      {"list", {}, 0, list},
      {"lower", {}, 0, lower},
      {"replace", {"old", "new", "count"}, 2, replaced},
      {"reverse", {}, 0, reversed},
      {"safe", {}, 0, safe},
      {"string", {}, 0, string},
      {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, tojson},
      {"trim", {"chars"}, 0, trim},
      {"upper", {}, 0, upper},
  };
  return list_of_filters;
}

}  // namespace quern::text::jinja
