// SPDX-License-Identifier: Apache-2.0
// A tree of the whole 11 MB file would cost 450,000 small allocations; the two big parts are read from the event
// stream.
#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <optional>

#include "base/quote_name.h"
#include "formats/json_fault.h"

namespace quern::text {
namespace {

using nlohmann::json;

// Published files nest 8 deep.
constexpr size_t kMaxDepth = 64;

// Text stored one after another.
class Texts {
 public:
  void add(std::string_view text) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
};

// The receiver of nlohmann's event stream; the function names are its protocol. False ends the parse.
class Receiver {
 public:
  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(json::number_integer_t value) { return part_ == Part::vocab ? entry(value) : scalar(value); }
  bool number_unsigned(json::number_unsigned_t value) {
    if (part_ != Part::vocab) return scalar(value);
    return entry(value > static_cast<uint64_t>(BpeModel::kMaxIds) ? BpeModel::kMaxIds : static_cast<int64_t>(value));
  }
  bool number_float(json::number_float_t value, const std::string&) { return scalar(value); }
  bool binary(json::binary_t&) { return false; }

  bool string(std::string& value) {
    if (part_ == Part::merges) return joined_merge(value);
    if (part_ == Part::merge) {
      if (++halves_ <= 2) merges_.add(value);
      return true;
    }
    return scalar(std::move(value));
  }

  bool start_object(size_t) {
    if (part_ != Part::tree) return wrong_type();
    if (is_model_key("vocab")) {
      part_ = Part::vocab;
      has_vocab_ = true;
      return true;
    }
    return open(json::object());
  }

  bool key(std::string& key) {
    if (part_ == Part::tree && open_.back()->contains(key)) return fail(path_of(key), "the key is there twice");
    if (is_model() && ((key == "vocab" && has_vocab_) || (key == "merges" && has_merges_))) {
      return fail(path_of(key), "the key is there twice");
    }
    key_ = std::move(key);
    return true;
  }

  bool end_object() {
    if (part_ == Part::vocab) {
      part_ = Part::tree;
      return true;
    }
    return close();
  }

  bool start_array(size_t) {
    if (part_ == Part::merges) {
      part_ = Part::merge;
      halves_ = 0;
      return true;
    }
    if (part_ != Part::tree) return wrong_type();
    if (is_model_key("merges")) {
      part_ = Part::merges;
      has_merges_ = true;
      return true;
    }
    return open(json::array());
  }

  bool end_array() {
    if (part_ == Part::merge) {
      part_ = Part::merges;
      return halves_ == 2 || fail(merge_path(), fmt::format("a merge has {} parts; 2 are needed", halves_));
    }
    if (part_ == Part::merges) {
      part_ = Part::tree;
      return true;
    }
    return close();
  }

  template <class Exception>
  bool parse_error(size_t position, const std::string& token, const Exception& error) {
    const formats::JsonFault fault = formats::json_fault(position, token, error);
    return fail(fmt::format("byte {}", fault.byte), std::string(fault.what));
  }

  Result<TokenizerJson> finish(bool complete) {
    if (error_) return std::move(*error_);
    if (!complete || !tree_.is_object()) return bad_model("byte 0", "the file is not a JSON object");
    if (!has_vocab_) return bad_model("model.vocab", "the vocabulary is missing");
    if (!has_merges_) return bad_model("model.merges", "the list of merges is missing");
    QUERN_TRY_VOID(model_.finish_vocabulary());
    const size_t count = merges_.size() / 2;
    model_.reserve_merges(count);
    for (size_t i = 0; i < count; ++i) {
      QUERN_TRY_VOID(model_.add_merge(merges_[2 * i], merges_[2 * i + 1], static_cast<int32_t>(i)));
    }
    return TokenizerJson{std::move(tree_), std::move(model_)};
  }

 private:
  enum class Part : uint8_t { tree, vocab, merges, merge };

  bool is_model() const { return part_ == Part::tree && open_.size() == 2 && open_keys_.back() == "model"; }
  bool is_model_key(std::string_view key) const { return is_model() && key_ == key; }
  std::string merge_path() const { return fmt::format("model.merges[{}]", merge_index_); }

  std::string path_of(std::string_view key) const {
    std::string path;
    for (const std::string& open_key : open_keys_) {
      if (!open_key.empty()) path += path_name(open_key) + ".";
    }
    return path + path_name(key);
  }

  bool fail(std::string where, std::string what) {
    if (!error_) error_ = bad_model(std::move(where), std::move(what));
    return false;
  }

  bool keep(Result<void> result) {
    if (!result.ok()) error_ = std::move(result).error();
    return !error_;
  }

  bool wrong_type() {
    if (part_ == Part::vocab)
      return fail("model.vocab", fmt::format("the id of {} is not an integer", quote_name(key_)));
    return fail(merge_path(), "a merge is neither a string nor a pair of strings");
  }

  bool entry(int64_t id) { return keep(model_.add_entry(key_, id)); }

  // "left right"; the reference skips the header line of the older text form.
  bool joined_merge(std::string_view text) {
    if (text.starts_with("#version")) return true;
    const size_t blank = text.find(' ');
    if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
      return fail(merge_path(), fmt::format("{} is not two texts with one blank between", quote_name(text)));
    }
    merges_.add(text.substr(0, blank));
    merges_.add(text.substr(blank + 1));
    ++merge_index_;
    return true;
  }

  bool scalar(json value) {
    if (part_ != Part::tree) return wrong_type();
    return put(std::move(value)) != nullptr;
  }

  json* put(json value) {
    if (open_.empty()) {
      tree_ = std::move(value);
      return &tree_;
    }
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  bool open(json value) {
    if (open_.size() == kMaxDepth) return fail(path_of(key_), fmt::format("nested more than {} deep", kMaxDepth));
    const bool in_object = !open_.empty() && open_.back()->is_object();
    json* placed = put(std::move(value));
    open_keys_.push_back(in_object ? key_ : std::string());
    open_.push_back(placed);
    return true;
  }

  bool close() {
    open_.pop_back();
    open_keys_.pop_back();
    return true;
  }

  json tree_;
  std::vector<json*> open_;  // the path of objects and arrays that are not closed yet
  std::vector<std::string> open_keys_;
  std::string key_;
  Part part_ = Part::tree;
  BpeModel model_;
  Texts merges_;  // left and right in turn
  size_t merge_index_ = 0;
  int halves_ = 0;
  bool has_vocab_ = false;
  bool has_merges_ = false;
  std::optional<Error> error_;
};

}  // namespace

Result<TokenizerJson> parse_tokenizer_json(std::string_view json) {
  // The parser takes a zero byte for the end of the text.
  if (const size_t zero = json.find('\0'); zero != json.npos) {
    return bad_model(fmt::format("byte {}", zero), "the file is not JSON from here on");
  }
  Receiver receiver;
  const bool complete = nlohmann::json::sax_parse(json.begin(), json.end(), &receiver);
  return receiver.finish(complete);
}

}  // namespace quern::text
