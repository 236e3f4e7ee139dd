// SPDX-License-Identifier: Apache-2.0
// Most text is in NFC already and has few characters that could change it. Only the stretches around those go through
// utf8proc. Marks are sorted here, because utf8proc's own reordering is quadratic in a run of marks.
#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "text/unicode_patch.h"
#include "text/utf8.h"

namespace quern::text {
namespace {

// No code point below takes part in reordering or is the second of a composition.
constexpr char32_t kFirstMark = 0x0300;
constexpr char32_t kFirstJamo = 0x1100;
constexpr char32_t kLastJamo = 0x11FF;
// Surrogates cannot occur in UTF-8 and are inert in utf8proc: they stand in for what the reference leaves alone.
constexpr int32_t kFirstStandIn = 0xD800;

// True if the character may change, or be changed by, the one before it, or is not its own NFC form.
bool may_change(char32_t code_point) {
  if (code_point < kFirstMark) return false;
  if (code_point >= kFirstJamo && code_point <= kLastJamo) return true;
  const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
  const bool is_mark = property.category == UTF8PROC_CATEGORY_MN || property.category == UTF8PROC_CATEGORY_MC ||
                       property.category == UTF8PROC_CATEGORY_ME;
  const bool has_canonical_decomposition = property.decomp_type == 0 && property.decomp_seqindex != UINT16_MAX;
  return is_mark || has_canonical_decomposition || property.combining_class != 0;
}

void decompose(char32_t code_point, std::vector<int32_t>& out) {
  uint32_t index = 0;
  if (code_point >= kFirstPatched && is_plain_starter(code_point, index)) {
    out.push_back(kFirstStandIn + static_cast<int32_t>(index));
    return;
  }
  constexpr utf8proc_ssize_t kLongestDecomposition = 16;  // the longest canonical one has 4 code points
  utf8proc_int32_t parts[kLongestDecomposition];
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts,
                                                         kLongestDecomposition, options, &boundary);
  out.insert(out.end(), parts, parts + count);
}

int combining_class(int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

void sort_marks(std::vector<int32_t>& code_points) {
  const auto is_starter = [](int32_t c) { return combining_class(c) == 0; };
  const auto by_class = [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); };
  for (auto it = code_points.begin(); it != code_points.end();) {
    const auto begin = std::find_if_not(it, code_points.end(), is_starter);
    it = std::find_if(begin, code_points.end(), is_starter);
    if (it - begin > 1) std::stable_sort(begin, it, by_class);
  }
}

void append_normalized(std::string_view utf8, std::vector<int32_t>& code_points, std::string& out) {
  code_points.clear();
  for (size_t at = 0; at < utf8.size();) decompose(next_code_point(utf8, at), code_points);
  sort_marks(code_points);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const int32_t c = code_points[static_cast<size_t>(i)];
    const bool is_stand_in = c >= kFirstStandIn && c < kFirstStandIn + static_cast<int32_t>(kMaxPlainStarters);
    append_utf8(is_stand_in ? plain_starter(static_cast<uint32_t>(c - kFirstStandIn)) : static_cast<char32_t>(c), out);
  }
}

}  // namespace

std::string_view to_nfc(std::string_view utf8, std::string& storage) {
  storage.clear();
  std::vector<int32_t> code_points;
  size_t copied = 0;    // bytes of the input that `storage` already stands for
  size_t previous = 0;  // where the character before `at` starts
  for (size_t at = 0; at < utf8.size();) {
    const size_t start = at;
    if (!may_change(next_code_point(utf8, at))) {
      previous = start;
      continue;
    }
    // A composition may begin at the character before; behind the stretch, nothing reaches back into it.
    size_t end = at;
    while (at < utf8.size() && may_change(next_code_point(utf8, at))) end = at;
    const size_t begin = std::max(previous, copied);
    storage.append(utf8.substr(copied, begin - copied));
    append_normalized(utf8.substr(begin, end - begin), code_points, storage);
    copied = end;
    previous = end;
    at = end;
  }
  if (copied == 0) return utf8;
  storage.append(utf8.substr(copied));
  return storage;
}

}  // namespace quern::text
