// SPDX-License-Identifier: Apache-2.0
// Look-ups in the generated tables.
#include "text/unicode_patch.h"

#include <algorithm>
#include <iterator>

namespace quern::text {
namespace {

struct ClassPatch {
  char32_t first, last, stand_in;
};
struct CodePointRange {
  char32_t first, last;
};

#include "text/unicode_patch.inc"

constexpr uint32_t count_plain_starters() {
  uint32_t count = 0;
  for (const CodePointRange& range : kPlainStarters) count += range.last - range.first + 1;
  return count;
}

static_assert(count_plain_starters() <= kMaxPlainStarters);
static_assert(kClassPatches[0].first >= kFirstPatched && kPlainStarters[0].first >= kFirstPatched);

// The range that contains `code_point`, or null.
template <class Range>
const Range* find_range(const Range* begin, const Range* end, char32_t code_point) {
  const Range* after = std::upper_bound(begin, end, code_point, [](char32_t c, const Range& r) { return c < r.first; });
  return after != begin && code_point <= after[-1].last ? after - 1 : nullptr;
}

}  // namespace

char32_t class_stand_in(char32_t code_point) {
  const ClassPatch* patch = find_range(std::begin(kClassPatches), std::end(kClassPatches), code_point);
  return patch == nullptr ? code_point : patch->stand_in;
}

bool is_plain_starter(char32_t code_point, uint32_t& index) {
  const CodePointRange* found = find_range(std::begin(kPlainStarters), std::end(kPlainStarters), code_point);
  if (found == nullptr) return false;
  index = code_point - found->first;
  for (const CodePointRange* range = kPlainStarters; range != found; ++range) index += range->last - range->first + 1;
  return true;
}

char32_t plain_starter(uint32_t index) {
  for (const CodePointRange& range : kPlainStarters) {
    const uint32_t count = range.last - range.first + 1;
    if (index < count) return range.first + index;
    index -= count;
  }
  return 0xFFFD;
}

}  // namespace quern::text
