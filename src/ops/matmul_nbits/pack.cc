// SPDX-License-Identifier: Apache-2.0
// Turns the file's 4-bit weights into panels. Portable: it runs once a load, and memory, not arithmetic, bounds it.
#include "ops/matmul_nbits/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "ops/matmul_nbits/kernels.h"

namespace quern::ops {
namespace {

// Source bytes of codes between two calls of drop_source: what packing keeps resident beside its result.
constexpr size_t kStepBytes = size_t{8} << 20;
constexpr int64_t kSourceBlockBytes = kNBitsBlock / 2;
constexpr int64_t kAlignment = kNBitsLineBytes;

// In each 32-bit half, nibbles k0..k7 become k0 k4 k1 k5 k2 k6 k3 k7: byte i then has k(i) low and k(i+4) high. The two
// steps exchange the inner byte pair, then the inner nibbles of each byte pair.
uint64_t interleave_nibbles(uint64_t x) {
  uint64_t t = ((x >> 8) ^ x) & 0x0000FF000000FF00u;
  x ^= t ^ (t << 8);
  t = ((x >> 4) ^ x) & 0x00F000F000F000F0u;
  return x ^ t ^ (t << 4);
}

int64_t zero_point_bytes(int64_t blocks) { return round_up<int64_t>(blocks * kNBitsPanel, kAlignment); }

std::optional<int64_t> packed_panel_bytes(int64_t blocks, bool has_zero_points) {
  const auto bytes = checked_mul<int64_t>(blocks, kNBitsBlockBytes + kNBitsPanel + kAlignment);
  if (!bytes) return std::nullopt;
  return blocks * kNBitsBlockBytes + (has_zero_points ? zero_point_bytes(blocks) : 0);
}

struct Source {
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* zero_points;  // null when there are none
  int64_t blocks;

