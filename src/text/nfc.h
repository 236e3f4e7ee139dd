// SPDX-License-Identifier: Apache-2.0
// Owns canonical composition (NFC) of UTF-8 text, exactly as Hugging Face `tokenizers` normalizes. Time is n log n in
// the longest run of combining marks, else linear.
#pragma once

#include <string>
#include <string_view>

namespace quern::text {

// The NFC form of well-formed UTF-8. Returns `utf8` itself if that is already normalized, else a view of `storage`.
std::string_view to_nfc(std::string_view utf8, std::string& storage);

}  // namespace quern::text
