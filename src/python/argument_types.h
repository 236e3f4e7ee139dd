// SPDX-License-Identifier: Apache-2.0
// Owns what signatures and stubs say of arguments whose values a function looks at itself, and the words for them in
// errors. Any object but None fits, None too where it is the default.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

namespace quern::python {

namespace nb = nanobind;

inline bool any_object(nb::handle) { return true; }

// `kWords` finish the sentence "... must be ...".
#define QUERN_ARGUMENT(Type, annotation, words)                 \
  class Type : public nb::object {                              \
    NB_OBJECT_DEFAULT(Type, nb::object, annotation, any_object) \
    static constexpr std::string_view kWords = words;           \
  }

QUERN_ARGUMENT(ArrayArg, "numpy.ndarray", "a NumPy array");
QUERN_ARGUMENT(PathArg, "str | os.PathLike[str]", "a path (str or os.PathLike)");
QUERN_ARGUMENT(PathOrBytesArg, "str | os.PathLike[str] | bytes", "a path (str or os.PathLike)");
QUERN_ARGUMENT(TextArg, "str", "a str");
QUERN_ARGUMENT(IntArg, "int", "an int");
QUERN_ARGUMENT(IdsArg, "collections.abc.Sequence[int] | numpy.ndarray", "a sequence of token ids");
QUERN_ARGUMENT(PromptArg, "str | collections.abc.Sequence[int] | numpy.ndarray", "a str or a sequence of token ids");
QUERN_ARGUMENT(StopArg, "str | collections.abc.Sequence[str]", "a str or a sequence of str");
QUERN_ARGUMENT(NamesArg, "collections.abc.Iterable[str]", "a list of names");
QUERN_ARGUMENT(FeedsArg, "dict[str, numpy.ndarray]", "a dict of arrays by input name");
QUERN_ARGUMENT(MessagesArg, "collections.abc.Sequence[dict]", "a list of dicts");
QUERN_ARGUMENT(ObserverArg, "collections.abc.Callable[[str, str, numpy.ndarray], object]", "callable");

#undef QUERN_ARGUMENT

struct ArgumentType {
  std::string_view annotation, words;
};
template <class T>
inline constexpr ArgumentType kArgumentType = {T::Name.text, T::kWords};

// All but those whose annotation says everything.
inline constexpr ArgumentType kArgumentTypes[] = {
    kArgumentType<ArrayArg>,    kArgumentType<PathArg>,    kArgumentType<PathOrBytesArg>, kArgumentType<IdsArg>,
    kArgumentType<PromptArg>,   kArgumentType<StopArg>,    kArgumentType<NamesArg>,       kArgumentType<FeedsArg>,
    kArgumentType<MessagesArg>, kArgumentType<ObserverArg>};

}  // namespace quern::python
