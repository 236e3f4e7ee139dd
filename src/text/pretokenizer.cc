// SPDX-License-Identifier: Apache-2.0
// Regular expressions by PCRE2, compiled just in time where the machine allows it. Compiled patterns are read-only and
// shared by threads; what a match writes to is made per call.
#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>

#include "text/split_pattern.h"
#include "text/unicode_patch.h"
#include "text/utf8.h"

namespace quern::text {
namespace {

// A run of n blanks costs the Qwen pattern about 2 n steps at its start; a limit that grows with the text lets that
// pass and ends patterns with nested repeats, whose steps grow exponentially.
constexpr uint64_t kMatchStepsBase = 10'000'000;
constexpr uint64_t kMatchStepsPerByte = 64;
// Backtracking memory, for the just-in-time code and for the interpreter.
constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackLimit = size_t{256} << 20;
constexpr uint32_t kHeapLimitKibibytes = uint32_t{1} << 20;

struct FreeCode {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct FreeContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct FreeJitStack {
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// `text` with every code point replaced that PCRE2 would put into another class than the reference does; the same
// length.
std::string_view stand_in_text(std::string_view text, std::string& storage) {
  bool replaced = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t start = at;
    const char32_t code_point = next_code_point(text, at);
    if (code_point < kFirstPatched) continue;
    const char32_t stand_in = class_stand_in(code_point);
    if (stand_in == code_point) continue;
    if (!replaced) storage.assign(text);
    replaced = true;
    std::string encoded;
    append_utf8(stand_in, encoded);
    std::copy(encoded.begin(), encoded.end(), storage.begin() + static_cast<std::ptrdiff_t>(start));
  }
  return replaced ? std::string_view(storage) : text;
}

// What one thread needs to match. Not shared.
class Matcher {
 public:
  explicit Matcher(size_t text_bytes)
      : match_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    if (!match_ || !context_) throw std::bad_alloc();
    const uint64_t steps = kMatchStepsBase + kMatchStepsPerByte * text_bytes;
    pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
    pcre2_set_heap_limit(context_.get(), kHeapLimitKibibytes);
  }

  struct Span {
    size_t begin, end;
  };

  // The first match at or after `from`; begin == end == text.size() if there is none.
  Result<Span> find(const pcre2_code* code, std::string_view text, size_t from) {
    int rc = match(code, text, from);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !jit_stack_) {
      jit_stack_.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr));
      if (!jit_stack_) throw std::bad_alloc();
      pcre2_jit_stack_assign(context_.get(), nullptr, jit_stack_.get());
      rc = match(code, text, from);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return Span{text.size(), text.size()};
    if (rc < 0) {
      return unsupported(
          "tokenizer.json: pre_tokenizer",
          fmt::format("matching a text of {} bytes failed at byte {}: {}", text.size(), from, pcre2_message(rc)));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_.get());
    return Span{bounds[0], bounds[1]};
  }

 private:
  int match(const pcre2_code* code, std::string_view text, size_t from) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK,
                       match_.get(), context_.get());
  }

  std::unique_ptr<pcre2_match_data, FreeMatch> match_;
  std::unique_ptr<pcre2_match_context, FreeContext> context_;
  std::unique_ptr<pcre2_jit_stack, FreeJitStack> jit_stack_;
};

}  // namespace

struct PreTokenizer::Stage {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<void> PreTokenizer::add_stage(const std::string& pattern, const std::string& where) {
  QUERN_TRY_VOID(check_split_pattern(pattern, where));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto stage = std::make_unique<Stage>();
  stage->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (!stage->code) {
    return bad_model(where,
                     fmt::format("the pattern is no regular expression at byte {}: {}", offset, pcre2_message(error)));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(stage->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) return unsupported(where, "the pattern can match an empty text, which is not supported");
  // Without executable memory the interpreter runs instead: slower, the same matches.
  pcre2_jit_compile(stage->code.get(), PCRE2_JIT_COMPLETE);
  stages_.push_back(std::move(stage));
  return {};
}

Result<std::vector<std::string_view>> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  // Matches are found in the stand-in text and reported in the text itself: the lengths agree.
  std::string storage;
  const std::string_view subject = stand_in_text(text, storage);
  pieces.push_back(subject);
  Matcher matcher(text.size());
  for (const auto& stage : stages_) {
    std::vector<std::string_view> finer;
    finer.reserve(pieces.size() > 1 ? pieces.size() : text.size() / 4);
    for (const std::string_view piece : pieces) {
      for (size_t at = 0; at < piece.size();) {
        QUERN_TRY(const Matcher::Span span, matcher.find(stage->code.get(), piece, at));
        if (span.begin > at) finer.push_back(piece.substr(at, span.begin - at));
        if (span.end > span.begin) finer.push_back(piece.substr(span.begin, span.end - span.begin));
        // No stage can match nothing (add_stage), so every turn moves on.
        QUERN_CHECK(span.end > at, "a pre-tokenizer stage matched nothing");
        at = span.end;
      }
    }
    pieces = std::move(finer);
  }
  if (subject.data() != text.data()) {
    for (std::string_view& piece : pieces) {
      piece = text.substr(static_cast<size_t>(piece.data() - subject.data()), piece.size());
    }
  }
  return pieces;
}

}  // namespace quern::text
