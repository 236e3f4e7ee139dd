// SPDX-License-Identifier: Apache-2.0
// One stretch of addresses holds, layer behind layer, the key heads and then the value heads, each with room for the
// longest timeline, or for one block, block behind block; a second one holds the scales of i8 rows, each head's with
// room for the longest timeline.
#include "model/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/checked.h"

namespace quern::model {
namespace {

// Heads whose rows lie a power of two apart meet in the same sets of a cache; a page and a line between them keep them
// apart, and the pages of one head out of those of the next.
constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;
constexpr size_t kHeadGap = kPage + kLine;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8};  // in the order of kKvTypeNames
static_assert(std::size(kTypes) == std::size(kKvTypeNames));

size_t bytes_of(DType dtype) { return static_cast<size_t>(bits_of(dtype)) / 8; }

}  // namespace

std::optional<DType> kv_type(std::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); i++) {
    if (kKvTypeNames[i] == name) return kTypes[i];
  }
  return std::nullopt;
}

std::string_view kv_type_name(DType dtype) {
  for (size_t i = 0; i < std::size(kTypes); i++) {
    if (kTypes[i] == dtype) return kKvTypeNames[i];
  }
  return dtype_name(dtype);
}

int64_t kv_token_bytes(const KvCacheShape& shape) {
  const int64_t row = shape.head_size * static_cast<int64_t>(bytes_of(shape.dtype)) +
                      (shape.dtype == DType::i8 ? static_cast<int64_t>(sizeof(float)) : 0);
  return 2 * int64_t{shape.layers} * shape.kv_heads * row;
}

Result<KvCache> KvCache::make(const KvCacheShape& shape) {
  KvCache cache;
  cache.shape_ = shape;
  const auto heads = checked_mul(2 * static_cast<size_t>(shape.layers), static_cast<size_t>(shape.kv_heads));
  const auto rows = static_cast<size_t>(shape.max_tokens);
  cache.row_bytes_ = static_cast<size_t>(shape.head_size) * bytes_of(shape.dtype);
  // The stretch of all heads, each of `rows` rows of `row_bytes`.
  const auto reserve = [&](size_t row_bytes, size_t* head_bytes) -> Result<cpu::Reservation> {
    std::optional<size_t> all = checked_mul(rows, row_bytes);
    if (all && *all < SIZE_MAX / 2) {
      *head_bytes = round_up(*all, kPage) + kHeadGap;
      all = heads ? checked_mul(*heads, *head_bytes) : std::nullopt;
    }
    return cpu::Reservation::make(all.value_or(SIZE_MAX), cpu::MemoryTag::cache);
  };
  if (shape.in_blocks) {
    cache.piece_rows_ = static_cast<size_t>(ops::kKvBlockRows);
    cache.head_bytes_ = round_up(cache.piece_rows_ * cache.row_bytes_, kLine) + kLine;
    const auto block = heads ? checked_mul(*heads, cache.head_bytes_) : std::nullopt;
    cache.block_bytes_ = block.value_or(0);
    const auto all = block ? checked_mul(ceil_div(rows, cache.piece_rows_), *block) : std::nullopt;
    QUERN_TRY(cache.rows_,
              cpu::Reservation::make(all.value_or(SIZE_MAX), cpu::MemoryTag::cache, cpu::Reservation::Pages::huge));
  } else {
    cache.piece_rows_ = rows;
    QUERN_TRY(cache.rows_, reserve(cache.row_bytes_, &cache.head_bytes_));
  }
  if (shape.dtype == DType::i8) {
    QUERN_TRY(cache.scales_, reserve(sizeof(float), &cache.scale_bytes_));
  }
  cache.make_views();
  return cache;
}

void KvCache::make_views() {
  const auto element = static_cast<int64_t>(bytes_of(shape_.dtype));
  const size_t half = static_cast<size_t>(shape_.kv_heads) * head_bytes_;
  const size_t scale_half = static_cast<size_t>(shape_.kv_heads) * scale_bytes_;
  views_.resize(static_cast<size_t>(shape_.layers));
  for (size_t layer = 0; layer < views_.size(); layer++) {
    ops::KvView& view = views_[layer];
    view.dtype = shape_.dtype;
    view.capacity = shape_.max_tokens;
    view.row_stride = shape_.head_size;
    view.head_stride = static_cast<int64_t>(head_bytes_) / element;
    view.block_stride = static_cast<int64_t>(block_bytes_) / element;
    view.keys = rows_.data() + 2 * layer * half;
    view.values = rows_.data() + (2 * layer + 1) * half;
    if (shape_.dtype != DType::i8) continue;
    view.scale_head_stride = static_cast<int64_t>(scale_bytes_ / sizeof(float));
    view.key_scales = reinterpret_cast<float*>(scales_.data() + 2 * layer * scale_half);
    view.value_scales = reinterpret_cast<float*>(scales_.data() + (2 * layer + 1) * scale_half);
  }
}

void KvCache::set_length(int64_t tokens) {
  QUERN_CHECK(tokens >= 0 && tokens <= shape_.max_tokens, "a length that there are addresses for");
  length_ = tokens;
}

void KvCache::prepare(int64_t tokens) {
  QUERN_CHECK(tokens >= 0 && tokens <= shape_.max_tokens, "a length that there are addresses for");
  const size_t heads = 2 * static_cast<size_t>(shape_.layers) * static_cast<size_t>(shape_.kv_heads);
  const size_t rows = heads * static_cast<size_t>(tokens);
  rows_.count(rows * row_bytes_);
  if (shape_.dtype == DType::i8) scales_.count(rows * sizeof(float));
}

Result<KvCache> KvCache::fork() const {
  QUERN_TRY(KvCache copy, make(shape_));
  copy.prepare(length_);
  std::vector<std::span<std::byte>> targets;
  QUERN_TRY_VOID(copy.for_pieces(length_, [&](std::span<std::byte> piece) -> Result<void> {
    targets.push_back(piece);
    return {};
  }));
  size_t next = 0;
  QUERN_TRY_VOID(for_pieces(length_, [&](std::span<std::byte> piece) -> Result<void> {
    std::memcpy(targets[next++].data(), piece.data(), piece.size());
    return {};
  }));
  copy.length_ = length_;
  return copy;
}

Result<void> KvCache::for_pieces(int64_t tokens, const std::function<Result<void>(std::span<std::byte>)>& piece) const {
  if (tokens == 0) return {};
  const auto rows = static_cast<size_t>(tokens);
  const size_t heads = 2 * static_cast<size_t>(shape_.kv_heads);
  for (size_t layer = 0; layer < views_.size(); layer++) {
    for (size_t head = layer * heads; head < (layer + 1) * heads; head++) {
      for (size_t first = 0; first < rows; first += piece_rows_) {
        std::byte* const begin = rows_.data() + first / piece_rows_ * block_bytes_ + head * head_bytes_;
        QUERN_TRY_VOID(piece({begin, std::min(piece_rows_, rows - first) * row_bytes_}));
      }
    }
    if (shape_.dtype != DType::i8) continue;
    for (size_t head = layer * heads; head < (layer + 1) * heads; head++) {
      QUERN_TRY_VOID(piece({scales_.data() + head * scale_bytes_, rows * sizeof(float)}));
    }
  }
  return {};
}

}  // namespace quern::model
