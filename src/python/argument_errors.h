// SPDX-License-Identifier: Apache-2.0
// Owns what a call raises whose arguments do not fit its signature: one sentence that names the argument and the type
// given, in the place of nanobind's list of signatures. Does not own values that are of the right type.
#pragma once

#include <nanobind/nanobind.h>

namespace quern::python {

namespace nb = nanobind;

// For every function, method and setter that has been bound in `module` so far, its submodules and classes included.
void name_wrong_arguments(nb::module_& module);

}  // namespace quern::python
