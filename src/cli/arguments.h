// SPDX-License-Identifier: Apache-2.0
// Owns how words of the command line become numbers: decimal only, the whole word, checked before it is narrowed.
// A word that does not fit is a usage error which shows the word as it was written and the values allowed.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"

namespace quern::cli {

[[noreturn]] void refuse_word(const std::string& option, std::string_view word, std::string_view allowed);

// A whole number from `least` to `most`. Throws CLI::ValidationError.
template <class T>
T read_whole(const std::string& option, std::string_view word, T least, T most) {
  T value = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (failure == std::errc() && end == word.data() + word.size() && value >= least && value <= most) return value;
  refuse_word(option, word, "whole numbers from " + std::to_string(least) + " to " + std::to_string(most));
}

// `to` is a T or a std::optional<T>. Here and below, `name` is what CLI11 takes: "-n,--max-tokens".
template <class T, class To>
CLI::Option* add_whole(CLI::App& app, const std::string& name, To& to, const std::string& text, T least,
                       T most = std::numeric_limits<T>::max()) {
  const auto read = [name, &to, least, most](const std::string& word) { to = read_whole<T>(name, word, least, most); };
  return app.add_option_function<std::string>(name, read, text)->type_name("N");
}

// N,N,...; replaces what `to` holds.
CLI::Option* add_whole_list(CLI::App& app, const std::string& name, std::vector<int32_t>& to, const std::string& text,
                            int32_t least, int32_t most);

struct NumberRange {
  float least = 0;
  float most = 0;
  bool above_least = false;  // neither `least` nor what rounds to it
};

// A number of 32 bits. Throws CLI::ValidationError.
float read_number(const std::string& option, std::string_view word, const NumberRange& range);

CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<float>& to, const std::string& text,
                        const NumberRange& range);

// How the model is opened: --compute TYPE, --kv TYPE, and --no-fuse NAME any number of times. What the model has of
// each is known once it is open.
void add_opening(CLI::App& app, engine::EngineOptions& to);

// --ctx N: positions of a timeline, EngineOptions::context_tokens.
CLI::Option* add_context(CLI::App& app, int32_t& to);

// Token ids in decimal, one or several in a word, separated by commas. They stay words: which ids there are is known
// once the model is open, and what is refused then is shown as it was written. Throws CLI::ValidationError.
std::vector<std::string> split_ids(const std::string& option, std::string_view word);
// The numbers of such words. Errors: bad_request for an id outside [0, limit), named by `what` and its position.
Result<std::vector<int32_t>> read_ids(const std::vector<std::string>& words, std::string_view what, int64_t limit);

// The arguments behind the program's name. A value that is empty, as in --name=, is a word of its own: CLI11 would take
// the next argument for it.
std::vector<std::string> words_of(const CLI::App& app, int argc, const char* const* argv);

}  // namespace quern::cli
