// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "text/utf8.h"

namespace quern::text::jinja {
namespace {

// repr() of a finite float: the shortest digits that read back as the same number, with an exponent from 1e16 on and
// below 1e-4.
std::string float_text(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), std::abs(value), std::chars_format::scientific).ptr;
  const std::string_view written(buffer, static_cast<size_t>(end - buffer));
  const size_t e = written.find('e');
  std::string digits(written.substr(0, 1));
  if (e > 1) digits += written.substr(2, e - 2);
  int exponent = 0;
  const size_t sign = written[e + 1] == '+' ? 1 : 0;
  std::from_chars(buffer + e + 1 + sign, end, exponent);

  std::string out(std::signbit(value) ? "-" : "");
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out.append(1, '.').append(digits, 1);
    return out.append(fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent)));
  }
  if (exponent < 0) return out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  const auto whole = static_cast<size_t>(exponent + 1);
  if (digits.size() <= whole) return out.append(digits).append(whole - digits.size(), '0').append(".0");
  return out.append(digits, 0, whole).append(1, '.').append(digits, whole);
}

// json.dumps and repr() agree on numbers but for what is not finite.
void append_number(double value, const char* infinite, const char* not_a_number, std::string& out) {
  if (std::isnan(value)) {
    out += not_a_number;
  } else if (std::isinf(value)) {
    if (value < 0) out += '-';
    out += infinite;
  } else {
    out += float_text(value);
  }
}

// str.isprintable() of one character.
bool is_printable(char32_t c) {
  if (c == U' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

// repr() of a text.
void append_quoted(std::string_view text, std::string& out) {
  const bool apostrophe = text.find('\'') != std::string_view::npos;
  const char quote = apostrophe && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<unsigned char>(quote) || c == U'\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == U'\n') {
      out += "\\n";
    } else if (c == U'\r') {
      out += "\\r";
    } else if (c == U'\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(text.substr(start, at - start));
    } else {
      const auto number = static_cast<uint32_t>(c);
      out += c < 0x100     ? fmt::format("\\x{:02x}", number)
             : c < 0x10000 ? fmt::format("\\u{:04x}", number)
                           : fmt::format("\\U{:08x}", number);
    }
  }
  out += quote;
}

Error no_text(const Value& value) { return refuse(fmt::format("the text of {} is not supported", kind_name(value))); }

