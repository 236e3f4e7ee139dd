// SPDX-License-Identifier: Apache-2.0
// Owns the byte-level BPE model: the vocabulary (text to id and back), the merges, and the encoding of one pre-token.
// Does not own added tokens, normalization or splitting.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quern::text {

// The bytes that a vocabulary entry stands for: each of its characters is one byte of the byte-level alphabet (the one
// of GPT-2). An entry with any other character stands for its own UTF-8 bytes, as in the reference.
std::string bytes_of_entry(std::string_view text);
// The character of the alphabet for a byte, as UTF-8.
std::string entry_of_byte(uint8_t byte);

// Immutable once built; const methods may run in several threads at once.
class BpeModel {
 public:
  // Ids are 0 to kMaxIds - 1; published vocabularies stay below 300,000.
  static constexpr int64_t kMaxIds = int64_t{1} << 22;

  // Building: entries, then finish_vocabulary, then merges in rank order. Errors are bad_model or unsupported with the
  // JSON path in `where`. Texts are copied.
  Result<void> add_entry(std::string_view text, int64_t id);
  Result<void> finish_vocabulary();
  // `index` is the rank and the position in the file, for errors. A pair that comes twice keeps the later rank.
  Result<void> add_merge(std::string_view left, std::string_view right, int32_t index);
  void reserve_merges(size_t count);
  void set_ignore_merges(bool ignore) { ignore_merges_ = ignore; }

  std::optional<int32_t> id_of(std::string_view text) const;
  // Empty if the id has no entry.
  std::string_view text_of(int32_t id) const;
  int32_t entries() const { return static_cast<int32_t>(entries_.size()); }
  int32_t max_id() const { return static_cast<int32_t>(entry_of_id_.size()) - 1; }

  // Memory that encode reuses from call to call; one per thread.
  struct Symbol {
    int32_t id;  // kGone once merged into the one before
    int32_t previous, next;
  };
  struct Candidate {
    int32_t rank, position, left, right, merged;
  };
  // A short pre-token and its ids: words repeat. On English text the memo makes encoding about twice as fast.
  struct Memo {
    std::array<char, 16> word{};   // the last byte is the length, 0 marks a free slot
    std::array<int32_t, 4> ids{};  // -1 from the end on
  };
  struct Scratch {
    // Room for a memo pays from about a thousand pre-tokens on; without it, every pre-token is encoded anew.
    void make_memo();

    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
    std::vector<Memo> memo;
    std::string text;
  };

  // Appends the ids of one pre-token of at most 2^31 - 1 bytes. Time is n log n in its length.
  void encode(std::string_view pre_token, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    uint32_t offset, bytes;
    int32_t id;
  };
  struct Merge {
    uint64_t pair;  // kNoPair marks a free slot
    int32_t rank, merged;
  };

  void merge(std::string_view pre_token, Scratch& scratch, std::vector<int32_t>& ids) const;
  std::string_view entry_text(const Entry& entry) const { return {texts_.data() + entry.offset, entry.bytes}; }
  const Merge* find_merge(int32_t left, int32_t right) const;
  void push_candidate(int32_t position, Scratch& scratch) const;
  void grow_merges(size_t slots);

  std::string texts_;
  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;        // open addressing over entries_; -1 is free
  std::vector<int32_t> entry_of_id_;  // -1: no entry
  std::array<int32_t, 256> id_of_byte_{};
  std::vector<Merge> merges_;  // open addressing
  size_t merge_count_ = 0;
  bool ignore_merges_ = false;
};

}  // namespace quern::text
