// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/template.h"

#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace quern::text::jinja {
namespace {

// Published templates take some 300 units of work for a message and some 20 for each 32 bytes of it.
constexpr size_t kBaseWork = size_t{1} << 22;
constexpr size_t kWorkPerByte = 32;

}  // namespace

Result<Template> Template::parse(std::string_view source) {
  QUERN_TRY(ScopedBody body, parse_template(source));
  return Template(std::make_shared<const ScopedBody>(std::move(body)));
}

Result<std::string> Template::render(const Mapping& variables, size_t input_bytes) const {
  Evaluator evaluator(variables, kBaseWork + kWorkPerByte * input_bytes);
  return evaluator.render(*body_);
}

}  // namespace quern::text::jinja
