// SPDX-License-Identifier: Apache-2.0
// A call that fails to fit is looked at again, with the signature that nanobind renders for it (as for stubs); calls
// that fit pay one look-up. The way in is CPython's vectorcall slot of a function object.
#include "python/argument_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "python/argument_types.h"
#include "python/arrays.h"

namespace quern::python {
namespace {

struct Bound {
  vectorcallfunc call;   // nanobind's
  std::string property;  // that it sets, or empty
};

// Functions live as long as their module, which is never unloaded.
std::unordered_map<PyObject*, Bound>& bound_functions() {
  static auto* functions = new std::unordered_map<PyObject*, Bound>();
  return *functions;
}

struct Parameter {
  std::string name, type;
  bool by_name_only = false;
  bool required = false;
};

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// At separators outside of brackets.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] == '[' || text[i] == '(') depth++;
    if (text[i] == ']' || text[i] == ')') depth--;
    if (text[i] != separator || depth > 0) continue;
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  parts.push_back(trimmed(text.substr(begin)));
  return parts;
}

// Of "def name(self, a: int, *, b: str | None = \0) -> T".
std::vector<Parameter> parameters_of(std::string_view signature) {
  const size_t open = signature.find('('), close = signature.rfind(") -> ");
  std::vector<Parameter> parameters;
  if (open == std::string_view::npos || close == std::string_view::npos) return parameters;
  bool by_name_only = false;
  for (std::string_view part : split(signature.substr(open + 1, close - open - 1), ',')) {
    if (part.empty() || part == "/") continue;
    if (part == "*") {
      by_name_only = true;
      continue;
    }
    const size_t equals = part.find(" = ");
    const std::string_view declared = part.substr(0, equals);
    const size_t colon = declared.find(':');
    Parameter& p = parameters.emplace_back();
    p.name = trimmed(declared.substr(0, colon));
    if (colon != std::string_view::npos) p.type = trimmed(declared.substr(colon + 1));
    p.by_name_only = by_name_only;
    p.required = equals == std::string_view::npos;
  }
  return parameters;
}

const char* type_of(nb::handle object) { return Py_TYPE(object.ptr())->tp_name; }

std::string article(std::string_view type) {
  return fmt::format("{} {}", std::string_view("aeiou").find(type.front()) == std::string_view::npos ? "a" : "an",
                     type);
}

// "int", "float | None", "collections.abc.Sequence[str]": the parts of the name that people use.
std::string readable(std::string_view type) {
  std::string text;
  for (const std::string_view choice : split(type, '|')) {
    const std::string_view plain = choice.substr(0, choice.find('['));
    const size_t dot = plain.rfind('.');
    const std::string_view name = dot == std::string_view::npos ? plain : plain.substr(dot + 1);
    if (name == "None") {
      text += " or None";
    } else if (name == "Sequence") {
      text += fmt::format("a sequence of {}", choice.substr(plain.size() + 1, choice.size() - plain.size() - 2));
    } else if (name == "dict" || name == "Mapping") {
      text += "a dict";
    } else {
      text += article(name);
    }
  }
  return text;
}

bool is_whole(nb::handle object) { return PyIndex_Check(object.ptr()) != 0; }

bool is_number(nb::handle object) {
  const auto* methods = Py_TYPE(object.ptr())->tp_as_number;
  return is_whole(object) || (methods != nullptr && methods->nb_float != nullptr);
}

// What is wrong with an argument that is called `name`, or nothing. What the function looks at itself
// (argument_types.h, "object") fits unless it is None.
std::optional<std::string> misfit(const std::string& name, std::string_view type, nb::handle object) {
  for (const ArgumentType& known : kArgumentTypes) {
    if (!type.starts_with(known.annotation)) continue;
    const std::string_view rest = type.substr(known.annotation.size());
    if (!rest.empty() && rest != " | None") continue;
    if (!object.is_none() || !rest.empty()) return std::nullopt;
    return fmt::format("{} must be {}, not {}", name, known.words, type_of(object));
  }
  const auto choices = split(type, '|');
  if (object.is_none() && std::find(choices.begin(), choices.end(), "None") != choices.end()) return std::nullopt;
  const std::string_view wanted = choices.front();
  const std::string_view inner = wanted.substr(std::min(wanted.find('['), wanted.size()));
  const std::string_view outer = wanted.substr(0, wanted.size() - inner.size());
  const auto refused = [&] { return fmt::format("{} must be {}, not {}", name, readable(type), type_of(object)); };
  const auto inner_types = split(inner.size() > 2 ? inner.substr(1, inner.size() - 2) : inner, ',');
  if (outer == "int") return is_whole(object) ? std::nullopt : std::optional(refused());
  if (outer == "float") return is_number(object) ? std::nullopt : std::optional(refused());
  if (outer == "bool") return PyBool_Check(object.ptr()) ? std::nullopt : std::optional(refused());
  if (outer == "str") return PyUnicode_Check(object.ptr()) ? std::nullopt : std::optional(refused());
  if (outer.ends_with("Sequence")) {
    if (PySequence_Check(object.ptr()) == 0 || PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr())) {
      return refused();
    }
    for (size_t i = 0; i < nb::len(object); i++) {
      if (auto wrong = misfit(fmt::format("{}[{}]", name, i), inner_types[0], object[i])) return wrong;
    }
    return std::nullopt;
  }
  if (outer == "dict" || outer.ends_with("Mapping")) {
    if (!PyDict_Check(object.ptr())) return refused();
    for (auto [key, value] : nb::borrow<nb::dict>(object)) {
      if (auto wrong = misfit(fmt::format("a key of {}", name), inner_types[0], key)) return wrong;
      if (auto wrong = misfit(fmt::format("{}[{}]", name, nb::repr(key).c_str()), inner_types[1], value)) return wrong;
    }
    return std::nullopt;
  }
  if (outer == "object" || outer.empty()) return object.is_none() ? std::optional(refused()) : std::nullopt;
  // A class of this module.
  for (const PyTypeObject* t = Py_TYPE(object.ptr()); t != nullptr; t = t->tp_base) {
    // Without its module.
    if (outer.substr(outer.rfind('.') + 1) == t->tp_name) return std::nullopt;
  }
  return refused();
}

