// SPDX-License-Identifier: Apache-2.0
// The order of merges is that of the reference: lowest rank first, then leftmost. A heap over a linked list keeps long
// pre-tokens at n log n. Bytes go in directly: the byte-level alphabet only names them.
#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/quote_name.h"
#include "text/utf8.h"

namespace quern::text {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kGone = -1;
constexpr uint64_t kNoPair = ~uint64_t{0};

// The alphabet: printable Latin-1 names itself; the 68 other bytes are U+0100 and up, in order.
constexpr bool names_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}
constexpr char32_t kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};  // kNone: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte) byte = kNone;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = names_itself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.character[static_cast<size_t>(byte)] = character;
    alphabet.byte[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Fibonacci hashing (2^64 over the golden ratio): neighbouring ids spread over all slots.
size_t slot_of(uint64_t pair, size_t slots) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const uint64_t mixed = (pair ^ pair >> 29) * kGolden;
  return static_cast<size_t>(mixed >> 20) & (slots - 1);
}

size_t slots_for(size_t count) { return std::bit_ceil(std::max<size_t>(16, count + count / 2)); }

}  // namespace

std::string bytes_of_entry(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t character = next_code_point(text, at);
    if (character >= kAlphabetEnd || kAlphabet.byte[character] == kNone) return std::string(text);
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(kAlphabet.byte[character])));
  }
  return bytes;
}

std::string entry_of_byte(uint8_t byte) {
  std::string text;
  append_utf8(kAlphabet.character[byte], text);
  return text;
}

Result<void> BpeModel::add_entry(std::string_view text, int64_t id) {
  if (id < 0 || id >= kMaxIds) {
    return bad_model("model.vocab",
                     fmt::format("the id of {} is {}; ids are 0 to {}", quote_name(text), id, kMaxIds - 1));
  }
  if (texts_.size() + text.size() > UINT32_MAX)
    return bad_model("model.vocab", "the vocabulary has more than 4 GiB of text");
  entries_.push_back(
      {static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(text.size()), static_cast<int32_t>(id)});
  texts_.append(text);
  return {};
}

Result<void> BpeModel::finish_vocabulary() {
  int32_t max_id = -1;
  for (const Entry& entry : entries_) max_id = std::max(max_id, entry.id);
  entry_of_id_.assign(static_cast<size_t>(max_id + 1), kNone);
  slots_.assign(slots_for(entries_.size()), kNone);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const std::string_view text = entry_text(entries_[i]);
    int32_t& by_id = entry_of_id_[static_cast<size_t>(entries_[i].id)];
    if (by_id != kNone) {
      return bad_model("model.vocab", fmt::format("{} and {} have the same id {}",
                                                  quote_name(entry_text(entries_[static_cast<size_t>(by_id)])),
                                                  quote_name(text), entries_[i].id));
    }
    by_id = static_cast<int32_t>(i);
    size_t slot = std::hash<std::string_view>{}(text) & (slots_.size() - 1);
    for (; slots_[slot] != kNone; slot = (slot + 1) & (slots_.size() - 1)) {
      if (entry_text(entries_[static_cast<size_t>(slots_[slot])]) == text) {
        return bad_model("model.vocab", fmt::format("{} is there twice", quote_name(text)));
      }
    }
    slots_[slot] = static_cast<int32_t>(i);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = entry_of_byte(static_cast<uint8_t>(byte));
    const std::optional<int32_t> id = id_of(text);
    // The reference drops such a byte from the input without a word.
    if (!id) return unsupported("model.vocab", fmt::format("there is no entry for the byte 0x{:02X}", byte));
    id_of_byte_[static_cast<size_t>(byte)] = *id;
  }
  return {};
}

std::optional<int32_t> BpeModel::id_of(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  size_t slot = std::hash<std::string_view>{}(text) & (slots_.size() - 1);
  for (; slots_[slot] != kNone; slot = (slot + 1) & (slots_.size() - 1)) {
    const Entry& entry = entries_[static_cast<size_t>(slots_[slot])];
    if (entry_text(entry) == text) return entry.id;
  }
  return std::nullopt;
}

std::string_view BpeModel::text_of(int32_t id) const {
  if (id < 0 || id > max_id()) return {};
  const int32_t entry = entry_of_id_[static_cast<size_t>(id)];
  return entry == kNone ? std::string_view() : entry_text(entries_[static_cast<size_t>(entry)]);
}

void BpeModel::reserve_merges(size_t count) { grow_merges(slots_for(count)); }

void BpeModel::grow_merges(size_t slots) {
  if (slots <= merges_.size()) return;
  std::vector<Merge> old = std::move(merges_);
  merges_.assign(slots, {kNoPair, 0, 0});
  for (const Merge& merge : old) {
    if (merge.pair == kNoPair) continue;
    size_t slot = slot_of(merge.pair, slots);
    while (merges_[slot].pair != kNoPair) slot = (slot + 1) & (slots - 1);
    merges_[slot] = merge;
  }
}

