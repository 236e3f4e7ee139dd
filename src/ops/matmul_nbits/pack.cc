// SPDX-License-Identifier: Apache-2.0
// Turns the file's weights into panels. Portable: it runs once a load, and memory, not arithmetic, bounds it.
#include "ops/matmul_nbits/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/half.h"
#include "ops/matmul_nbits/layout.h"

namespace quern::ops {
namespace {

// Source bytes of codes between two calls of drop_source: what packing keeps resident beside its result.
constexpr size_t kStepBytes = size_t{8} << 20;

// In each 32-bit half, nibbles k0..k7 become k0 k4 k1 k5 k2 k6 k3 k7: byte i then has k(i) low and k(i+4) high. The two
// steps exchange the inner byte pair, then the inner nibbles of each byte pair.
uint64_t interleave_nibbles(uint64_t x) {
  uint64_t t = ((x >> 8) ^ x) & 0x0000FF000000FF00u;
  x ^= t ^ (t << 8);
  t = ((x >> 4) ^ x) & 0x00F000F000F000F0u;
  return x ^ t ^ (t << 4);
}

int64_t blocks_of(const NBitsForm& form) { return ceil_div(form.k, form.block); }

// For forms whose sizes pack_matmul_nbits has checked.
int64_t panel_bytes(const NBitsForm& form) {
  const int64_t blocks = blocks_of(form);
  const int64_t lines = nbits_scale_lines(form.bf16_scales, blocks) + nbits_zero_lines(form.zeros, blocks);
  return blocks * nbits_code_bytes(form.block, form.bits) + lines * kNBitsLineBytes;
}

// The source's bytes of one column.
struct ColumnBytes {
  int64_t codes, scales, zeros;

  ColumnBytes(const NBitsForm& form, NBitsFloat float_type) {
    const int64_t blocks = blocks_of(form);
    const int64_t float_bytes = float_type == NBitsFloat::f32 ? 4 : 2;
    codes = blocks * form.block * form.bits / 8;
    scales = blocks * float_bytes;
    zeros = form.zeros == NBitsZeros::none ? 0
            : form.zeros == NBitsZeros::u8 ? ceil_div<int64_t>(blocks * form.bits, 8)
                                           : blocks * float_bytes;
  }
};

uint32_t float_bits(const std::byte* values, int64_t i, NBitsFloat type) {
  uint32_t bits;
  if (type == NBitsFloat::f32) {
    std::memcpy(&bits, values + i * 4, sizeof bits);
    return bits;
  }
  uint16_t half;
  std::memcpy(&half, values + i * 2, sizeof half);
  return std::bit_cast<uint32_t>(half_to_float(half));
}

bool all_exact_in_bf16(cpu::Pool& pool, std::span<const std::byte> scales, NBitsFloat type) {
  constexpr int64_t kChunk = 64 << 10;
  const auto count = static_cast<int64_t>(scales.size()) / (type == NBitsFloat::f32 ? 4 : 2);
  std::atomic<bool> exact{true};
  pool.parallel_for(count, kChunk, [&](int64_t begin, int64_t end, int /*worker*/) {
    if (!exact.load(std::memory_order_relaxed)) return;
    uint32_t low_bits = 0;
    for (int64_t i = begin; i < end; i++) low_bits |= float_bits(scales.data(), i, type);
    if ((low_bits & 0xffffu) != 0) exact.store(false, std::memory_order_relaxed);
  });
  return exact.load(std::memory_order_relaxed);
}

class Packer {
 public:
  Packer(const PackMatMulNBitsArgs& source, const NBitsForm& form)
      : source_(source), form_(form), blocks_(blocks_of(form)), column_(form, source.float_type) {
    panel_.blocks = blocks_;
    panel_.block = form.block;
    panel_.bits = form.bits;
    panel_.zeros = form.zeros;
    panel_.bf16_scales = form.bf16_scales;
  }

  // `out` is zeroed, so columns from `columns` to 16 stay zero codes and zero scales.
  void pack(int64_t first_column, int64_t columns, uint8_t* out) const {
    for (int64_t b = 0; b < blocks_; b++) {
      const NBitsBlockPlace place = nbits_block_place(panel_, b);
      ask_ahead(first_column + kNBitsPanel, b);
      pack_codes(first_column, columns, b, out + place.codes);
      pack_scales(first_column, columns, b, out + place.scales);
      if (form_.zeros != NBitsZeros::none) pack_zeros(first_column, columns, b, out + place.zeros);
    }
  }

