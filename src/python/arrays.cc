// SPDX-License-Identifier: Apache-2.0
// Arrays in and out, and the exception type.
#include "python/arrays.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "base/quote_name.h"

namespace quern::python {
namespace {

PyObject* error_type = nullptr;  // owned by the module for the life of the interpreter

std::optional<DType> dtype_of(nb::dlpack::dtype t) {
  using Code = nb::dlpack::dtype_code;
  if (t.lanes != 1) return std::nullopt;
  switch (static_cast<Code>(t.code)) {
    case Code::Float:
      if (t.bits == 32) return DType::f32;
      if (t.bits == 64) return DType::f64;
      if (t.bits == 16) return DType::f16;
      break;
    case Code::Int:
      if (t.bits == 64) return DType::i64;
      if (t.bits == 32) return DType::i32;
      if (t.bits == 16) return DType::i16;
      if (t.bits == 8) return DType::i8;
      break;
    case Code::UInt:
      if (t.bits == 64) return DType::u64;
      if (t.bits == 32) return DType::u32;
      if (t.bits == 16) return DType::u16;
      if (t.bits == 8) return DType::u8;
      break;
    case Code::Bool:
      if (t.bits == 8) return DType::boolean;
      break;
    default: break;
  }
  return std::nullopt;
}

nb::dlpack::dtype dlpack_dtype(DType t) {
  using Code = nb::dlpack::dtype_code;
  Code code = Code::UInt;
  switch (t) {
    case DType::f32:
    case DType::f64:
    case DType::f16: code = Code::Float; break;
    case DType::bf16: code = Code::Bfloat; break;
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8: code = Code::Int; break;
    case DType::boolean: code = Code::Bool; break;
    default: break;
  }
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits_of(t)), 1};
}

}  // namespace

void raise(Error error) { throw Raised{std::move(error)}; }

void set_error(const Error& error) {
  const std::string message = one_line(error.message());
  nb::object exception = nb::handle(error_type)(nb::str(message.data(), message.size()));
  exception.attr("code") = nb::str(std::string(errc_name(error.code)).c_str());
  exception.attr("where") =
      nb::bytes(error.where.data(), error.where.size()).attr("decode")("utf-8", "backslashreplace");
  PyErr_SetObject(error_type, exception.ptr());
}

void raise_type(std::string_view what, std::string_view wanted, nb::handle object) {
  throw nb::type_error(fmt::format("{} must be {}, not {}", what, wanted, Py_TYPE(object.ptr())->tp_name).c_str());
}

std::string text_in(nb::handle object, const std::string& what) {
  if (PyUnicode_Check(object.ptr())) {
    Py_ssize_t size = 0;
    if (const char* utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size)) return {utf8, static_cast<size_t>(size)};
    PyErr_Clear();
    raise(bad_request(what, "holds surrogates, which have no UTF-8 form"));
  }
  raise_type(what, "a str", object);
}

std::unique_lock<std::mutex> hold_alone(std::mutex& mutex, std::string_view what) {
  std::unique_lock held(mutex, std::try_to_lock);
  if (!held) {
    raise(bad_request(std::string(what),
                      fmt::format("is in use by another thread; one {} is for one thread at once", what)));
  }
  return held;
}

std::string path_in(nb::handle object, const std::string& what) {
  PyObject* bytes = nullptr;
  if (PyBytes_Check(object.ptr()) || PyUnicode_FSConverter(object.ptr(), &bytes) == 0) {
    const bool has_nul = PyErr_ExceptionMatches(PyExc_ValueError) != 0 && PyUnicode_Check(object.ptr());
    PyErr_Clear();
    if (has_nul) raise(bad_request(what, "a path cannot hold a NUL character or surrogates that stand for no byte"));
    raise_type(what, "a path (str or os.PathLike)", object);
  }
  const nb::object owner = nb::steal(bytes);
  return {PyBytes_AsString(bytes), static_cast<size_t>(PyBytes_Size(bytes))};
}

int thread_count(int64_t threads) {
  constexpr int64_t kMaxThreads = 1024;  // what cpu::Pool takes
  if (threads < 0 || threads > kMaxThreads) {
    raise(bad_request("threads", fmt::format("{} is outside 0 (all usable cores) to {}", threads, kMaxThreads)));
  }
  return static_cast<int>(threads);
}

ArrayIn::ArrayIn(nb::handle object, const std::string& name) {
  if (object.is_none()) {
    tensor_.present = false;
    return;
  }
  if (!nb::try_cast(object, array_)) {
    std::string seen = Py_TYPE(object.ptr())->tp_name;
    if (nb::hasattr(object, "dtype"))
      seen += fmt::format(" of {}", nb::cast<std::string>(nb::str(nb::object(object.attr("dtype")))));
    raise(
        bad_request(name, fmt::format("expected a NumPy array of a numeric type in native byte order, got {}", seen)));
  }
  const auto dtype = dtype_of(array_.dtype());
  if (!dtype) raise(bad_request(name, "arrays of this element type are not supported"));
  tensor_.dtype = *dtype;
  if (array_.ndim() > static_cast<size_t>(ops::kMaxRank)) {
    raise(bad_request(name, fmt::format("rank {} is above the supported {}", array_.ndim(), ops::kMaxRank)));
  }
  for (size_t d = 0; d < array_.ndim(); d++) tensor_.shape.push_back(static_cast<int64_t>(array_.shape(d)));
  tensor_.data = const_cast<void*>(array_.data());
}

void check_is_array(nb::handle object, std::string_view name) {
  const bool is_array = nb::hasattr(object, "dtype") || nb::ndarray_check(object);
  if (!object.is_none() && !is_array) raise_type(name, "a NumPy array", object);
}

ArrayOut array_out(const ops::Tensor& tensor, cpu::Buffer storage) {
  return array_out(tensor, std::make_shared<const cpu::Buffer>(std::move(storage)));
}

ArrayOut array_out(const ops::Tensor& tensor, std::shared_ptr<const cpu::Buffer> storage) {
  using Owned = std::shared_ptr<const cpu::Buffer>;
  static char nothing;  // arrays without elements still want an address
  auto* owned = new Owned(std::move(storage));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Owned*>(p); });
  std::array<size_t, ops::kMaxRank> dims{};
  for (int d = 0; d < tensor.shape.rank(); d++) dims[d] = static_cast<size_t>(tensor.shape[d]);
  void* data = tensor.elements() == 0 ? &nothing : (*owned)->data();
  nb::ndarray<nb::numpy> array(data, static_cast<size_t>(tensor.shape.rank()), dims.data(), owner, nullptr,
                               dlpack_dtype(tensor.dtype));
  return nb::borrow<ArrayOut>(nb::cast(array));
}

std::string type_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "tensor(float)";
    case DType::f64: return "tensor(double)";
    default: return fmt::format("tensor({})", dtype_name(dtype));
  }
}

void bind_errors(nb::module_& m) {
  error_type = PyErr_NewExceptionWithDoc(
      "quern.Error",
      "What quern refuses or cannot do.\n\n"
      ".code is 'bad_model', 'unsupported', 'bad_request', 'too_long', 'no_memory', 'io', 'cancelled' or 'internal'; "
      ".where names the place: a file and offset, a node, an argument.",
      PyExc_RuntimeError, nullptr);
  m.attr("Error") = nb::handle(error_type);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Raised& raised) {
      set_error(raised.error);
    }
  });
}

}  // namespace quern::python
