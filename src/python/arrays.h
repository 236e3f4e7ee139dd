// SPDX-License-Identifier: Apache-2.0
// Owns the border between NumPy arrays and tensors, and between errors and exceptions. Does not own any computation.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/memory.h"
#include "ops/tensor.h"

namespace quern::python {

namespace nb = nanobind;

// Carries an Error to Python, where it becomes quern.Error with .code and .where.
struct Raised {
  Error error;
};

[[noreturn]] void raise(Error error);

template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(std::move(result).error());
  return std::move(result).value();
}
inline void take(Result<void> result) {
  if (!result.ok()) raise(std::move(result).error());
}

// A contiguous array and the tensor over it; the tensor is valid while this lives. `name` is for error texts.
class ArrayIn {
 public:
  // None gives an absent tensor. Arrays that are not C-contiguous are copied. Raises Error for other element types.
  ArrayIn(nb::handle object, const std::string& name);
  const ops::Tensor& tensor() const { return tensor_; }

 private:
  nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array_;
  ops::Tensor tensor_;
};

// A NumPy array that owns `storage`, in which `tensor` lies contiguously at the start.
nb::object array_out(const ops::Tensor& tensor, cpu::Buffer storage);

// The text of a Python str as UTF-8, or an error that says what `what` must be. Paths may also be os.PathLike or hold
// the surrogate escapes of file names that are not UTF-8.
std::string text_in(nb::handle object, const std::string& what);
std::string path_in(nb::handle object, const std::string& what);

// A thread count from a caller, 0 for all usable cores. Raises bad_request outside [0, 1024].
int thread_count(int64_t threads);

// "tensor(float)", as the ONNX Runtime calling convention writes element types.
std::string type_string(DType dtype);

// Makes quern.Error in the module and the translation of Raised into it.
void bind_errors(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_inference_session(nb::module_& m);
void bind_llm(nb::module_& m);

}  // namespace quern::python
