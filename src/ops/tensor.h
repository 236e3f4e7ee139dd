// SPDX-License-Identifier: Apache-2.0
// Owns what operators call a tensor: borrowed storage with a type, a shape and a row layout. Never owns the storage.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace quern::ops {

inline constexpr int kMaxRank = 8;

// Up to kMaxRank extents, each >= 0. A rank of 0 is a scalar with one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    for (int64_t d : dims) push_back(d);
  }
  // Errors: bad_model for more than kMaxRank dims or a negative one.
  static Result<Shape> from(std::span<const int64_t> dims, const std::string& where);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return dims_[static_cast<size_t>(i)]; }
  int64_t back() const { return dims_[static_cast<size_t>(rank_) - 1]; }
  void push_back(int64_t d) {
    QUERN_CHECK(rank_ < kMaxRank, "rank within kMaxRank");
    dims_[static_cast<size_t>(rank_++)] = d;
  }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

  // Product of all extents; nothing on 64-bit overflow.
  std::optional<int64_t> checked_elements() const;
  // The same for shapes that were checked before.
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : dims()) n *= d;
    return n;
  }
  // Rows: the product of all extents but the last (1 for rank 0 and 1).
  int64_t rows() const {
    int64_t n = 1;
    for (int i = 0; i + 1 < rank_; i++) n *= (*this)[i];
    return n;
  }
  bool operator==(const Shape& other) const;
  std::string to_string() const;  // "[2, 3, 128]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// Product of the extents [begin, end). Modulo 2^64: a part of a shape without elements may overflow, and no such
// product is used.
inline int64_t extents_product(const Shape& shape, int begin, int end) {
  uint64_t n = 1;
  for (int i = begin; i < end; i++) n *= static_cast<uint64_t>(shape[i]);
  return static_cast<int64_t>(n);
}

// Extent i counted from the last one; 1 beyond the first, as broadcasting reads it.
inline int64_t extent_from_back(const Shape& shape, int i) {
  return i < shape.rank() ? shape[shape.rank() - 1 - i] : 1;
}

// Where the rows (runs of the last dimension, always contiguous) of a tensor lie, in elements:
// row r starts at (r / inner) * outer_stride + (r % inner) * inner_stride.
// This covers a slice of the last dimension (inner 1) and the same slice seen as more, shorter rows (inner > 1).
struct RowLayout {
  int64_t inner = 1;
  int64_t inner_stride = 0;
  int64_t outer_stride = 0;

  int64_t offset(int64_t row) const {
    if (inner == 1) return row * outer_stride;
    return row / inner * outer_stride + row % inner * inner_stride;
  }
  bool operator==(const RowLayout&) const = default;
};

struct Tensor {
  void* data = nullptr;  // null for an absent optional tensor, or for one without elements
  DType dtype = DType::f32;
  Shape shape;
  RowLayout layout;        // meaningful when !contiguous
  bool contiguous = true;  // row-major without gaps
  bool present = true;     // false for an optional input or output that the node leaves out
  // Not null: the tensor stands for rows that live in this cache; data is null, shape is the declared
  // [1, Nk, capacity, D]. Only operators that say so take such a tensor.
  const struct KvView* cache = nullptr;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t elements() const { return shape.elements(); }
  RowLayout rows() const {
    if (!contiguous) return layout;
    return {1, 0, shape.rank() == 0 ? 1 : shape.back()};
  }
};

}  // namespace quern::ops
