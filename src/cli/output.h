// SPDX-License-Identifier: Apache-2.0
// Owns how the program reads and writes: standard output with its failures, messages on standard error, JSON text,
// prompts from files, progress on a terminal. Does not own what is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quern::cli {

using Json = nlohmann::ordered_json;

// Writes to standard output and flushes. Errors: io.
Result<void> write_out(std::string_view bytes);
// The same with one line break behind it when standard output is a terminal: text itself stays as it is.
Result<void> end_text();
// Writes to standard error. What cannot be written is lost: a message never changes how the program ends.
void write_message(std::string_view bytes);

// Puts a stream that refuses every transfer in place of each standard stream that is closed, so that a file opened
// later does not become one. Call it before anything is opened.
void hold_standard_streams();

// One object on one line.
Result<void> write_json(const Json& json);

// Names from files may be any bytes; JSON is UTF-8. Bytes that are not become \xNN in the text.
std::string json_text(std::string_view bytes);
// The shortest decimal that reads back as `value`, as a JSON number.
double json_number(float value);

// All bytes of a file or, for "-", of standard input. Errors: io; bad_request (more than 64 MiB); too_long for a line
// of a terminal that may have been cut there: the terminal keeps 4095 bytes of a line.
Result<std::string> read_all(const std::string& path);

// The next line of standard input without its end; nothing at the end. Errors: those of read_all().
Result<std::optional<std::string>> read_line();
// As base/new_file.h: whole or not at all, and for its owner alone. Errors: io, naming the file.
Result<void> write_private_file(const std::string& path, std::string_view bytes);

// One line on standard error that is rewritten in place; silent unless standard error is a terminal.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::string_view line);
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace quern::cli
