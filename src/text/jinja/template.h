// SPDX-License-Identifier: Apache-2.0
// Owns a parsed template and its rendering. Does not know what a chat is (text/chat_template.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/jinja/syntax.h"

namespace quern::text::jinja {

// A handle to an immutable template: cheap to copy, usable from several threads at once.
class Template {
 public:
  // Errors: bad_model or unsupported, `where` is "line N".
  static Result<Template> parse(std::string_view source);

  // `variables` holds what the template can name; `input_bytes` is its size, from which the work that a rendering may
  // take follows. Errors: bad_request with "line N": the template refuses, or what it does with these values is an
  // error in Python, is not supported, or takes too much.
  Result<std::string> render(const Mapping& variables, size_t input_bytes) const;

 private:
  explicit Template(std::shared_ptr<const ScopedBody> body) : body_(std::move(body)) {}

  std::shared_ptr<const ScopedBody> body_;
};

}  // namespace quern::text::jinja
