// SPDX-License-Identifier: Apache-2.0
// Owns packed weights: made once from the file's layout, then read-only and shared by all threads and calls. The byte
// layout is kernels.h's. Does not own when packing happens or who shares the result (matmul_nbits_onnx.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "cpu/memory.h"
#include "cpu/pool.h"
#include "ops/matmul_nbits/kernels.h"

namespace quern::ops {

// The form of a weight matrix. k, n >= 1; bits and block as nbits_known() says.
struct NBitsForm {
  int64_t k = 0, n = 0;
  int64_t bits = 4;
  int64_t block = 32;
  NBitsZeros zeros = NBitsZeros::none;
  bool bf16_scales = false;  // of the packed form: how scales are stored

  bool operator==(const NBitsForm&) const = default;
};

// Whether there are codes of so many bits and blocks of so many k.
bool nbits_known(int64_t bits, int64_t block);

class PackedWeights {
 public:
  // `storage` holds all panels. Made by pack_matmul_nbits.
  PackedWeights(const NBitsForm& form, cpu::Buffer storage);

  const NBitsForm& form() const { return form_; }
  int64_t k() const { return form_.k; }
  int64_t n() const { return form_.n; }
  int64_t blocks() const { return blocks_; }  // ceil(k / block)
  int64_t panels() const { return panels_; }  // ceil(n / 16)
  size_t bytes() const { return static_cast<size_t>(panels_ * panel_bytes_); }
  // Panels [begin, end), 0 <= begin < end <= panels().
  NBitsPanels view(int64_t begin, int64_t end) const;

 private:
  NBitsForm form_;
  int64_t blocks_, panels_, panel_bytes_;
  cpu::Buffer storage_;
};

enum class NBitsFloat : uint8_t { f32, f16 };

// The file's layout. Any alignment. With b = ceil(k / block):
struct PackMatMulNBitsArgs {
  NBitsForm form;                     // bf16_scales is not read: packing decides it
  std::span<const std::byte> codes;   // [n, b, block * bits / 8] bytes, 4 bits: low nibble first
  std::span<const std::byte> scales;  // [n, b]
  std::span<const std::byte>
      zero_points;  // none: empty; u8: [n, ceil(b * bits / 8)] bytes, low nibble first; f32: [n, b]
  NBitsFloat float_type = NBitsFloat::f32;                      // of scales and of float zero points
  std::function<void(std::span<const std::byte>)> drop_source;  // given source bytes that are packed; may be empty
  std::string_view where = "matmul_nbits";                      // for errors
};

// Packs over the pool's threads, a few MiB of source at a time; scales become bfloat16 where each of them is exactly
// one and that makes the panels smaller. Errors: bad_model for forms that there are not and for sizes that do not fit
// together, no_memory.
Result<PackedWeights> pack_matmul_nbits(cpu::Pool& pool, const PackMatMulNBitsArgs& args);

}  // namespace quern::ops
