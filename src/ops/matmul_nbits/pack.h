// SPDX-License-Identifier: Apache-2.0
// Owns packed 4-bit weights: made once from the file's layout, then read-only and shared by all threads and calls.
// The byte layout is kernels.h's. Does not own when packing happens or who shares the result (matmul_nbits_onnx.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "cpu/memory.h"
#include "cpu/pool.h"

namespace quern::ops {

class PackedWeights {
 public:
  PackedWeights(int64_t k, int64_t n, bool has_zero_points, cpu::Buffer storage);

  int64_t k() const { return k_; }
  int64_t n() const { return n_; }
  int64_t blocks() const { return blocks_; }  // ceil(k / 32)
  int64_t panels() const { return panels_; }  // ceil(n / 16)
  bool has_zero_points() const { return has_zero_points_; }
  size_t panel_bytes() const { return panel_bytes_; }
  size_t bytes() const { return static_cast<size_t>(panels_) * panel_bytes_; }
  const uint8_t* panel(int64_t i) const { return storage_.as<const uint8_t>() + static_cast<size_t>(i) * panel_bytes_; }

 private:
  int64_t k_, n_, blocks_, panels_;
  bool has_zero_points_;
  size_t panel_bytes_;
  cpu::Buffer storage_;
};

// The file's layout. Any alignment.
struct PackMatMulNBitsArgs {
  int64_t k = 0, n = 0;                    // both >= 1
  std::span<const std::byte> codes;        // [n, ceil(k/32), 16] bytes, low nibble first
  std::span<const std::byte> scales;       // [n, ceil(k/32)] float32
  std::span<const std::byte> zero_points;  // [n, ceil(ceil(k/32)/2)] bytes, low nibble first; empty: all are 8
  std::function<void(std::span<const std::byte>)> drop_source;  // given source bytes that are packed; may be empty
  std::string_view where = "matmul_nbits";                      // for errors
};

// Packs over the pool's threads, a few MiB of source at a time. Errors: bad_model for sizes that do not fit together,
// no_memory.
Result<PackedWeights> pack_matmul_nbits(cpu::Pool& pool, const PackMatMulNBitsArgs& args);

}  // namespace quern::ops
