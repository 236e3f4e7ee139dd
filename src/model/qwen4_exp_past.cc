// SPDX-License-Identifier: Apache-2.0
// One buffer holds all steps, so that a snapshot is one copy; rows lie where they will stay.
#include "model/qwen4_exp_past.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "ops/short_conv/short_conv.h"

namespace quern::model {
namespace {

using Config = Qwen4ExpConfig;

// Steps are kept at multiples of this many tokens, the newest few of them: going back costs at most the computation of
// so many tokens, unless it goes very far.
constexpr int64_t kSnapshotTokens = 256;
// States begin on cache lines.
constexpr size_t kAlignment = 64;

size_t bytes_of(DType type, int64_t elements) {
  const auto bytes = storage_bytes(type, elements);
  QUERN_CHECK(bytes.has_value(), "the configuration bounds widths");
  return *bytes;
}

KvCacheShape rows_of(const Config& c, DType type) {
  const auto sparse = std::count(c.layer_types.begin(), c.layer_types.end(), Config::LayerKind::sparse_attention);
  return {static_cast<int32_t>(sparse), c.num_key_value_heads, c.head_dim, c.max_position_embeddings, type};
}

}  // namespace

size_t qwen4_exp_token_bytes(const Config& c, DType type) {
  const KvCacheShape shape = rows_of(c, type);
  if (shape.layers == 0) return 0;
  const size_t block_keys = bytes_of(type, int64_t{shape.layers} * c.indexer_head_dim);
  return static_cast<size_t>(kv_token_bytes(shape)) + block_keys / static_cast<size_t>(c.indexer_compress_ratio);
}

Result<Qwen4ExpPast> Qwen4ExpPast::make(const Config& c, DType type) {
  const KvCacheShape shape = rows_of(c, type);
  const int32_t sparse = shape.layers;
  QUERN_TRY(KvCache rows, KvCache::make(shape));
  Qwen4ExpPast past(std::move(rows));
  past.sparse_layers_ = sparse;
  size_t at = 0;
  const auto place = [&](DType element, int64_t elements) {
    return std::exchange(at, at + round_up(bytes_of(element, elements), kAlignment));
  };
  int32_t sparse_before = 0;
  for (int32_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    Place p;
    if (c.ple_index(layer)) {
      p.ngram_conv = place(type, ops::short_conv_past(c.ple_conv_kernel_size, c.ngram_size) * c.stream_width());
    }
    if (c.layer_types[static_cast<size_t>(layer)] == Config::LayerKind::linear_attention) {
      p.conv = place(type, ops::short_conv_past(c.linear_conv_kernel_dim, 1) * c.linear_conv_width());
      p.recurrent = place(DType::f32, int64_t{c.linear_key_head_dim} * c.linear_value_width());
    } else {
      p.open_keys = place(type, int64_t{c.indexer_compress_ratio - 1} * c.indexer_head_dim);
      p.sparse = sparse_before++;
    }
    past.places_.push_back(p);
  }
  QUERN_TRY(past.steps_, cpu::Buffer::allocate(at, cpu::MemoryTag::cache));
  if (sparse > 0) {
    past.ratio_ = c.indexer_compress_ratio;
    past.max_blocks_ = c.max_position_embeddings / past.ratio_;
    past.block_row_ = bytes_of(type, c.indexer_head_dim);
    past.stretch_ = static_cast<size_t>(past.max_blocks_) * past.block_row_;
    QUERN_TRY(past.block_keys_,
              cpu::Reservation::make(past.stretch_ * static_cast<size_t>(sparse), cpu::MemoryTag::cache));
  }
  return past;
}

Result<void> Qwen4ExpPast::advance_to(int64_t tokens) {
  QUERN_CHECK(tokens >= tokens_, "a past grows");
  tokens_ = tokens;
  rows_.set_length(tokens);
  const bool due =
      snapshots_.empty() ? tokens >= kSnapshotTokens : tokens >= snapshots_.back().tokens + kSnapshotTokens;
  return due || tokens == marked_ ? keep_snapshot() : Result<void>();
}

Result<void> Qwen4ExpPast::keep_snapshot() {
  Snapshot snapshot;
  if (snapshots_.size() == kSnapshots) {
    const auto oldest = snapshots_.begin() + (snapshots_.front().tokens == marked_ ? 1 : 0);
    snapshot = std::move(*oldest);
    snapshots_.erase(oldest);
  } else {
    QUERN_TRY(snapshot.steps, cpu::Buffer::allocate(steps_.size(), cpu::MemoryTag::cache));
  }
  snapshot.tokens = tokens_;
  std::memcpy(snapshot.steps.data(), steps_.data(), steps_.size());
  snapshots_.push_back(std::move(snapshot));
  return {};
}

void Qwen4ExpPast::go_back(int64_t tokens) {
  if (tokens < tokens_) restore(tokens);
}

void Qwen4ExpPast::restore(int64_t tokens) {
  while (!snapshots_.empty() && snapshots_.back().tokens > tokens) snapshots_.pop_back();
  if (snapshots_.empty()) {
    tokens_ = 0;
    if (steps_.size() > 0) std::memset(steps_.data(), 0, steps_.size());
  } else {
    tokens_ = snapshots_.back().tokens;
    std::memcpy(steps_.data(), snapshots_.back().steps.data(), steps_.size());
  }
  rows_.set_length(tokens_);
}

void* Qwen4ExpPast::conv_state(int32_t layer) { return step(places_[static_cast<size_t>(layer)].conv); }
float* Qwen4ExpPast::recurrent_state(int32_t layer) {
  return reinterpret_cast<float*>(step(places_[static_cast<size_t>(layer)].recurrent));
}
void* Qwen4ExpPast::ngram_conv_state(int32_t layer) { return step(places_[static_cast<size_t>(layer)].ngram_conv); }
const ops::KvView& Qwen4ExpPast::keys_values(int32_t layer) const {
  return rows_.view(places_[static_cast<size_t>(layer)].sparse);
}
ops::BlockIndexState Qwen4ExpPast::block_keys(int32_t layer) {
  const Place& p = places_[static_cast<size_t>(layer)];
  return {.keys = block_key_rows(p.sparse), .capacity = max_blocks_, .open = step(p.open_keys)};
}

size_t Qwen4ExpPast::block_key_bytes(int64_t tokens) const { return static_cast<size_t>(tokens / ratio_) * block_row_; }

void Qwen4ExpPast::prepare(int64_t tokens) {
  rows_.prepare(tokens);
  block_keys_.count(block_key_bytes(tokens) * static_cast<size_t>(sparse_layers_));
}

size_t Qwen4ExpPast::bytes() const {
  return rows_.bytes() + block_keys_.counted() + steps_.size() * (1 + snapshots_.size());
}

Result<Qwen4ExpPast> Qwen4ExpPast::fork() const {
  QUERN_TRY(KvCache rows, rows_.fork());
  Qwen4ExpPast copy(std::move(rows));
  copy.tokens_ = tokens_;
  copy.places_ = places_;
  copy.stretch_ = stretch_;
  copy.block_row_ = block_row_;
  copy.ratio_ = ratio_;
  copy.max_blocks_ = max_blocks_;
  copy.sparse_layers_ = sparse_layers_;
  copy.marked_ = marked_;
  const auto copy_steps = [](const cpu::Buffer& from) -> Result<cpu::Buffer> {
    QUERN_TRY(cpu::Buffer to, cpu::Buffer::allocate(from.size(), cpu::MemoryTag::cache));
    if (from.size() > 0) std::memcpy(to.data(), from.data(), from.size());
    return to;
  };
  QUERN_TRY(copy.steps_, copy_steps(steps_));
  QUERN_TRY(copy.block_keys_, cpu::Reservation::make(block_keys_.size(), cpu::MemoryTag::cache));
  copy.block_keys_.count(block_keys_.counted());
  for (int32_t i = 0; i < sparse_layers_; ++i) {
    std::memcpy(copy.block_key_rows(i), block_key_rows(i), block_key_bytes(tokens_));
  }
  for (const Snapshot& snapshot : snapshots_) {
    QUERN_TRY(cpu::Buffer steps, copy_steps(snapshot.steps));
    copy.snapshots_.push_back({snapshot.tokens, std::move(steps)});
  }
  return copy;
}

Result<void> Qwen4ExpPast::for_pieces(int64_t tokens,
                                      const std::function<Result<void>(std::span<std::byte>)>& piece) const {
  QUERN_TRY_VOID(piece({steps_.as<std::byte>(), steps_.size()}));
  QUERN_TRY_VOID(rows_.for_pieces(tokens, piece));
  for (int32_t i = 0; i < sparse_layers_; ++i) {
    QUERN_TRY_VOID(piece({block_key_rows(i), block_key_bytes(tokens)}));
  }
  return {};
}

void Qwen4ExpPast::was_filled(int64_t tokens) {
  tokens_ = tokens;
  rows_.set_length(tokens);
}

}  // namespace quern::model
