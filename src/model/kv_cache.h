// SPDX-License-Identifier: Apache-2.0
// Owns the keys and values that one timeline keeps: where every layer's rows lie, how they grow without moving, and
// what they cost. Does not own how rows are written or read as numbers (ops/kv_view.h says that), nor tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/memory.h"
#include "ops/kv_view.h"

namespace quern::model {

struct KvCacheShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;    // Nk
  int32_t head_size = 0;   // D, in elements
  int64_t max_tokens = 0;  // rows that there are addresses for
  DType dtype = DType::f32;
  // Rows of all layers and heads in blocks of ops::kKvBlockRows tokens on huge pages, which attention reads faster; a
  // timeline then takes memory for whole blocks. Otherwise each head has a stretch of its own.
  bool in_blocks = false;

  bool operator==(const KvCacheShape&) const = default;
};

// The types that rows can be kept in, by the names that people give them: fp32, fp16, bf16, int8.
inline constexpr std::string_view kKvTypeNames[] = {"fp32", "fp16", "bf16", "int8"};
std::optional<DType> kv_type(std::string_view name);
std::string_view kv_type_name(DType dtype);

// Bytes that one token adds to all layers: 2 * layers * Nk * (D * size of an element + the scale of an i8 row).
// Precondition: the shape was accepted by KvCache::make(), or is that of a model that was opened.
int64_t kv_token_bytes(const KvCacheShape& shape);

// Rows of one timeline. The addresses of rows never change while a KvCache lives: growing touches nothing that is
// there. Move-only; for one thread at once.
class KvCache {
 public:
  // An empty cache. Takes addresses for all of shape.max_tokens and memory for nothing.
  // Errors: no_memory (more addresses than there are).
  static Result<KvCache> make(const KvCacheShape& shape);

  const KvCacheShape& shape() const { return shape_; }
  // Rows [0, length) of every layer hold something.
  int64_t length() const { return length_; }
  // Precondition: 0 <= tokens <= shape().max_tokens. Rows that a larger length takes in must have been written.
  void set_length(int64_t tokens);
  // What attention works on; its capacity is shape().max_tokens, it stays where it is and valid while the cache does.
  const ops::KvView& view(int32_t layer) const { return views_[static_cast<size_t>(layer)]; }

  // Counts memory for a length of `tokens` from now on. Precondition: tokens <= shape().max_tokens.
  void prepare(int64_t tokens);
  // Memory in use: what prepare() counted.
  size_t bytes() const { return rows_.counted() + scales_.counted(); }

  // A cache of its own with the same rows. Errors: no_memory.
  Result<KvCache> fork() const;

  // The pieces of memory that hold rows [0, tokens), in a fixed order: for every layer its key heads, its value heads,
  // each from the first row to the last (in one piece, or a piece a block), then (i8) the scales of both in that order.
  // Together kv_token_bytes() * tokens, the same bytes in either layout.
  Result<void> for_pieces(int64_t tokens, const std::function<Result<void>(std::span<std::byte>)>& piece) const;

 private:
  KvCache() = default;
  void make_views();

  KvCacheShape shape_;
  int64_t length_ = 0;
  size_t row_bytes_ = 0;    // of one head
  size_t piece_rows_ = 0;   // of one head side by side
  size_t head_bytes_ = 0;   // from one head to the next
  size_t block_bytes_ = 0;  // from one block to the next, 0 without blocks
  size_t scale_bytes_ = 0;  // from the scales of one head to those of the next, 0 without
  cpu::Reservation rows_;
  cpu::Reservation scales_;
  std::vector<ops::KvView> views_;
};

}  // namespace quern::model
