// SPDX-License-Identifier: Apache-2.0
// Node and attribute access for the operator rooms.
#include "ops/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote_name.h"

namespace quern::ops {
namespace {

std::string_view type_name(AttributeType type) {
  switch (type) {
    case AttributeType::f: return "FLOAT";
    case AttributeType::i: return "INT";
    case AttributeType::s: return "STRING";
    case AttributeType::tensor: return "TENSOR";
    case AttributeType::floats: return "FLOATS";
    case AttributeType::ints: return "INTS";
    case AttributeType::strings: return "STRINGS";
    case AttributeType::other: break;
  }
  return "another type";
}

}  // namespace

std::string node_where(std::string_view op, std::string_view name) {
  // The operator type as it is when it is an ordinary word, quoted and escaped otherwise.
  constexpr size_t kLongestWord = 64;
  const bool word =
      op.size() <= kLongestWord && std::all_of(op.begin(), op.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return fmt::format("{} node {}", word ? std::string(op) : quote_name(op), quote_name(name));
}

std::string NodeView::where() const { return node_where(op, name); }

AttributeReader::AttributeReader(const NodeView& node) : node_(node), seen_(node.attributes.size(), false) {}

const Attribute* AttributeReader::find(std::string_view name, AttributeType type, Error* error) {
  for (size_t i = 0; i < node_.attributes.size(); i++) {
    const Attribute& a = node_.attributes[i];
    if (a.name != name) continue;
    seen_[i] = true;
    if (a.type == type) return &a;
    *error = bad_model(node_.where(),
                       fmt::format("attribute {} has type {}, expected {}", name, type_name(a.type), type_name(type)));
    return nullptr;
  }
  return nullptr;
}

Result<int64_t> AttributeReader::require_int(std::string_view name) {
  Error error;
  if (const Attribute* a = find(name, AttributeType::i, &error)) return a->i;
  if (!error.what.empty()) return error;
  return bad_model(node_.where(), fmt::format("required attribute {} is missing", name));
}

Result<int64_t> AttributeReader::int_or(std::string_view name, int64_t absent) {
  Error error;
  if (const Attribute* a = find(name, AttributeType::i, &error)) return a->i;
  if (!error.what.empty()) return error;
  return absent;
}

Result<float> AttributeReader::float_or(std::string_view name, float absent) {
  Error error;
  if (const Attribute* a = find(name, AttributeType::f, &error)) return a->f;
  if (!error.what.empty()) return error;
  return absent;
}

Result<std::string_view> AttributeReader::string_or(std::string_view name, std::string_view absent) {
  Error error;
  if (const Attribute* a = find(name, AttributeType::s, &error)) return a->s;
  if (!error.what.empty()) return error;
  return absent;
}

Result<void> AttributeReader::only_int(std::string_view name, int64_t value) {
  QUERN_TRY(const int64_t seen, int_or(name, value));
  if (seen == value) return {};
  return unsupported(node_.where(), fmt::format("attribute {} = {} is not supported (only {})", name, seen, value));
}

Result<void> AttributeReader::only_string(std::string_view name, std::string_view value) {
  QUERN_TRY(const std::string_view seen, string_or(name, value));
  if (seen == value) return {};
  return unsupported(node_.where(),
                     fmt::format("attribute {} = {} is not supported (only '{}')", name, quote_name(seen), value));
}

Result<void> AttributeReader::finish() const {
  for (size_t i = 0; i < seen_.size(); i++) {
    if (!seen_[i]) {
      return unsupported(node_.where(),
                         fmt::format("attribute {} is not known to quern", path_name(node_.attributes[i].name)));
    }
  }
  return {};
}

Result<void> check_arity(const NodeView& node, int required_inputs, int max_inputs, int required_outputs,
                         int max_outputs) {
  for (int i = 0; i < required_inputs; i++) {
    if (!node.has_input(i)) return bad_model(node.where(), fmt::format("required input {} is missing", i));
  }
  for (int i = max_inputs; i < static_cast<int>(node.inputs.size()); i++) {
    if (node.has_input(i)) {
      return unsupported(node.where(),
                         fmt::format("input {} is present, at most {} inputs are supported", i, max_inputs));
    }
  }
  for (int i = 0; i < required_outputs; i++) {
    if (!node.has_output(i)) return bad_model(node.where(), fmt::format("required output {} is missing", i));
  }
  for (int i = max_outputs; i < static_cast<int>(node.outputs.size()); i++) {
    if (node.has_output(i)) {
      return unsupported(node.where(),
                         fmt::format("output {} is present, at most {} outputs are supported", i, max_outputs));
    }
  }
  return {};
}

Result<void> check_dtype(const NodeView& node, int i, DType dtype) {
  if (!node.has_input(i) || node.input(i).dtype == dtype) return {};
  return unsupported(node.where(), fmt::format("input {} has type {}, only {} is supported", i,
                                               dtype_name(node.input(i).dtype), dtype_name(dtype)));
}

Result<Shape> Shape::from(std::span<const int64_t> dims, const std::string& where) {
  if (dims.size() > static_cast<size_t>(kMaxRank)) {
    return bad_model(where, fmt::format("rank {} is above the supported {}", dims.size(), kMaxRank));
  }
  Shape shape;
  for (int64_t d : dims) {
    if (d < 0) return bad_model(where, fmt::format("dimension {} is negative", d));
    shape.push_back(d);
  }
  return shape;
}

std::optional<int64_t> Shape::checked_elements() const {
  // A zero extent makes the product zero whatever the others are.
  for (int64_t d : dims()) {
    if (d == 0) return 0;
  }
  int64_t n = 1;
  for (int64_t d : dims()) {
    const auto next = checked_mul(n, d);
    if (!next) return std::nullopt;
    n = *next;
  }
  return n;
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int i = 0; i < rank_; i++) {
    if ((*this)[i] != other[i]) return false;
  }
  return true;
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

}  // namespace quern::ops