Result<void> BpeModel::add_merge(std::string_view left, std::string_view right, int32_t index) {
  const std::string joined = std::string(left).append(right);
  std::array<int32_t, 3> ids{};
  const std::array<std::string_view, 3> texts = {left, right, joined};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::optional<int32_t> id = id_of(texts[i]);
    if (!id) {
      return bad_model(fmt::format("model.merges[{}]", index),
                       fmt::format("{} is not in the vocabulary", quote_name(texts[i])));
    }
    ids[i] = *id;
  }
  if (slots_for(merge_count_ + 1) > merges_.size()) grow_merges(slots_for(2 * (merge_count_ + 1)));
  const uint64_t pair = pair_of(ids[0], ids[1]);
  size_t slot = slot_of(pair, merges_.size());
  while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & (merges_.size() - 1);
  if (merges_[slot].pair == kNoPair) ++merge_count_;
  merges_[slot] = {pair, index, ids[2]};
  return {};
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  if (merges_.empty()) return nullptr;
  const uint64_t pair = pair_of(left, right);
  for (size_t slot = slot_of(pair, merges_.size());; slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

namespace {

// The heap keeps its largest element in front: the lowest rank, then the leftmost position.
bool is_later(const BpeModel::Candidate& a, const BpeModel::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

void BpeModel::push_candidate(int32_t position, Scratch& scratch) const {
  const Symbol& symbol = scratch.symbols[static_cast<size_t>(position)];
  if (symbol.next == kNone) return;
  const int32_t right = scratch.symbols[static_cast<size_t>(symbol.next)].id;
  const Merge* merge = find_merge(symbol.id, right);
  if (merge == nullptr) return;
  scratch.queue.push_back({merge->rank, position, symbol.id, right, merge->merged});
}

void BpeModel::Scratch::make_memo() {
  constexpr size_t kMemoSlots = 4096;  // 128 KiB, within a second-level cache
  memo.resize(kMemoSlots);
}

void BpeModel::encode(std::string_view pre_token, Scratch& scratch, std::vector<int32_t>& ids) const {
  Memo fresh;
  if (scratch.memo.empty() || pre_token.size() >= fresh.word.size()) return merge(pre_token, scratch, ids);
  std::copy(pre_token.begin(), pre_token.end(), fresh.word.begin());
  fresh.word.back() = static_cast<char>(pre_token.size());
  const auto halves = std::bit_cast<std::array<uint64_t, 2>>(fresh.word);
  Memo& memo = scratch.memo[slot_of(halves[0] ^ std::rotl(halves[1], 23), scratch.memo.size())];
  if (memo.word == fresh.word) {
    for (const int32_t id : memo.ids) {
      if (id == kNone) break;
      ids.push_back(id);
    }
    return;
  }
  const size_t before = ids.size();
  merge(pre_token, scratch, ids);
  if (ids.size() - before > fresh.ids.size()) return;
  fresh.ids.fill(kNone);
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), fresh.ids.begin());
  memo = fresh;
}

void BpeModel::merge(std::string_view pre_token, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    scratch.text.clear();
    for (const char byte : pre_token) append_utf8(kAlphabet.character[static_cast<unsigned char>(byte)], scratch.text);
    if (const std::optional<int32_t> id = id_of(scratch.text)) {
      ids.push_back(*id);
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch.symbols;
  const auto count = static_cast<int32_t>(pre_token.size());
  symbols.clear();
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(pre_token[static_cast<size_t>(i)]);
    symbols.push_back({id_of_byte_[byte], i - 1, i + 1 < count ? i + 1 : kNone});
  }
  std::vector<Candidate>& queue = scratch.queue;
  queue.clear();
  for (int32_t i = 0; i < count; ++i) push_candidate(i, scratch);
  std::make_heap(queue.begin(), queue.end(), is_later);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), is_later);
    const Candidate best = queue.back();
    queue.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.position)];
    // Either half may have been merged with something else since the candidate was queued.
    if (left.id != best.left || left.next == kNone) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != best.right) continue;
    left.id = best.merged;
    left.next = right.next;
    right.id = kGone;
    if (left.next != kNone) symbols[static_cast<size_t>(left.next)].previous = best.position;
    for (const int32_t position : {left.previous, best.position}) {
      if (position == kNone) continue;
      const size_t before = queue.size();
      push_candidate(position, scratch);
      if (queue.size() > before) std::push_heap(queue.begin(), queue.end(), is_later);
    }
  }
  for (int32_t i = count > 0 ? 0 : kNone; i != kNone; i = symbols[static_cast<size_t>(i)].next) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace quern::text
