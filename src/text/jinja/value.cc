// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace quern::text::jinja {
namespace {

// Values are walked and destroyed by recursion. Published tools nest 10 deep.
constexpr int kMaxDepth = 200;

template <class Range>
int depth_over(const Range& values) {
  int depth = 0;
  for (const Value& value : values) depth = std::max(depth, value.depth());
  return depth + 1;
}

Error too_deep() { return refuse(fmt::format("values nested more than {} deep are not supported", kMaxDepth)); }

}  // namespace

Error refuse(std::string what) { return bad_request("", std::move(what)); }

Result<void> Budget::spend(size_t units) {
  if (units > left_) return refuse("the template needs more steps or text than a conversation of this size can need");
  left_ -= units;
  return {};
}

void Mapping::set(std::string key, Value value) {
  const auto place = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                      [&](uint32_t i, const std::string& k) { return entries_[i].first < k; });
  depth_ = std::max(depth_, value.depth() + 1);
  if (place != by_key_.end() && entries_[*place].first == key) {
    entries_[*place].second = std::move(value);
    return;
  }
  by_key_.insert(place, static_cast<uint32_t>(entries_.size()));
  entries_.emplace_back(std::move(key), std::move(value));
}

const Value* Mapping::find(std::string_view key) const {
  const auto place = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                      [&](uint32_t i, std::string_view k) { return entries_[i].first < k; });
  return place != by_key_.end() && entries_[*place].first == key ? &entries_[*place].second : nullptr;
}

Value Value::text(std::string utf8, bool safe) {
  return Text{std::make_shared<const std::string>(std::move(utf8)), safe};
}

Value Value::undefined(std::string why) { return Undefined{std::make_shared<const std::string>(std::move(why))}; }

std::optional<int64_t> Value::integer() const {
  if (const auto* value = as<int64_t>()) return *value;
  if (const auto* value = as<bool>()) return *value ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* value = as<double>()) return *value;
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

namespace {

std::partial_ordering order(int64_t whole, double real) {
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  if (std::isnan(real)) return std::partial_ordering::unordered;
  if (real >= kBeyond) return std::partial_ordering::less;
  if (real < -kBeyond) return std::partial_ordering::greater;
  const double cut = std::trunc(real);
  if (const auto order = whole <=> static_cast<int64_t>(cut); order != 0) return order;
  return cut <=> real;
}

}  // namespace

std::optional<std::partial_ordering> Value::order_of_numbers(const Value& a, const Value& b) {
  const auto x = a.integer(), y = b.integer();
  if (x && y) return *x <=> *y;
  if (x && b.as<double>() != nullptr) return order(*x, *b.as<double>());
  if (y && a.as<double>() != nullptr) return 0 <=> order(*y, *a.as<double>());
  if (a.as<double>() != nullptr && b.as<double>() != nullptr) return *a.as<double>() <=> *b.as<double>();
  return std::nullopt;
}

int Value::depth() const {
  if (const Sequence* values = sequence()) return values->depth;
  if (const Mapping* values = mapping()) return values->depth();
  if (const Stream* values = stream()) return values->depth;
  return 0;
}

Result<Value> make_sequence(std::vector<Value> items, Form form) {
  const int depth = depth_over(items);
  if (depth > kMaxDepth) return too_deep();
  return Value(std::make_shared<const Sequence>(Sequence{std::move(items), form, depth}));
}

Result<Value> make_mapping(Mapping mapping) {
  if (mapping.depth() > kMaxDepth) return too_deep();
  return Value(std::make_shared<const Mapping>(std::move(mapping)));
}

Value make_stream(std::vector<Value> items) {
  const int depth = depth_over(items);
  return std::make_shared<Stream>(Stream{std::move(items), depth});
}

const char* kind_name(const Value& value) {
  if (value.is_undefined()) return "an undefined value";
  if (value.is_none()) return "none";
  if (value.as<bool>() != nullptr) return "a truth value";
  if (value.as<int64_t>() != nullptr) return "an integer";
  if (value.as<double>() != nullptr) return "a floating-point number";
  if (value.utf8() != nullptr) return "a text";
  if (const Sequence* sequence = value.sequence()) {
    return sequence->form == Form::list ? "a list" : sequence->form == Form::tuple ? "a tuple" : "a view";
  }
  if (value.mapping() != nullptr) return "a mapping";
  if (value.stream() != nullptr) return "the stream of a filter";
  if (value.as<Namespace*>() != nullptr) return "a namespace";
  if (value.as<const Macro*>() != nullptr) return "a macro";
  return value.as<Opaque>()->what;
}

