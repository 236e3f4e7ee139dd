// SPDX-License-Identifier: Apache-2.0
// Standard output is flushed at every write: whoever reads a pipe sees text when it is there, and a full disk is
// noticed.
#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/quote_name.h"
#include "text/utf8.h"

namespace quern::cli {
namespace {

// Far above every prompt that a context holds. Devices have no end.
constexpr size_t kMaxPromptBytes = size_t{64} << 20;

// For its owner alone, as saved timelines are.
constexpr mode_t kPrivate = S_IRUSR | S_IWUSR;

Error io_failure(const char* what, int failure, const std::string& where) {
  return {Errc::io, fmt::format("{} failed: {}", what, std::strerror(failure)), where};
}

Error prompt_too_large(const std::string& where) {
  return bad_request(where, fmt::format("has more than {} bytes, which is the limit of a prompt", kMaxPromptBytes));
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
  for (size_t got = 0; bytes.size() <= kMaxPromptBytes && (got = std::fread(block, 1, sizeof(block), file)) > 0;) {
    bytes.append(block, got);
  }
  const int failure = std::ferror(file) != 0 ? errno : 0;
  if (!standard) std::fclose(file);
  if (failure != 0) return io_failure("reading", failure, where);
  if (bytes.size() > kMaxPromptBytes) return prompt_too_large(where);
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
  return std::optional(std::move(line));
}

Result<void> write_private_file(const std::string& path, std::string_view bytes) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kPrivate);
  if (descriptor < 0) return io_failure("opening", errno, path_place(path));
  // A file that was there keeps its mode otherwise; devices and pipes do.
  struct stat status {};
  if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) (void)fchmod(descriptor, kPrivate);
  std::FILE* file = fdopen(descriptor, "wb");
  if (file == nullptr) {
    const int failure = errno;
    close(descriptor);
    return io_failure("opening", failure, path);
  }
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const int failure = written ? 0 : errno;
  if (std::fclose(file) != 0 || !written) return io_failure("writing", written ? errno : failure, path);
  return {};
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