  int64_t zero_bytes() const { return ceil_div<int64_t>(blocks, 2); }
};

// `out` is zeroed, so columns from `columns` to 16 stay zero codes and zero scales.
void pack_panel(const Source& source, int64_t first_column, int64_t columns, uint8_t* out) {
  for (int64_t b = 0; b < source.blocks; b++) {
    uint8_t* block = out + b * kNBitsBlockBytes;
    for (int64_t c = 0; c < columns; c++) {
      const int64_t from = (first_column + c) * source.blocks + b;
      for (int half = 0; half < 2; half++) {
        uint64_t word;
        std::memcpy(&word, source.codes + from * kSourceBlockBytes + half * 8, sizeof word);
        word = interleave_nibbles(word);
        uint8_t* line = block + half * 2 * kNBitsLineBytes + c * 4;
        const auto low = static_cast<uint32_t>(word);
        const auto high = static_cast<uint32_t>(word >> 32);
        std::memcpy(line, &low, sizeof low);
        std::memcpy(line + kNBitsLineBytes, &high, sizeof high);
      }
      std::memcpy(block + kNBitsCodeBytes + c * 4, source.scales + from * 4, 4);
    }
  }
  if (source.zero_points == nullptr) return;
  uint8_t* zeros = out + source.blocks * kNBitsBlockBytes;
  for (int64_t c = 0; c < columns; c++) {
    const std::byte* column = source.zero_points + (first_column + c) * source.zero_bytes();
    for (int64_t b = 0; b < source.blocks; b++) {
      const auto byte = static_cast<unsigned>(column[b / 2]);
      zeros[b * kNBitsPanel + c] = static_cast<uint8_t>(b % 2 == 0 ? byte & 15u : byte >> 4);
    }
  }
}

std::span<const std::byte> rows_of(std::span<const std::byte> all, int64_t begin, int64_t end, int64_t row_bytes) {
  return all.subspan(static_cast<size_t>(begin * row_bytes), static_cast<size_t>((end - begin) * row_bytes));
}

Result<void> check_bytes(const PackMatMulNBitsArgs& args, std::string_view what, size_t seen, int64_t a, int64_t b) {
  const auto need = checked_mul<int64_t>(a, b);
  if (need && static_cast<size_t>(*need) == seen) return {};
  return bad_model(std::string(args.where),
                   fmt::format("{} take {} bytes, which does not fit K = {}, N = {}", what, seen, args.k, args.n));
}

}  // namespace

PackedWeights::PackedWeights(int64_t k, int64_t n, bool has_zero_points, cpu::Buffer storage)
    : k_(k),
      n_(n),
      blocks_(ceil_div<int64_t>(k, kNBitsBlock)),
      panels_(ceil_div<int64_t>(n, kNBitsPanel)),
      has_zero_points_(has_zero_points),
      panel_bytes_(static_cast<size_t>(packed_panel_bytes(blocks_, has_zero_points).value_or(0))),
      storage_(std::move(storage)) {
  QUERN_CHECK(storage_.size() >= bytes(), "storage holds all panels");
}

Result<PackedWeights> pack_matmul_nbits(cpu::Pool& pool, const PackMatMulNBitsArgs& args) {
  if (args.k < 1 || args.n < 1) {
    return bad_model(std::string(args.where), fmt::format("K = {} and N = {} must be at least 1", args.k, args.n));
  }
  const bool has_zero_points = !args.zero_points.empty();
  const int64_t blocks = ceil_div<int64_t>(args.k, kNBitsBlock);
  const int64_t panels = ceil_div<int64_t>(args.n, kNBitsPanel);
  const auto panel_bytes = packed_panel_bytes(blocks, has_zero_points);
  const auto bytes = panel_bytes ? checked_mul<int64_t>(*panel_bytes, panels) : std::nullopt;
  if (!bytes) {
    return bad_model(std::string(args.where), fmt::format("K = {} and N = {} make sizes overflow", args.k, args.n));
  }
  const Source source{args.codes.data(), args.scales.data(), has_zero_points ? args.zero_points.data() : nullptr,
                      blocks};
  QUERN_TRY_VOID(check_bytes(args, "codes", args.codes.size(), args.n, blocks * kSourceBlockBytes));
  QUERN_TRY_VOID(check_bytes(args, "scales", args.scales.size(), args.n, blocks * 4));
  if (has_zero_points) {
    QUERN_TRY_VOID(check_bytes(args, "zero points", args.zero_points.size(), args.n, source.zero_bytes()));
  }

  QUERN_TRY(cpu::Buffer storage, cpu::Buffer::allocate(static_cast<size_t>(*bytes), cpu::MemoryTag::weights));
  uint8_t* out = storage.as<uint8_t>();
  const size_t panel_source_bytes = static_cast<size_t>(blocks * kSourceBlockBytes) * kNBitsPanel;
  const int64_t step = std::max<int64_t>(static_cast<int64_t>(kStepBytes / panel_source_bytes), pool.threads());
  for (int64_t first = 0; first < panels; first += step) {
    const int64_t count = std::min(step, panels - first);
    pool.parallel_for(
        count, ceil_div<int64_t>(count, int64_t{4} * pool.threads()), [&](int64_t begin, int64_t end, int /*worker*/) {
          for (int64_t p = first + begin; p < first + end; p++) {
            const int64_t column = p * kNBitsPanel;
            pack_panel(source, column, std::min<int64_t>(kNBitsPanel, args.n - column), out + p * *panel_bytes);
          }
        });
    if (!args.drop_source) continue;
    const int64_t begin = first * kNBitsPanel;
    const int64_t end = std::min(args.n, (first + count) * kNBitsPanel);
    args.drop_source(rows_of(args.codes, begin, end, blocks * kSourceBlockBytes));
    args.drop_source(rows_of(args.scales, begin, end, blocks * 4));
    if (has_zero_points) args.drop_source(rows_of(args.zero_points, begin, end, source.zero_bytes()));
  }
  return PackedWeights(args.k, args.n, has_zero_points, std::move(storage));
}

}  // namespace quern::ops