// The number that makes a call fail whose types fit: beyond what the argument's own type holds.
std::optional<Error> out_of_range(const std::string& name, std::string_view type, nb::handle object) {
  if (split(type, '|').front() == "int" && is_whole(object)) {
    return bad_request(name, fmt::format("{} is beyond what this argument can hold", nb::repr(object).c_str()));
  }
  return std::nullopt;
}

struct Call {
  std::vector<std::pair<size_t, nb::handle>> arguments;  // index of the parameter
  std::string wrong;                                     // why not all are there, or empty
};

Call match(const std::string& name, const std::vector<Parameter>& parameters, PyObject* const* values, size_t count,
           PyObject* names) {
  Call call;
  std::vector<bool> given(parameters.size());
  const size_t self = !parameters.empty() && parameters[0].name == "self" ? 1 : 0;
  const auto by_position = static_cast<size_t>(
      std::count_if(parameters.begin(), parameters.end(), [](const Parameter& p) { return !p.by_name_only; }));
  for (size_t i = 0; i < std::min(count, by_position); i++) {
    given[i] = true;
    call.arguments.emplace_back(i, values[i]);
  }
  if (count > by_position) {
    const size_t taken = by_position - self;
    call.wrong =
        fmt::format("takes {} positional argument{}, {} were given", taken, taken == 1 ? "" : "s", count - self);
  }
  for (Py_ssize_t k = 0; names != nullptr && k < PyTuple_GET_SIZE(names); k++) {
    const std::string key = nb::str(nb::handle(PyTuple_GET_ITEM(names, k))).c_str();
    const auto found =
        std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.name == key; });
    const auto i = static_cast<size_t>(found - parameters.begin());
    if (found == parameters.end() || i < self) {
      call.wrong = fmt::format("has no argument '{}'", key);
    } else if (given[i]) {
      call.wrong = fmt::format("got '{}' twice", key);
    } else {
      given[i] = true;
      call.arguments.emplace_back(i, values[count + static_cast<size_t>(k)]);
    }
  }
  for (size_t i = 0; i < parameters.size() && call.wrong.empty(); i++) {
    if (!given[i] && parameters[i].required) call.wrong = fmt::format("needs the argument '{}'", parameters[i].name);
  }
  if (!call.wrong.empty()) call.wrong = fmt::format("{}() {}", name, call.wrong);
  return call;
}

