// SPDX-License-Identifier: Apache-2.0
// Reading the index in one pass of events: the index of an unfused checkpoint has some 20 MB.
#include "formats/safetensors/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/quote_name.h"
#include "formats/safetensors/events.h"

namespace quern::formats {
namespace {

constexpr std::string_view kWeightMap = "weight_map";
// For members that are passed over; published ones nest once.
constexpr int kMaxDepth = 64;

class IndexEvents final : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;

  bool null() override { return passed_over() || unexpected("null"); }
  bool boolean(bool) override { return passed_over() || unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return passed_over() || unexpected("a number"); }
  bool number_unsigned(number_unsigned_t) override { return passed_over() || unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override { return passed_over() || unexpected("a number"); }

  bool string(string_t& value) override {
    if (passed_over()) return true;
    if (depth_ != 2) return unexpected("a text");
    if (!is_plain_name(value)) {
      return fail(bad_model(
          fmt::format("{}: {}", where(), next_value()),
          fmt::format("the file name is {}, allowed is the name of a file in the same folder", quote_name(value))));
    }
    const auto known = files_.emplace(value, static_cast<int32_t>(files_.size()));
    if (known.second) index.files.push_back(value);
    index.tensors.back().file = known.first->second;
    return true;
  }

  bool start_object(size_t) override {
    const bool wanted = depth_ == 0 || passed_over() || depth_ == 1;
    return wanted ? open() : unexpected("an object");
  }
  bool start_array(size_t) override { return passed_over() ? open() : unexpected("a list"); }

  bool key(string_t& key) override {
    if (depth_ == 1) {
      in_map_ = key == kWeightMap;
      if (in_map_ && std::exchange(has_map, true)) {
        return fail(bad_model(fmt::format("{}: {}", where(), kWeightMap), "the key is there twice"));
      }
    } else if (in_map_) {
      index.tensors.push_back({std::move(key), 0});
    }
    return true;
  }

  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  SafetensorsIndex index;
  bool has_map = false;

 private:
  static bool is_plain_name(std::string_view name) {
    constexpr std::string_view kSeparators("/\\\0", 3);
    return !name.empty() && name != "." && name != ".." && name.find_first_of(kSeparators) == name.npos;
  }

  // The current value belongs to a member that says nothing about the places of tensors.
  bool passed_over() const { return depth_ > 0 && !in_map_; }

  bool open() {
    if (depth_ == kMaxDepth) {
      return fail(bad_model(where(), fmt::format("nests deeper than {} levels, which is the limit", kMaxDepth)));
    }
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::string next_value() const override {
    if (depth_ == 0) return "index";
    if (depth_ == 1) return std::string(kWeightMap);
    return fmt::format("{}: tensor {}", kWeightMap, quote_name(index.tensors.back().tensor));
  }
  std::string expected() const override { return depth_ < 2 ? "an object" : "the name of a file"; }

  int depth_ = 0;
  bool in_map_ = false;
  std::unordered_map<std::string, int32_t> files_;
};

}  // namespace

Result<SafetensorsIndex> parse_safetensors_index(std::string_view json, std::string_view where) {
  if (json.size() > kMaxSafetensorsIndexBytes) {
    return bad_model(std::string(where),
                     fmt::format("the file has {} bytes, allowed are {}", json.size(), kMaxSafetensorsIndexBytes));
  }
  IndexEvents events(where);
  QUERN_TRY_VOID(events.parse(json));
  const std::string place = fmt::format("{}: {}", where, kWeightMap);
  if (!events.has_map) return bad_model(place, "the value is missing");
  SafetensorsIndex& index = events.index;
  std::sort(index.tensors.begin(), index.tensors.end(),
            [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  const auto twice = std::adjacent_find(index.tensors.begin(), index.tensors.end(),
                                        [](const auto& a, const auto& b) { return a.tensor == b.tensor; });
  if (twice != index.tensors.end()) {
    return bad_model(place, fmt::format("the key {} is there twice", quote_name(twice->tensor)));
  }
  return std::move(index);
}

}  // namespace quern::formats
