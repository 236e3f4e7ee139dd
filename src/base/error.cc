// SPDX-License-Identifier: Apache-2.0
// The tables behind base/error.h.
#include "base/error.h"

#include <cstdio>

namespace quern {
namespace {

struct Row {
  Errc code;
  std::string_view name;
  int exit_code;
};

constexpr Row kRows[] = {
    {Errc::bad_model, "bad_model", 3},   {Errc::unsupported, "unsupported", 4}, {Errc::bad_request, "bad_request", 5},
    {Errc::too_long, "too_long", 5},     {Errc::no_memory, "no_memory", 6},     {Errc::io, "io", 7},
    {Errc::cancelled, "cancelled", 130}, {Errc::overloaded, "overloaded", 1},   {Errc::internal, "internal", 1},
};

const Row& row(Errc code) {
  for (const Row& r : kRows) {
    if (r.code == code) return r;
  }
  return kRows[sizeof(kRows) / sizeof(kRows[0]) - 1];
}

}  // namespace

std::string_view errc_name(Errc code) { return row(code).name; }

int exit_code(Errc code) { return row(code).exit_code; }

void check_failed(const char* file, int line, const char* condition, const char* what) {
  std::fprintf(stderr, "quern: internal error at %s:%d: %s (%s)\n", file, line, what, condition);
  std::abort();
}

}  // namespace quern
