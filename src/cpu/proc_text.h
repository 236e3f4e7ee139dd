// SPDX-License-Identifier: Apache-2.0
// Owns how the text files of /proc and /sys are read: whole, by line and by word. What is missing or damaged is empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quern::cpu {

std::string read_proc_file(const std::string& path);
std::string_view trimmed(std::string_view text);
// The parts between separators, each trimmed; no part behind a separator at the end.
std::vector<std::string> split_text(std::string_view text, char separator);
// A leading whole number; nothing when there is none or it does not fit ("max" means no limit to control groups).
std::optional<int64_t> leading_number(std::string_view text);
// The value of the first line "key : value".
std::optional<std::string> proc_field(const std::string& text, std::string_view key);
// "0-3,8" as numbers, in order and each once.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace quern::cpu
