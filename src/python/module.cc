// SPDX-License-Identifier: Apache-2.0
// The extension module: names what the other files of this folder bind.
#include "python/arrays.h"

NB_MODULE(_quern, m) {
  m.doc() = "quern: Qwen models on the CPU";
  m.attr("__version__") = QUERN_VERSION;
  quern::python::bind_errors(m);
  quern::python::bind_ops(m);
  quern::python::bind_inference_session(m);
  quern::python::bind_llm(m);
}