// repr() of what lists and mappings hold.
Result<void> append_repr(const Value& value, std::string& out, Budget& budget) {
  QUERN_TRY_VOID(budget.spend(1));
  if (const Text* text = value.as<Text>()) {
    if (text->safe) return refuse("the text of a list that holds a text marked as safe is not supported");
    QUERN_TRY_VOID(budget.spend_text(text->utf8->size()));
    append_quoted(*text->utf8, out);
    return {};
  }
  if (value.is_undefined()) return no_text(value);
  if (const Sequence* sequence = value.sequence()) {
    if (sequence->form == Form::view) return no_text(value);
    const bool tuple = sequence->form == Form::tuple;
    out += tuple ? '(' : '[';
    for (size_t i = 0; i < sequence->items.size(); ++i) {
      if (i > 0) out += ", ";
      QUERN_TRY_VOID(append_repr(sequence->items[i], out, budget));
    }
    if (tuple && sequence->items.size() == 1) out += ',';
    out += tuple ? ')' : ']';
    return {};
  }
  if (const Mapping* mapping = value.mapping()) {
    out += '{';
    bool first = true;
    for (const auto& [key, element] : mapping->entries()) {
      if (!std::exchange(first, false)) out += ", ";
      QUERN_TRY_VOID(budget.spend_text(key.size()));
      append_quoted(key, out);
      out += ": ";
      QUERN_TRY_VOID(append_repr(element, out, budget));
    }
    out += '}';
    return {};
  }
  return append_text(value, out, budget);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  Result<void> write(const Value& value, int depth) {
    QUERN_TRY_VOID(budget_.spend(1));
    if (value.is_none()) {
      out_ += "null";
    } else if (const auto* truth = value.as<bool>()) {
      out_ += *truth ? "true" : "false";
    } else if (const auto* integer = value.as<int64_t>()) {
      fmt::format_to(std::back_inserter(out_), "{}", *integer);
    } else if (const auto* number = value.as<double>()) {
      append_number(*number, "Infinity", "NaN", out_);
    } else if (const std::string* text = value.utf8()) {
      QUERN_TRY_VOID(budget_.spend_text(text->size()));
      write_text(*text);
    } else if (const Sequence* sequence = value.sequence(); sequence != nullptr && sequence->form != Form::view) {
      return write_sequence(*sequence, depth);
    } else if (const Mapping* mapping = value.mapping()) {
      return write_mapping(*mapping, depth);
    } else {
      return refuse(fmt::format("{} cannot be written as JSON", kind_name(value)));
    }
    return {};
  }

  std::string take() { return std::move(out_); }

 private:
  Result<void> write_sequence(const Sequence& sequence, int depth) {
    out_ += '[';
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      QUERN_TRY_VOID(separate(i, depth + 1));
      QUERN_TRY_VOID(write(sequence.items[i], depth + 1));
    }
    return close(']', sequence.items.empty(), depth);
  }

  Result<void> write_mapping(const Mapping& mapping, int depth) {
    std::vector<const Mapping::Entry*> entries;
    for (const Mapping::Entry& entry : mapping.entries()) entries.push_back(&entry);
    if (style_.sorted) {
      std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      QUERN_TRY_VOID(separate(i, depth + 1));
      QUERN_TRY_VOID(budget_.spend_text(entries[i]->first.size()));
      write_text(entries[i]->first);
      out_ += style_.key_separator;
      QUERN_TRY_VOID(write(entries[i]->second, depth + 1));
    }
    return close('}', entries.empty(), depth);
  }

  Result<void> new_line(int depth) {
    if (!style_.indent) return {};
    QUERN_TRY_VOID(budget_.spend_text(style_.indent->size() * static_cast<size_t>(depth)));
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
    return {};
  }

  Result<void> separate(size_t index, int depth) {
    if (index > 0) out_ += style_.item_separator;
    return new_line(depth);
  }

  Result<void> close(char bracket, bool empty, int depth) {
    if (!empty) {
      QUERN_TRY_VOID(new_line(depth));
    }
    out_ += bracket;
    return {};
  }

  void write_escape(uint32_t unit) { fmt::format_to(std::back_inserter(out_), "\\u{:04x}", unit); }

  void write_text(std::string_view text) {
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t start = at;
      const auto c = static_cast<uint32_t>(next_code_point(text, at));
      constexpr std::string_view kShort = "\b\f\n\r\t\"\\", kLetters = "bfnrt\"\\";
      const size_t place = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
      if (place != std::string_view::npos) {
        out_ += '\\';
        out_ += kLetters[place];
      } else if (c < 0x20 || (style_.ascii_only && c >= 0x7F && c < 0x10000)) {
        write_escape(c);
      } else if (style_.ascii_only && c >= 0x10000) {
        write_escape(0xD800 + ((c - 0x10000) >> 10));
        write_escape(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out_.append(text.substr(start, at - start));
      }
    }
    out_ += '"';
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

}  // namespace

Result<void> append_text(const Value& value, std::string& out, Budget& budget) {
  if (const std::string* text = value.utf8()) {
    QUERN_TRY_VOID(budget.spend_text(text->size()));
    out += *text;
  } else if (value.is_none()) {
    out += "None";
  } else if (const auto* truth = value.as<bool>()) {
    out += *truth ? "True" : "False";
  } else if (const auto* integer = value.as<int64_t>()) {
    fmt::format_to(std::back_inserter(out), "{}", *integer);
  } else if (const auto* number = value.as<double>()) {
    append_number(*number, "inf", "nan", out);
  } else if (value.sequence() != nullptr || value.mapping() != nullptr) {
    return append_repr(value, out, budget);
  } else if (!value.is_undefined()) {
    return no_text(value);
  }
  return {};
}

Result<std::string> to_text(const Value& value, Budget& budget) {
  std::string out;
  QUERN_TRY_VOID(append_text(value, out, budget));
  return out;
}

Result<std::string> to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  QUERN_TRY_VOID(writer.write(value, 0));
  return writer.take();
}

}  // namespace quern::text::jinja