namespace {

Result<Value> from_json_at(const nlohmann::ordered_json& json, size_t& bytes, int depth) {
  using Type = nlohmann::ordered_json::value_t;
  if (depth > kMaxDepth) return too_deep();
  bytes += sizeof(Value);
  const auto checked = [&](const std::string& text) -> Result<std::string> {
    bytes += text.size();
    if (const auto offset = find_invalid_utf8(text)) {
      return refuse(fmt::format("a text of the request is not valid UTF-8 at byte {}", *offset));
    }
    return text;
  };
  switch (json.type()) {
    case Type::null: return Value(None{});
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_integer: return Value(json.get<int64_t>());
    case Type::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) {
        return refuse(fmt::format("the integer {} is larger than {}", number, INT64_MAX));
      }
      return Value(static_cast<int64_t>(number));
    }
    case Type::number_float: return Value(json.get<double>());
    case Type::string: {
      QUERN_TRY(std::string text, checked(json.get_ref<const std::string&>()));
      return Value::text(std::move(text));
    }
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& element : json) {
        QUERN_TRY(Value value, from_json_at(element, bytes, depth + 1));
        items.push_back(std::move(value));
      }
      return make_sequence(std::move(items), Form::list);
    }
    case Type::object: {
      Mapping mapping;
      for (const auto& [key, element] : json.items()) {
        QUERN_TRY(std::string name, checked(key));
        QUERN_TRY(Value value, from_json_at(element, bytes, depth + 1));
        mapping.set(std::move(name), std::move(value));
      }
      return make_mapping(std::move(mapping));
    }
    case Type::binary:
    case Type::discarded: break;
  }
  return refuse("the request holds a value that JSON cannot say");
}

}  // namespace

Result<Value> from_json(const nlohmann::ordered_json& json, size_t& bytes) { return from_json_at(json, bytes, 0); }

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (const std::string* text = value.utf8()) return !text->empty();
  if (const Sequence* sequence = value.sequence()) return !sequence->items.empty();
  if (const Mapping* mapping = value.mapping()) return !mapping->entries().empty();
  return true;
}

namespace {

Result<bool> equal_sequences(const Sequence& a, const Sequence& b, Budget& budget) {
  if (a.form == Form::view || b.form == Form::view) return refuse("comparing a view is not supported");
  if (a.form != b.form || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    QUERN_TRY(const bool same, equal(a.items[i], b.items[i], budget));
    if (!same) return false;
  }
  return true;
}

Result<bool> equal_mappings(const Mapping& a, const Mapping& b, Budget& budget) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr) return false;
    QUERN_TRY(const bool same, equal(value, *other, budget));
    if (!same) return false;
  }
  return true;
}

}  // namespace

Result<bool> equal(const Value& a, const Value& b, Budget& budget) {
  QUERN_TRY_VOID(budget.spend(1));
  if (const auto order = Value::order_of_numbers(a, b)) return *order == 0;
  if (const std::string* x = a.utf8(), *y = b.utf8(); x != nullptr && y != nullptr) {
    QUERN_TRY_VOID(budget.spend_text(std::min(x->size(), y->size())));
    return *x == *y;
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.sequence() != nullptr && b.sequence() != nullptr) return equal_sequences(*a.sequence(), *b.sequence(), budget);
  if (a.mapping() != nullptr && b.mapping() != nullptr) return equal_mappings(*a.mapping(), *b.mapping(), budget);
  for (const Value* value : {&a, &b}) {
    if (!value->number() && value->utf8() == nullptr && value->sequence() == nullptr && value->mapping() == nullptr) {
      return refuse(fmt::format("comparing {} is not supported", kind_name(*value)));
    }
  }
  return false;
}

Result<std::vector<Value>> elements(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const Sequence* sequence = value.sequence()) {
    items = sequence->items;
  } else if (const Mapping* mapping = value.mapping()) {
    for (const auto& [key, unused] : mapping->entries()) items.push_back(Value::text(key));
  } else if (Stream* stream = value.stream()) {
    items.assign(stream->items.begin() + static_cast<std::ptrdiff_t>(stream->next), stream->items.end());
    stream->next = stream->items.size();
  } else if (const std::string* text = value.utf8()) {
    QUERN_TRY_VOID(budget.spend(text->size()));
    for (size_t at = 0; at < text->size();) {
      const size_t start = at;
      next_code_point(*text, at);
      items.push_back(Value::text(text->substr(start, at - start)));
    }
  } else {
    return refuse(fmt::format("{} cannot be walked", kind_name(value)));
  }
  QUERN_TRY_VOID(budget.spend(items.size()));
  return items;
}

Result<int64_t> length(const Value& value, Budget& budget) {
  if (value.is_undefined()) return 0;
  if (const Sequence* sequence = value.sequence()) return static_cast<int64_t>(sequence->items.size());
  if (const Mapping* mapping = value.mapping()) return static_cast<int64_t>(mapping->entries().size());
  if (const std::string* text = value.utf8()) {
    QUERN_TRY_VOID(budget.spend_text(text->size()));
    return code_point_count(*text);
  }
  return refuse(fmt::format("{} has no length", kind_name(value)));
}

Result<bool> contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_undefined()) return false;
  if (const std::string* text = container.utf8()) {
    const std::string* part = item.utf8();
    if (part == nullptr) return refuse(fmt::format("a text cannot contain {}", kind_name(item)));
    QUERN_TRY_VOID(budget.spend_search(text->size(), part->size()));
    return text->find(*part) != std::string::npos;
  }
  if (const Mapping* mapping = container.mapping()) {
    if (const std::string* key = item.utf8()) return mapping->find(*key) != nullptr;
    if (item.sequence() != nullptr || item.mapping() != nullptr) {
      return refuse(fmt::format("{} cannot be a key", kind_name(item)));
    }
    return false;
  }
  if (container.sequence() != nullptr) {
    for (const Value& element : container.sequence()->items) {
      QUERN_TRY(const bool same, equal(element, item, budget));
      if (same) return true;
    }
    return false;
  }
  return refuse(fmt::format("looking for something in {} is not supported", kind_name(container)));
}

}  // namespace quern::text::jinja
