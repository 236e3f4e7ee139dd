// SPDX-License-Identifier: Apache-2.0
// Owns the list of filters, tests, functions and methods that templates can name, with their parameters. What is not in
// it is refused when a template is loaded.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace quern::text::jinja {

// Arguments in the order of the parameters; nothing where the template leaves one out.
using Arguments = std::span<const std::optional<Value>>;

struct Builtin {
  std::string_view name;
  std::vector<std::string_view> parameters;  // behind the subject
  size_t required = 0;
  Result<Value> (*run)(const Value& subject, Arguments arguments, Budget& budget) = nullptr;
  bool by_keyword = true;  // arguments may be given by the name of their parameter
};

// The filter, test, function or method of a name, or null.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_function(std::string_view name);
const Builtin* find_method(std::string_view name);

// The lists behind them, one a file.
std::span<const Builtin> filters();
std::span<const Builtin> tests();
std::span<const Builtin> functions();
std::span<const Builtin> methods();

}  // namespace quern::text::jinja
