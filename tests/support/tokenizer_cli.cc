// SPDX-License-Identifier: Apache-2.0
// Drives the tokenizer in bulk for tests/oracle: one JSON object per line in, one per line out. Not a product command.
//   {"op":"encode", "text":T or "hex":H, "parse_special":B}  -> {"ids":[...]}
//   {"op":"decode", "ids":[...], "skip_special":B}           -> {"text":T}
//   {"op":"stream", "ids":[...], "skip_special":B}           -> {"pieces":[...]}, the last one from finish()
//   {"op":"describe"}          -> {"vocab_size":N, "id_limit":N, "bos_id", "eos_id", "pad_id"}
//   {"op":"token", "id":N}     -> {"text":T or null, "special":B}
// Any failure is {"error":{"code","what","where"}}; a folder that cannot be loaded gives one such line and exit code 3.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

using nlohmann::json;
using quern::text::Tokenizer;

json error_line(const quern::Error& error) {
  return {{"error", {{"code", quern::errc_name(error.code)}, {"what", error.what}, {"where", error.where}}}};
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

json answer(const Tokenizer& tokenizer, const json& request) {
  const std::string op = request.at("op");
  if (op == "encode") {
    const std::string text = request.contains("hex") ? from_hex(request["hex"]) : request.at("text").get<std::string>();
    const auto ids = tokenizer.encode(text, request.value("parse_special", true));
    return ids.ok() ? json{{"ids", *ids}} : error_line(ids.error());
  }
  if (op == "describe") {
    const auto& settings = tokenizer.settings();
    return {{"vocab_size", tokenizer.vocab_size()},
            {"id_limit", tokenizer.id_limit()},
            {"bos_id", or_null(settings.bos_id)},
            {"eos_id", or_null(settings.eos_id)},
            {"pad_id", or_null(settings.pad_id)}};
  }
  if (op == "token") {
    const int32_t id = request.at("id");
    const auto text = tokenizer.text_of(id);
    return {{"text", text ? json(std::string(*text)) : json()}, {"special", tokenizer.is_special(id)}};
  }
  const std::vector<int32_t> ids = request.at("ids");
  const bool skip_special = request.value("skip_special", false);
  if (op == "decode") return {{"text", tokenizer.decode(ids, skip_special)}};
  quern::text::StreamDetokenizer stream(tokenizer, skip_special);
  json pieces = json::array();
  for (const int32_t id : ids) pieces.push_back(stream.push(id));
  pieces.push_back(stream.finish());
  return {{"pieces", pieces}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: tokenizer_cli FOLDER\n");
    return 2;
  }
  const auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print("{}\n", error_line(tokenizer.error()).dump());
    return quern::exit_code(tokenizer.error().code);
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);)
    std::cout << answer(*tokenizer, json::parse(line)).dump() << '\n';
  return 0;
}
