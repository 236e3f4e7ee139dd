// SPDX-License-Identifier: Apache-2.0
// Prints what the safetensors reader makes of files, one JSON object per path given, for tests/oracle. Not a product
// command. A file that is refused gives {"error": {"code", "what", "where"}}; payloads come as their length and their
// position-weighted sum modulo 2^64.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file_map.h"
#include "formats/safetensors/header.h"

namespace {

using nlohmann::json;
using namespace quern::formats;

json error_object(const quern::Error& error) {
  return {{"error", {{"code", quern::errc_name(error.code)}, {"what", error.what}, {"where", error.where}}}};
}

json file_object(const char* path) {
  const auto map = quern::FileMap::open(path);
  if (!map.ok()) return error_object(map.error());
  const auto header = parse_safetensors_header(map->bytes(), path);
  if (!header.ok()) return error_object(header.error());
  json tensors = json::object();
  for (const SafetensorsTensor& t : header->tensors) {
    uint64_t sum = 0;
    for (size_t i = 0; i < t.bytes.size(); ++i) sum += static_cast<uint64_t>(t.bytes[i]) * (i + 1);
    tensors[std::string(t.name)] = {quern::dtype_name(t.dtype), std::vector<int64_t>(t.shape.begin(), t.shape.end()),
                                    t.bytes.size(), sum};
  }
  return {{"tensors", std::move(tensors)}};
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) std::printf("%s\n", file_object(argv[i]).dump().c_str());
  return 0;
}
