// SPDX-License-Identifier: Apache-2.0
// Owns how the bindings of rooms that run in float32 or bfloat16 see arrays: NumPy has no bfloat16 of its own, so it
// comes as ml_dtypes.bfloat16 or as its bits in uint16, and results are what the first array was. Does not own any
// computation.
#pragma once

#include <algorithm>
#include <cstring>
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
  // Raises unless the type and the number of elements are these.
  const ElementsIn& expect(DType type, int64_t elements, const char* name) const {
    if (this->type() != type || shape().elements() != elements) {
      raise(bad_request(name, "has another element type or number of elements than the other arguments ask for"));
    }
    return *this;
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
