// SPDX-License-Identifier: Apache-2.0
// Standard output is flushed at every write: whoever reads a pipe sees text when it is there, and a full disk is
// noticed.
#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "text/utf8.h"

namespace quern::cli {

Result<void> write_out(std::string_view bytes) {
  if (bytes.empty()) return {};
  const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  if (written == bytes.size() && std::fflush(stdout) == 0) return {};
  return Error{Errc::io, fmt::format("writing failed: {}", std::strerror(errno)), "standard output"};
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
  for (size_t got = 0; (got = std::fread(block, 1, sizeof(block), file)) > 0;) bytes.append(block, got);
  const int failure = std::ferror(file) != 0 ? errno : 0;
  if (!standard) std::fclose(file);
  if (failure != 0) return Error{Errc::io, fmt::format("reading failed: {}", std::strerror(failure)), where};
  return bytes;
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

// Return to the first column, the text, and erase what an earlier, longer line left.
void Progress::show(std::string_view line) {
  if (!terminal_) return;
  fmt::print(stderr, "\r{}\x1b[K", line);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (shown_) show("");
  if (shown_) fmt::print(stderr, "\r");
  shown_ = false;
}

}  // namespace quern::cli
