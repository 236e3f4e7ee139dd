// SPDX-License-Identifier: Apache-2.0
// Owns the error vocabulary of the whole engine: the codes, the error value and the result type that carries it.
// Does not own how an error is shown to a person or turned into an exit code (cli/, http/ and python/ do).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace quern {

// What went wrong, seen from outside. The exit codes of the binary follow from these (see exit_code below).
enum class Errc : uint8_t {
  bad_model,    // a model file is damaged, inconsistent or incomplete
  unsupported,  // well-formed, but asks for something quern does not do
  bad_request,  // the caller's values break the contract
  too_long,     // the request needs more positions than the model has
  no_memory,    // the memory needed is not there
  io,           // reading or writing failed
  cancelled,    // the caller asked to stop
  overloaded,   // a server queue is full
  internal,     // a defect of quern
};

std::string_view errc_name(Errc code);

// The one table from error codes to process exit codes (docs: product contract of the command line).
int exit_code(Errc code);

// `what` is one sentence with the value seen and the value allowed; `where` is a file and offset, a node name or a
// JSON path, and is never empty for bad_model.
struct Error {
  Errc code = Errc::internal;
  std::string what;
  std::string where;

  std::string message() const { return where.empty() ? what : where + ": " + what; }
};

inline Error bad_model(std::string where, std::string what) {
  return {Errc::bad_model, std::move(what), std::move(where)};
}
inline Error unsupported(std::string where, std::string what) {
  return {Errc::unsupported, std::move(what), std::move(where)};
}
inline Error bad_request(std::string where, std::string what) {
  return {Errc::bad_request, std::move(what), std::move(where)};
}

// Our own bug: prints the message and aborts. Not for anything that input can cause.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* what);

// A value or an Error. Must be looked at.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    require();
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    require();
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    require();
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& {
    require_error();
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    require_error();
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  void require() const {
    if (!ok()) check_failed(__FILE__, __LINE__, "ok()", "value of a failed Result");
  }
  void require_error() const {
    if (ok()) check_failed(__FILE__, __LINE__, "!ok()", "error of a Result that holds a value");
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    require_error();
    return *error_;
  }
  Error&& error() && {
    require_error();
    return std::move(*error_);
  }

 private:
  void require_error() const {
    if (ok()) check_failed(__FILE__, __LINE__, "!ok()", "error of a Result without one");
  }
  std::optional<Error> error_;
};

}  // namespace quern

#define QUERN_CONCAT_(a, b) a##b
#define QUERN_CONCAT(a, b) QUERN_CONCAT_(a, b)

// QUERN_TRY(auto x, expr): x is the value of the Result `expr`, or the enclosing function returns its error.
#define QUERN_TRY(decl, expr) QUERN_TRY_(QUERN_CONCAT(quern_result_, __LINE__), decl, expr)
#define QUERN_TRY_(tmp, decl, expr)             \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()

// The same for a Result<void>.
#define QUERN_TRY_VOID(expr)                                        \
  do {                                                              \
    auto quern_result = (expr);                                     \
    if (!quern_result.ok()) return std::move(quern_result).error(); \
  } while (false)

// For our own bugs only; on in every build.
#define QUERN_CHECK(condition, what) \
  ((condition) ? static_cast<void>(0) : ::quern::check_failed(__FILE__, __LINE__, #condition, what))
#ifdef NDEBUG
#define QUERN_DCHECK(condition, what) static_cast<void>(0)
#else
#define QUERN_DCHECK(condition, what) QUERN_CHECK(condition, what)
#endif
