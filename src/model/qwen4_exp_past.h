// SPDX-License-Identifier: Apache-2.0
// Owns what a qwen4_exp timeline remembers besides its token ids: all recurrent and convolution states, keys and
// values, and the indexer's keys, in one object that is copied, cut back and saved as a whole. Does not own how any of
// it is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/memory.h"
#include "model/kv_cache.h"
#include "model/qwen4_exp_config.h"
#include "ops/block_index/block_index.h"

namespace quern::model {

// Two parts. The steps: states of one size whatever the length, which only their own past can bring back (recurrent and
// convolution states, open keys of the indexer). The rows: what grows by a row a token or a block and is never changed
// (keys, values, block keys). Element type: the model's, float32 for the recurrent states. Move-only; one thread at
// once.
class Qwen4ExpPast {
 public:
  // Copies of the steps that are kept at most.
  static constexpr size_t kSnapshots = 4;

  // Empty. Takes addresses for max_position_embeddings tokens and memory for the steps. Errors: no_memory.
  static Result<Qwen4ExpPast> make(const Qwen4ExpConfig& config, DType type);

  int64_t tokens() const { return tokens_; }
  // After every layer has taken in the tokens up to there: keeps a copy of the steps now and then.
  Result<void> advance_to(int64_t tokens);
  // A copy of the steps at this length, when it is reached, is kept until another length is marked.
  void mark(int64_t tokens) { marked_ = tokens; }
  // How many tokens may be taken in at once, so that a marked length is not passed over.
  int64_t most_tokens() const { return marked_ > tokens_ ? marked_ - tokens_ : std::numeric_limits<int64_t>::max(); }

  // Goes back to the longest length of at most `tokens` whose steps are known; the caller computes from there on. 0 is
  // always known.
  void go_back(int64_t tokens);
  // The same after a computation of further tokens broke off, which left the steps of the present length changed.
  void recover() { restore(tokens_); }

  // Zeros where nothing was computed yet. `layer` counts all layers; those of the right kind only.
  void* conv_state(int32_t layer);                      // linear: [taps - 1][2 * Nk * Dk + Nv * Dv]
  float* recurrent_state(int32_t layer);                // linear: [Nv][Dk][Dv]
  void* ngram_conv_state(int32_t layer);                // n-grams: [(taps - 1) * ngram_size][C * H]
  const ops::KvView& keys_values(int32_t layer) const;  // sparse
  ops::BlockIndexState block_keys(int32_t layer);       // sparse

  // Counts memory for a length of `tokens` from now on. Precondition: tokens <= max_position_embeddings.
  void prepare(int64_t tokens);
  size_t bytes() const;

  // One of its own with the same content. Errors: no_memory.
  Result<Qwen4ExpPast> fork() const;

  // The pieces of memory that hold everything about a length of `tokens`, in a fixed order. Precondition: tokens() is
  // that length, or memory is prepared for it and the pieces are about to be written.
  Result<void> for_pieces(int64_t tokens, const std::function<Result<void>(std::span<std::byte>)>& piece) const;
  // The pieces of `tokens` tokens were written into this one, which was empty.
  void was_filled(int64_t tokens);

 private:
  struct Place {  // of a layer; positions in bytes inside of the steps
    size_t conv = 0, recurrent = 0, ngram_conv = 0, open_keys = 0;
    int32_t sparse = 0;  // number among the sparse layers
  };
  struct Snapshot {
    int64_t tokens = 0;
    cpu::Buffer steps;
  };

  explicit Qwen4ExpPast(KvCache rows) : rows_(std::move(rows)) {}
  std::byte* step(size_t at) const { return steps_.as<std::byte>() + at; }
  std::byte* block_key_rows(int32_t sparse) const {
    return block_keys_.data() + static_cast<size_t>(sparse) * stretch_;
  }
  size_t block_key_bytes(int64_t tokens) const;
  Result<void> keep_snapshot();
  void restore(int64_t tokens);

  int64_t tokens_ = 0;
  std::vector<Place> places_;
  cpu::Buffer steps_;
  KvCache rows_;
  cpu::Reservation block_keys_;
  size_t stretch_ = 0;    // bytes of the block keys of one layer at full length
  size_t block_row_ = 0;  // bytes of one block key
  int64_t ratio_ = 1;     // tokens of a block
  int64_t max_blocks_ = 0;
  int32_t sparse_layers_ = 0;
  std::deque<Snapshot> snapshots_;  // ascending
  int64_t marked_ = 0;
};

// What one token adds to the rows.
size_t qwen4_exp_token_bytes(const Qwen4ExpConfig& config, DType type);

}  // namespace quern::model
