// SPDX-License-Identifier: Apache-2.0
// Standard output is flushed at every write: whoever reads a pipe sees text when it is there, and a full disk is
// noticed.
#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/new_file.h"
#include "base/quote_name.h"
#include "text/utf8.h"

namespace quern::cli {
namespace {

// Far above every prompt that a context holds. Devices have no end.
constexpr size_t kMaxPromptBytes = size_t{64} << 20;

// What Linux keeps of a line that is typed or pasted while a terminal edits lines (N_TTY_BUF_SIZE less the line break).
// It drops the rest and says so to nobody.
constexpr size_t kMostOfTerminalLine = 4095;

Error io_failure(const char* what, int failure, const std::string& where) {
  return {Errc::io, fmt::format("{} failed: {}", what, std::strerror(failure)), where};
}

Error prompt_too_large(const std::string& where) {
  return bad_request(where, fmt::format("has more than {} bytes, which is the limit of a prompt", kMaxPromptBytes));
}

// Standard input is a terminal that hands over whole lines, as it does unless somebody has told it otherwise.
bool terminal_edits_lines() {
  termios settings{};
  return tcgetattr(STDIN_FILENO, &settings) == 0 && (settings.c_lflag & ICANON) != 0;
}

Error perhaps_cut(size_t bytes) {
  return {Errc::too_long,
          fmt::format("has a line of {} bytes, and of a line a terminal keeps {} at most, so its end may be missing; "
                      "shorter lines or a pipe hold more",
                      bytes, kMostOfTerminalLine),
          "standard input"};
}

// Of bytes that are whole lines. What is as long as a terminal's lines can be is refused, cut or not.
Result<void> check_terminal_lines(std::string_view bytes) {
  if (bytes.size() < kMostOfTerminalLine || !terminal_edits_lines()) return {};
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    if (end - begin >= kMostOfTerminalLine) return perhaps_cut(end - begin);
    begin = end + 1;
  }
  return {};
}

}  // namespace

Result<void> write_out(std::string_view bytes) {
  if (bytes.empty()) return {};
  const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  if (written == bytes.size() && std::fflush(stdout) == 0) return {};
  return io_failure("writing", errno, "standard output");
}

void write_message(std::string_view bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stderr);
  std::fflush(stderr);
}

void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one. Opened for the wrong direction, it gives errors instead of silence.
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

Result<void> end_text() { return isatty(STDOUT_FILENO) != 0 ? write_out("\n") : Result<void>(); }

Result<void> write_json(const Json& json) {
  return write_out(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string json_text(std::string_view bytes) {
  std::string text;
  while (const auto bad = text::find_invalid_utf8(bytes)) {
    text += bytes.substr(0, *bad);
    text += fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes[*bad]));
    bytes.remove_prefix(*bad + 1);
  }
  return text += bytes;
}

double json_number(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Result<std::string> read_all(const std::string& path) {
  const bool standard = path == "-";
  const std::string where = standard ? "standard input" : path_place(path);
  std::FILE* file = standard ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return io_failure("opening", errno, where);
  std::string bytes;
  char block[1 << 16];
  // A terminal has an end for every Ctrl-D; the first one counts.
  while (bytes.size() <= kMaxPromptBytes && std::feof(file) == 0) {
    const size_t got = std::fread(block, 1, sizeof(block), file);
    if (got == 0) break;
    bytes.append(block, got);
  }
  const int failure = std::ferror(file) != 0 ? errno : 0;
  if (!standard) std::fclose(file);
  if (failure != 0) return io_failure("reading", failure, where);
  if (bytes.size() > kMaxPromptBytes) return prompt_too_large(where);
  if (standard) QUERN_TRY_VOID(check_terminal_lines(bytes));
  return bytes;
}

Result<std::optional<std::string>> read_line() {
  const std::string where = "standard input";
  std::string line;
  int c = 0;
  while ((c = std::getc(stdin)) != EOF && c != '\n') {
    if (line.size() == kMaxPromptBytes) return prompt_too_large(where);
    line += static_cast<char>(c);
  }
  if (c == EOF && std::ferror(stdin) != 0) return io_failure("reading", errno, where);
  if (c == EOF && line.empty()) return std::optional<std::string>();
  QUERN_TRY_VOID(check_terminal_lines(line));
  return std::optional(std::move(line));
}

Result<void> write_private_file(const std::string& path, std::string_view bytes) {
  QUERN_TRY(NewFile file, NewFile::create(path));
  QUERN_TRY_VOID(file.write(std::as_bytes(std::span(bytes))));
  return file.finish();
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

// Return to the first column, the text, and erase what an earlier, longer line left.
void Progress::show(std::string_view line) {
  if (!terminal_) return;
  write_message(fmt::format("\r{}\x1b[K", one_line(line)));
  shown_ = true;
}

void Progress::clear() {
  if (shown_) show("");
  if (shown_) write_message("\r");
  shown_ = false;
}

}  // namespace quern::cli
