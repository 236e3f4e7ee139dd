// SPDX-License-Identifier: Apache-2.0
// Owns the border between NumPy arrays and tensors, and between errors and exceptions. Does not own any computation.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
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
// Sets quern.Error as the exception of this thread, for code that Python calls directly.
void set_error(const Error& error);
// Raises TypeError: "{what} must be {wanted}, not {the object's type}".
[[noreturn]] void raise_type(std::string_view what, std::string_view wanted, nb::handle object);

// The lock of a `what` that is for one thread at once. Raises bad_request instead of waiting.
std::unique_lock<std::mutex> hold_alone(std::mutex& mutex, std::string_view what);

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

// Raises TypeError for what is neither None nor an array of any kind.
void check_is_array(nb::handle object, std::string_view name);

// A NumPy array on its way out, which signatures and stubs name as such.
class ArrayOut : public nb::object {
  NB_OBJECT(ArrayOut, nb::object, "numpy.ndarray", always)
  static bool always(nb::handle) { return true; }
};

// A NumPy array that keeps `storage`, in which `tensor` lies contiguously at the start.
ArrayOut array_out(const ops::Tensor& tensor, std::shared_ptr<const cpu::Buffer> storage);
ArrayOut array_out(const ops::Tensor& tensor, cpu::Buffer storage);

// The text of a Python str as UTF-8; raises TypeError for other types and bad_request for surrogates. Paths may also be
// os.PathLike or hold the surrogate escapes of file names that are not UTF-8.
std::string text_in(nb::handle object, const std::string& what);
std::string path_in(nb::handle object, const std::string& what);

// A thread count from a caller, 0 for all usable cores. Raises bad_request outside [0, 1024].
int thread_count(int64_t threads);

// "tensor(float)", as the ONNX Runtime calling convention writes element types.
std::string type_string(DType dtype);

// Makes quern.Error in the module and the translation of Raised into it.
void bind_errors(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_qwen4_mixer_ops(nb::module_& ops);
void bind_qwen4_sparse_ops(nb::module_& ops);
void bind_inference_session(nb::module_& m);
void bind_generation(nb::module_& m);
void bind_chat(nb::module_& m);
void bind_llm(nb::module_& m);

}  // namespace quern::python
