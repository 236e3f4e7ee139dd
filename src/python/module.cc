// SPDX-License-Identifier: Apache-2.0
// The extension module: names what the other files of this folder bind.
#include "python/argument_errors.h"
#include "python/arrays.h"

NB_MODULE(_quern, m) {
  // Whatever a daemon thread holds when the interpreter ends, or any thread in a child of fork(), would be listed on
  // standard error.
  nanobind::set_leak_warnings(false);
  m.doc() = "quern: Qwen models on the CPU";
  m.attr("__version__") = QUERN_VERSION;
  quern::python::bind_errors(m);
  quern::python::bind_ops(m);
  quern::python::bind_inference_session(m);
  quern::python::bind_generation(m);
  quern::python::bind_chat(m);
  quern::python::bind_llm(m);
  quern::python::name_wrong_arguments(m);
}