// Sets the exception; the one that nanobind set has been fetched.
void explain(PyObject* function, PyObject* const* values, size_t count, PyObject* names) {
  const nb::handle f(function);
  const std::string signature = nb::str(nb::object(f.attr("__nb_signature__")[0][0])).c_str();
  const std::string& property = bound_functions().at(function).property;
  std::string name = nb::str(nb::object(f.attr("__name__"))).c_str();
  if (name == "__init__") name = nb::str(nb::object(nb::handle(values[0]).type().attr("__name__"))).c_str();
  std::vector<Parameter> parameters = parameters_of(signature);
  if (!property.empty()) parameters.back().name = property;
  const Call call = match(name, parameters, values, count, names);
  if (!call.wrong.empty()) return PyErr_SetString(PyExc_TypeError, call.wrong.c_str());
  for (const auto& [i, object] : call.arguments) {
    const Parameter& p = parameters[i];
    if (p.name == "self") continue;
    if (const auto wrong = misfit(p.name, p.type, object)) {
      const std::string place = property.empty() ? name + "(): " : "";
      return PyErr_SetString(PyExc_TypeError, (place + *wrong).c_str());
    }
  }
  for (const auto& [i, object] : call.arguments) {
    if (const auto error = out_of_range(parameters[i].name, parameters[i].type, object)) return set_error(*error);
  }
  PyErr_SetString(PyExc_TypeError, fmt::format("{}() cannot be called with these arguments", name).c_str());
}

PyObject* call_and_explain(PyObject* function, PyObject* const* values, size_t flagged_count, PyObject* names) {
  PyObject* result = bound_functions().at(function).call(function, values, flagged_count, names);
  if (result != nullptr || PyErr_ExceptionMatches(PyExc_TypeError) == 0) return result;
  nb::python_error seen;  // takes the exception out
  const std::string text = nb::str(seen.value()).c_str();
  const std::string name = nb::str(nb::object(nb::handle(function).attr("__name__"))).c_str();
  // Not one that came from a function of the caller.
  if (!text.starts_with(name + "(): incompatible function arguments.")) {
    seen.restore();
    return nullptr;
  }
  try {
    // nanobind has a flag of its own beside CPython's; both are in the upper half.
    explain(function, values, static_cast<uint32_t>(flagged_count), names);
  } catch (nb::python_error& failure) {
    failure.restore();  // an argument's own code raised it
  }
  return nullptr;
}

bool is_bound_function(PyObject* object) {
  const std::string_view type = Py_TYPE(object)->tp_name;
  return type.ends_with("nb_func") || type.ends_with("nb_method");
}

void take_over(PyObject* function, std::string property = "") {
  const vectorcallfunc call = is_bound_function(function) ? PyVectorcall_Function(function) : nullptr;
  if (call == nullptr || !bound_functions().emplace(function, Bound{call, std::move(property)}).second) return;
  char* slot = reinterpret_cast<char*>(function) + Py_TYPE(function)->tp_vectorcall_offset;
  *reinterpret_cast<vectorcallfunc*>(slot) = &call_and_explain;
}

void take_over_all(nb::handle scope) {
  const auto items = nb::steal<nb::list>(PyMapping_Items(nb::object(scope.attr("__dict__")).ptr()));
  for (const nb::handle item : items) {
    const nb::object name = item[0], value = item[1];
    if (PyModule_Check(value.ptr()) || PyType_Check(value.ptr())) {
      take_over_all(value);
    } else if (Py_IS_TYPE(value.ptr(), &PyProperty_Type)) {
      take_over(nb::object(value.attr("fset")).ptr(), nb::str(name).c_str());
    } else {
      take_over(value.ptr());
    }
  }
}

}  // namespace

void name_wrong_arguments(nb::module_& module) { take_over_all(module); }

}  // namespace quern::python