 private:
  // Each column is a stream of its own, too short for the hardware to notice: while a panel is packed, the lines of the
  // next one are asked for, a share with each block.
  void ask_ahead(int64_t next_column, int64_t b) const {
    if (next_column + kNBitsPanel > form_.n) return;
    const auto ask = [&](const std::byte* all, int64_t column_bytes) {
      const std::byte* panel = all + next_column * column_bytes;
      const int64_t bytes = kNBitsPanel * column_bytes;
      for (int64_t at = bytes * b / blocks_; at < bytes * (b + 1) / blocks_; at += kNBitsLineBytes) {
        __builtin_prefetch(panel + at);
      }
    };
    ask(source_.codes.data(), column_.codes);
    ask(source_.scales.data(), column_.scales);
  }

  // Codes of block b of `columns` columns. Everything is a local: byte stores could alias members, which the compiler
  // would then load again for each of them.
  void pack_codes(int64_t first_column, int64_t columns, int64_t b, uint8_t* out) const {
    const int64_t bytes = form_.block * form_.bits / 8;
    const int64_t column_bytes = column_.codes;
    const bool nibbles = form_.bits == 4;
    const std::byte* from = source_.codes.data() + first_column * column_bytes + b * bytes;
    for (int64_t c = 0; c < columns; c++, from += column_bytes) {
      uint8_t* to = out + c * 4;
      for (int64_t i = 0; i < bytes; i += 8, to += 2 * kNBitsLineBytes) {
        uint64_t word;
        std::memcpy(&word, from + i, sizeof word);
        if (nibbles) word = interleave_nibbles(word);
        const auto low = static_cast<uint32_t>(word);
        const auto high = static_cast<uint32_t>(word >> 32);
        std::memcpy(to, &low, sizeof low);
        std::memcpy(to + kNBitsLineBytes, &high, sizeof high);
      }
    }
  }

  void pack_scales(int64_t first_column, int64_t columns, int64_t b, uint8_t* out) const {
    const std::byte* scales = source_.scales.data();
    const NBitsFloat type = source_.float_type;
    const int64_t blocks = blocks_;
    const bool bf16 = form_.bf16_scales;
    for (int64_t c = 0; c < columns; c++) {
      const uint32_t scale = float_bits(scales, (first_column + c) * blocks + b, type);
      if (bf16) {
        const auto high = static_cast<uint16_t>(scale >> 16);
        std::memcpy(out + c * 4 + b % 2 * 2, &high, sizeof high);
      } else {
        std::memcpy(out + c * 4, &scale, sizeof scale);
      }
    }
  }

  void pack_zeros(int64_t first_column, int64_t columns, int64_t b, uint8_t* out) const {
    for (int64_t c = 0; c < columns; c++) {
      const std::byte* from = source_.zero_points.data() + (first_column + c) * column_.zeros;
      if (form_.zeros == NBitsZeros::f32) {
        const uint32_t bits = float_bits(from, b, source_.float_type);
        std::memcpy(out + c * 4, &bits, sizeof bits);
      } else if (form_.bits == 8) {
        out[c] = static_cast<uint8_t>(from[b]);
      } else {
        const auto byte = static_cast<unsigned>(from[b / 2]);
        out[c] = static_cast<uint8_t>(b % 2 == 0 ? byte & 15u : byte >> 4);
      }
    }
  }

