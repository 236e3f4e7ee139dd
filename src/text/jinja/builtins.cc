// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/builtins.h"

#include <algorithm>

namespace quern::text::jinja {
namespace {

const Builtin* find(std::span<const Builtin> list, std::string_view name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Builtin& b) { return b.name == name; });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

const Builtin* find_filter(std::string_view name) { return find(filters(), name); }
const Builtin* find_test(std::string_view name) { return find(tests(), name); }
const Builtin* find_function(std::string_view name) { return find(functions(), name); }
const Builtin* find_method(std::string_view name) { return find(methods(), name); }

}  // namespace quern::text::jinja
