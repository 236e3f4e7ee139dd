// SPDX-License-Identifier: Apache-2.0
// Standard output is flushed at every write: whoever reads a pipe sees text when it is there, and a full disk is
// noticed.
#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "text/utf8.h"

namespace quern::cli {
namespace {

// Far above every prompt that a context holds. Devices have no end.
constexpr size_t kMaxPromptBytes = size_t{64} << 20;

}  // namespace

Result<void> write_out(std::string_view bytes) {
  if (bytes.empty()) return {};
  const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  if (written == bytes.size() && std::fflush(stdout) == 0) return {};
  return Error{Errc::io, fmt::format("writing failed: {}", std::strerror(errno)), "standard output"};
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
  const std::string where = standard ? "standard input" : path;
  std::FILE* file = standard ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return Error{Errc::io, fmt::format("opening failed: {}", std::strerror(errno)), where};
  std::string bytes;
  char block[1 << 16];
  for (size_t got = 0; bytes.size() <= kMaxPromptBytes && (got = std::fread(block, 1, sizeof(block), file)) > 0;) {
    bytes.append(block, got);
  }
  const int failure = std::ferror(file) != 0 ? errno : 0;
  if (!standard) std::fclose(file);
  if (failure != 0) return Error{Errc::io, fmt::format("reading failed: {}", std::strerror(failure)), where};
  if (bytes.size() > kMaxPromptBytes) {
    return bad_request(where, fmt::format("has more than {} bytes, which is the limit of a prompt", kMaxPromptBytes));
  }
  return bytes;
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

// Return to the first column, the text, and erase what an earlier, longer line left.
void Progress::show(std::string_view line) {
  if (!terminal_) return;
  write_message(fmt::format("\r{}\x1b[K", line));
  shown_ = true;
}

void Progress::clear() {
  if (shown_) show("");
  if (shown_) write_message("\r");
  shown_ = false;
}

}  // namespace quern::cli