  const PackMatMulNBitsArgs& source_;
  NBitsForm form_;
  int64_t blocks_;
  ColumnBytes column_;
  NBitsPanels panel_{};
};

std::span<const std::byte> rows_of(std::span<const std::byte> all, int64_t begin, int64_t end, int64_t row_bytes) {
  return all.subspan(static_cast<size_t>(begin * row_bytes), static_cast<size_t>((end - begin) * row_bytes));
}

Result<void> check_bytes(const PackMatMulNBitsArgs& args, std::string_view what, size_t seen, int64_t column_bytes) {
  const auto need = checked_mul(args.form.n, column_bytes);
  if (need && static_cast<size_t>(*need) == seen) return {};
  return bad_model(std::string(args.where), fmt::format("{} take {} bytes, which does not fit K = {}, N = {}", what,
                                                        seen, args.form.k, args.form.n));
}

// No product of sizes below overflows where this holds: a column of a block takes at most 256 bytes of codes and 4 each
// of scale and zero point, and a panel's lines of scales and zero points are no more than one of each a block.
bool sizes_fit(const NBitsForm& form) {
  const auto per_column = checked_mul<int64_t>(blocks_of(form), 256 + 2 * kNBitsLineBytes);
  const auto columns = checked_add<int64_t>(form.n, kNBitsPanel);
  return per_column && columns && checked_mul(*per_column, *columns).has_value();
}

}  // namespace

bool nbits_known(int64_t bits, int64_t block) {
  return (bits == 4 || bits == 8) && (block == 16 || block == 32 || block == 64 || block == 128 || block == 256);
}

PackedWeights::PackedWeights(const NBitsForm& form, cpu::Buffer storage)
    : form_(form),
      blocks_(blocks_of(form)),
      panels_(ceil_div<int64_t>(form.n, kNBitsPanel)),
      panel_bytes_(panel_bytes(form)),
      storage_(std::move(storage)) {
  QUERN_CHECK(storage_.size() >= bytes(), "storage holds all panels");
}

NBitsPanels PackedWeights::view(int64_t begin, int64_t end) const {
  NBitsPanels v;
  v.data = storage_.as<const uint8_t>() + begin * panel_bytes_;
  v.panels = end - begin;
  v.panel_bytes = panel_bytes_;
  v.columns = std::min(form_.n, end * kNBitsPanel) - begin * kNBitsPanel;
  v.blocks = blocks_;
  v.block = form_.block;
  v.bits = form_.bits;
  v.zeros = form_.zeros;
  v.bf16_scales = form_.bf16_scales;
  return v;
}

Result<PackedWeights> pack_matmul_nbits(cpu::Pool& pool, const PackMatMulNBitsArgs& args) {
  NBitsForm form = args.form;
  if (form.k < 1 || form.n < 1) {
    return bad_model(std::string(args.where), fmt::format("K = {} and N = {} must be at least 1", form.k, form.n));
  }
  if (!nbits_known(form.bits, form.block)) {
    return bad_model(std::string(args.where),
                     fmt::format("{} bits in blocks of {} are not supported", form.bits, form.block));
  }
  if (!sizes_fit(form)) {
    return bad_model(std::string(args.where), fmt::format("K = {} and N = {} make sizes overflow", form.k, form.n));
  }
  form.bf16_scales = false;
  const ColumnBytes column(form, args.float_type);
  QUERN_TRY_VOID(check_bytes(args, "codes", args.codes.size(), column.codes));
  QUERN_TRY_VOID(check_bytes(args, "scales", args.scales.size(), column.scales));
  QUERN_TRY_VOID(check_bytes(args, "zero points", args.zero_points.size(), column.zeros));

  // With one block a pair saves nothing.
  form.bf16_scales = blocks_of(form) > 1 && all_exact_in_bf16(pool, args.scales, args.float_type);
  const Packer packer(args, form);
  const int64_t panels = ceil_div<int64_t>(form.n, kNBitsPanel);
  const int64_t bytes = panel_bytes(form);
  QUERN_TRY(cpu::Buffer storage, cpu::Buffer::allocate(static_cast<size_t>(panels * bytes), cpu::MemoryTag::weights));
  uint8_t* out = storage.as<uint8_t>();
  const int64_t panel_source_bytes = column.codes * kNBitsPanel;
  const int64_t step = std::max<int64_t>(static_cast<int64_t>(kStepBytes) / panel_source_bytes, pool.threads());
  for (int64_t first = 0; first < panels; first += step) {
    const int64_t count = std::min(step, panels - first);
    pool.parallel_for(count, ceil_div<int64_t>(count, int64_t{4} * pool.threads()),
                      [&](int64_t begin, int64_t end, int /*worker*/) {
                        for (int64_t p = first + begin; p < first + end; p++) {
                          const int64_t c = p * kNBitsPanel;
                          packer.pack(c, std::min<int64_t>(kNBitsPanel, form.n - c), out + p * bytes);
                        }
                      });
    if (!args.drop_source) continue;
    const int64_t begin = first * kNBitsPanel;
    const int64_t end = std::min(form.n, (first + count) * kNBitsPanel);
    args.drop_source(rows_of(args.codes, begin, end, column.codes));
    args.drop_source(rows_of(args.scales, begin, end, column.scales));
    if (column.zeros != 0) args.drop_source(rows_of(args.zero_points, begin, end, column.zeros));
  }
  return PackedWeights(form, std::move(storage));
}

}  // namespace quern::ops
