// SPDX-License-Identifier: Apache-2.0
// Owns the values of a template: what JSON can say, and the few kinds that templates add. They behave as the values of
// Python do, because that is what templates are written for. Does not own their text forms (value_text.h).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace quern::text::jinja {

class Value;
struct Macro;

// What one rendering may still spend. A unit is a step of the evaluator, an element looked at, or 32 bytes of text
// made or searched: it bounds time and memory at once, whatever the template does.
class Budget {
 public:
  explicit Budget(size_t units) : left_(units) {}
  Result<void> spend(size_t units);
  Result<void> spend_text(size_t bytes) { return spend(1 + bytes / 32); }
  // Looking for `part` at every place of a text, also where nearly all of it fits.
  Result<void> spend_search(size_t text, size_t part) { return spend_text(part > text ? 0 : text * (1 + part / 16)); }
  // Looking up every character of a text among others.
  Result<void> spend_strip(size_t text, size_t characters) { return spend_text(text * (1 + characters / 16)); }
  // A walk over the names of a scope or the keys of a mapping.
  Result<void> spend_names(size_t count) { return spend(count / 32); }

 private:
  size_t left_;
};

struct Undefined {
  std::shared_ptr<const std::string> why;  // a sentence; null says nothing
};
struct None {};
struct Text {
  std::shared_ptr<const std::string> utf8;
  bool safe = false;  // went through the filter `safe`
};

enum class Form : uint8_t {
  list,
  tuple,
  view,  // a range, or the keys, values or items of a mapping: can be walked and counted, has no text
};
struct Sequence {
  std::vector<Value> items;
  Form form = Form::list;
  int depth = 1;
};

// In the order of insertion; keys are texts and unique.
class Mapping {
 public:
  using Entry = std::pair<std::string, Value>;
  // A key that is there keeps its place and gets the new value.
  void set(std::string key, Value value);
  const Value* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  int depth() const { return depth_; }

 private:
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_key_;  // sorted by key
  int depth_ = 1;
};

// What a filter hands on one by one: can be walked once, whoever walks it.
struct Stream {
  std::vector<Value> items;
  int depth = 1;
  size_t next = 0;
};

// What namespace() makes: the one thing that a template can change. The evaluator owns it.
struct Namespace {
  Mapping attributes;
};

// Can be called or asked for in a condition, nothing else: a function of the language, or a method that is not called.
struct Opaque {
  const char* what;
};

template <class T, class Variant>
inline constexpr bool kIsAlternative = false;
template <class T, class... Alternatives>
inline constexpr bool kIsAlternative<T, std::variant<Alternatives...>> = (std::is_same_v<T, Alternatives> || ...);

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
                   std::shared_ptr<const Mapping>, std::shared_ptr<Stream>, Namespace*, const Macro*, Opaque>;

  Value() = default;
  template <class T>
  requires kIsAlternative<T, Variant> Value(T alternative) : variant_(std::in_place_type<T>, std::move(alternative)) {}
  static Value text(std::string utf8, bool safe = false);
  static Value undefined(std::string why);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&variant_);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  // The bytes of a text, else null.
  const std::string* utf8() const {
    const Text* text = as<Text>();
    return text == nullptr ? nullptr : text->utf8.get();
  }
  const Sequence* sequence() const {
    const auto* shared = as<std::shared_ptr<const Sequence>>();
    return shared == nullptr ? nullptr : shared->get();
  }
  const Mapping* mapping() const {
    const auto* shared = as<std::shared_ptr<const Mapping>>();
    return shared == nullptr ? nullptr : shared->get();
  }
  Stream* stream() const {
    const auto* shared = as<std::shared_ptr<Stream>>();
    return shared == nullptr ? nullptr : shared->get();
  }
  // True, false and integers; Python calculates with truth values as 0 and 1.
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;
  // Of two numbers, exact also where one is an integer that no double is; nothing for other values.
  static std::optional<std::partial_ordering> order_of_numbers(const Value& a, const Value& b);

  // Sequences and mappings that hold each other; 0 for the rest.
  int depth() const;

 private:
  Variant variant_;
};

// Errors here have no place yet: whoever knows the line fills it in.
Error refuse(std::string what);

// Errors: refused when nested deeper than can be walked.
Result<Value> make_sequence(std::vector<Value> items, Form form);
Result<Value> make_mapping(Mapping mapping);
Value make_stream(std::vector<Value> items);

// "a text", "a list": for errors.
const char* kind_name(const Value& value);

// Errors: text that is not UTF-8, integers above 2^63 - 1, deep nesting. `bytes` grows by the size of what was read.
Result<Value> from_json(const nlohmann::ordered_json& json, size_t& bytes);

// What Python's bool() says.
bool is_true(const Value& value);

// What Python's == says.
Result<bool> equal(const Value& a, const Value& b, Budget& budget);

// Python's iteration: the elements of a sequence, the keys of a mapping, the characters of a text, nothing for
// undefined. A stream is used up. Errors: values that cannot be walked.
Result<std::vector<Value>> elements(const Value& value, Budget& budget);

// Python's len().
Result<int64_t> length(const Value& value, Budget& budget);

// Python's `item in container`.
Result<bool> contains(const Value& container, const Value& item, Budget& budget);

// value.name and value[key] as the sandbox of jinja2 resolves them: a method goes before an entry in the first form, an
// entry before a method in the second. What is not there is undefined.
Result<Value> attribute(const Value& value, std::string_view name);
Result<Value> item(const Value& value, const Value& key, Budget& budget);
// What map(attribute=...) and its kin follow: a key, or keys and places with dots between ("function.name", "0.id").
Result<Value> attribute_path(const Value& value, const Value& path, Budget& budget);
// value[start:stop:step]; none stands for a bound that is left out.
Result<Value> slice(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget);

}  // namespace quern::text::jinja
