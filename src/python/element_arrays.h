// SPDX-License-Identifier: Apache-2.0
// Owns how the bindings of rooms that run in float32 or bfloat16 see arrays: NumPy has no bfloat16 of its own, so it
// comes as ml_dtypes.bfloat16 or as its bits in uint16, and results are what the first array was. Does not own any
// computation.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "cpu/topology.h"
#include "ops/context.h"
#include "ops/rows.h"
#include "python/arrays.h"
#include "python/interpreter_lock.h"

namespace quern::python {

// float32 or bfloat16, and what Python calls that.
struct ElementType {
  ElementType(DType type) : dtype(type) {}  // NOLINT: implicit by intent
  operator DType() const { return dtype; }  // NOLINT: implicit by intent

  DType dtype;
  nb::object ml_dtype;  // ml_dtypes.bfloat16 where arrays have that
};

// A contiguous array of float32 or bfloat16, seen as rows of its last dimension.
class ElementsIn {
 public:
  ElementsIn(nb::handle object, const std::string& name)
      : type_(DType::f32), array_(plain_of(object, type_, name), name) {
    const ops::Tensor& t = array_.tensor();
    if (!t.present || t.shape.rank() == 0 || (t.dtype != DType::f32 && t.dtype != DType::u16)) {
      raise(bad_request(name,
                        "expected float32 or bfloat16 (ml_dtypes, or its bits as uint16) of at least one "
                        "dimension"));
    }
    type_.dtype = t.dtype == DType::f32 ? DType::f32 : DType::bf16;
  }
  // By reference: it is read without the interpreter lock.
  const ElementType& type() const { return type_; }
  const ops::Shape& shape() const { return array_.tensor().shape; }
  int64_t rows() const { return shape().rows(); }
  int64_t width() const { return shape().back(); }
  const void* data() const { return array_.tensor().data; }
  ops::RowsIn view() const { return {data(), width()}; }
  // Raises unless the type, the rows and the elements of each are these: view() goes from row to row by that width.
  const ElementsIn& expect(DType type, int64_t rows, int64_t width, const char* name) const {
    if (this->type() == type && this->rows() == rows && this->width() == width) return *this;
    raise(bad_request(name, fmt::format("is {} of {}, the other arguments ask for {} rows of {} in {}",
                                        shape().to_string(), dtype_name(this->type()), rows, width, dtype_name(type))));
  }

 private:
  static nb::object plain_of(nb::handle object, ElementType& type, const std::string& name) {
    check_is_array(object, name);
    const nb::object array = nb::borrow(object);
    if (!nb::hasattr(array, "dtype") || !nb::hasattr(array, "view")) return array;
    const nb::object dtype = array.attr("dtype");
    if (std::string_view(nb::str(dtype).c_str()) != "bfloat16") return array;
    type.ml_dtype = dtype;
    return array.attr("view")("uint16");
  }

  ElementType type_;
  ArrayIn array_;
};

// How many parts of `part` elements make up `whole`; raises where that is no number from 0 to 2^31 - 1.
inline int32_t parts_of(int64_t whole, int64_t part, const char* name) {
  if (part < 1 || whole < 0 || whole % part != 0 || whole / part > std::numeric_limits<int32_t>::max()) {
    raise(bad_request(name, fmt::format("{} elements are no whole number of parts of {}", whole, part)));
  }
  return static_cast<int32_t>(whole / part);
}

// An extent as rooms take it.
inline int32_t extent(int64_t elements, const char* name) { return parts_of(elements, 1, name); }

// A new array of the given shape.
class ElementsOut {
 public:
  ElementsOut(const ElementType& type, ops::Shape shape) : ml_dtype_(type.ml_dtype) {
    tensor_.dtype = type == DType::bf16 ? DType::u16 : type.dtype;
    tensor_.shape = shape;
    storage_ = take(cpu::Buffer::allocate(storage_bytes(tensor_.dtype, shape.elements()).value_or(SIZE_MAX),
                                          cpu::MemoryTag::workspace));
  }
  // Starts as a copy of `from`.
  explicit ElementsOut(const ElementsIn& from) : ElementsOut(from.type(), from.shape()) {
    if (storage_.size() > 0) std::memcpy(storage_.data(), from.data(), storage_.size());
  }
  void* data() const { return storage_.data(); }
  ops::RowsOut view() const { return {data(), tensor_.shape.back()}; }
  ArrayOut array() {
    ArrayOut out = array_out(tensor_, std::move(storage_));
    return ml_dtype_.is_valid() ? nb::borrow<ArrayOut>(nb::object(out.attr("view")(ml_dtype_))) : out;
  }

 private:
  nb::object ml_dtype_;
  ops::Tensor tensor_;
  cpu::Buffer storage_;
};

// Calls `work` with a context of all usable cores, the interpreter lock released, and raises the error that it returns.
template <class Work>
void compute(Work&& work) {
  const LockReleased released;
  cpu::Pool pool(cpu::read_topology().threads);
  cpu::Arena scratch;
  ops::Counters counters;
  take(work(ops::Context{&pool, &scratch, take(cpu::usable_features()), &counters}));
}

}  // namespace quern::python
