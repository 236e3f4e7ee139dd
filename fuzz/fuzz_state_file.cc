// SPDX-License-Identifier: Apache-2.0
// Any bytes as a saved timeline, once as they are and once with the checksum behind them that they should have: they
// are read to their end or refused.
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "model/state_file.h"

namespace {

using quern::model::StateFileReader;

constexpr size_t kMagicBytes = 8;
constexpr int64_t kMostIds = 64;

void require(bool condition) {
  if (!condition) std::abort();
}

void require_refusal(const quern::Error& error) {
  require(error.code == quern::Errc::bad_request || error.code == quern::Errc::too_long);
  require(!error.what.empty() && !error.where.empty());
}

void append(int file, const void* bytes, size_t size) {
  require(::write(file, bytes, size) == static_cast<ssize_t>(size));
}

// Reads as a model line does: `payload` bytes and the end, of a file with its facts (or here, at times, with any).
// Gives the bytes before the checksum of a file that was read to its end, 0 for one that is refused; `asked` is what
// the file's own sizes make of that.
struct Outcome {
  size_t bytes = 0;
  size_t asked = 0;
};
Outcome read_state(const std::string& path, std::span<const uint8_t> data, size_t payload) {
  nlohmann::json facts = nlohmann::json::object();
  if (payload % 2 == 1) facts = {{"kv", "fp16"}, {"layers", 2}};
  quern::Result<StateFileReader> reader = StateFileReader::open(path, facts, kMostIds);
  if (!reader.ok()) return require_refusal(reader.error()), Outcome{};
  uint32_t facts_bytes = 0;
  std::memcpy(&facts_bytes, data.data() + kMagicBytes, sizeof facts_bytes);
  const size_t ids_bytes = sizeof(uint64_t) + reader->head().ids.size() * sizeof(int32_t);
  const size_t asked = kMagicBytes + sizeof facts_bytes + facts_bytes + ids_bytes + payload;
  std::vector<std::byte> bytes(payload);
  const auto read = reader->read(bytes);
  if (!read.ok()) return require_refusal(read.error()), Outcome{0, asked};
  const auto finished = reader->finish();
  if (!finished.ok()) return require_refusal(finished.error()), Outcome{0, asked};
  return {asked, asked};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("state", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  require(file >= 0 && ::ftruncate(file, 0) == 0 && ::lseek(file, 0, SEEK_SET) == 0);
  append(file, data, size);
  // How large a payload is, its model line knows; here the last byte says it.
  const size_t payload = size == 0 ? 0 : data[size - 1] % 64;
  const Outcome plain = read_state(path, {data, size}, payload);
  if (plain.bytes > 0) {
    const uint64_t sum = XXH3_64bits(data, plain.bytes);
    require(plain.bytes + sizeof sum == size && std::memcmp(data + plain.bytes, &sum, sizeof sum) == 0);
  }
  const uint64_t sum = XXH3_64bits(data, size);
  append(file, &sum, sizeof sum);
  const Outcome sealed = read_state(path, {data, size}, payload);
  require((sealed.bytes > 0) == (sealed.asked > 0 && sealed.asked == size));
  return 0;
}
